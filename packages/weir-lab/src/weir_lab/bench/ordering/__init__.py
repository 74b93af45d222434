"""What one order over all partitions costs, beside what one does without it."""
