"""What a host gives to a shard and gets from it: events, effects, who and where it is, counts."""
