"""What measurements share: processes that make load, the machine, a network, what came out."""
