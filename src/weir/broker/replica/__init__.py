"""A replica of a Raft group: its node, its past, how entries become durable and are applied."""
