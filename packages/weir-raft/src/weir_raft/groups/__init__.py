"""Many groups on one host."""
