"""The other shards: what is passed on to them, and the registry as they see it."""
