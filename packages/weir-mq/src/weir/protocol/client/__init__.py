"""The client protocol: requests and replies, and their bytes."""
