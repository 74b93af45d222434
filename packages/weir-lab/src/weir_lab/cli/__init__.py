"""The verbs that this distribution adds to `weir`."""
