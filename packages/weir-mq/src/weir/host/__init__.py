"""What lies between bytes and a shard and decides something: pure, the same for every host."""
