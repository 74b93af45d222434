"""What applications write, read and checked: values, times, and positions in a topic."""
