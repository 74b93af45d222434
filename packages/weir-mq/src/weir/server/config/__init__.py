"""The settings of a node, and where each value comes from."""
