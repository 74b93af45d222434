"""One partition on this shard: what it answers, and what exists only while it leads."""
