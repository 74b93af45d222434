"""What an application decides, without I/O, clock or random numbers."""
