"""The registry: topics, nodes and placement, replicated by a Raft group of its own."""
