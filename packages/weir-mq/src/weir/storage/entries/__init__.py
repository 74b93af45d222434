"""The entries of each group: the index of their places, reads and repairs."""
