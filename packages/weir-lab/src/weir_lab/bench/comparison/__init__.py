"""The same work on weir and on other brokers, by turns."""
