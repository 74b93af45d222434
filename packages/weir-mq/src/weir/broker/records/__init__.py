"""What replicas store: entries, control records, and snapshots of states."""
