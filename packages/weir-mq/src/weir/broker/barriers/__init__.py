"""Barriers: the one order of a topic's partitions, and how far it is complete."""
