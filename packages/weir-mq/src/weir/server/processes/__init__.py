"""The processes of a node: the supervisor, the shards, and how they start and stop."""
