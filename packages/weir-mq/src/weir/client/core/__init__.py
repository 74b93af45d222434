"""What a client decides, without I/O, clock or random numbers."""
