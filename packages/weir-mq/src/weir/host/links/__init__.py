"""Links between the shards of different nodes."""
