"""Jobs that a user runs as they are, or copies: each is one short module."""
