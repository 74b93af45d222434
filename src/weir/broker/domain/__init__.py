"""The one order of a topic's partitions: how far it is complete, and who is told of it."""
