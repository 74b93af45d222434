"""Metadata: the registry of topics, nodes and placement, replicated by a Raft group of its own."""
