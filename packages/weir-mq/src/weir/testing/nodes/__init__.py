"""Real nodes on this machine, each a process."""
