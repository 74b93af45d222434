"""What applications write, read and checked: addresses, values, times, and positions in a topic."""
