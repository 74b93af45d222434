"""The processes of the demo: how they start, what they do, how they end."""
