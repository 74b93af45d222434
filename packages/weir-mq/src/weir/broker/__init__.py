"""One node's decisions, pure: `Shard.handle(event)` returns effects, in order, for a host to do."""
