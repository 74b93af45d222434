"""Barriers: the one order of a topic's partitions, how far it is complete, who is told."""
