"""What a network of packets takes: memory while links are late, processor time while it is idle."""
