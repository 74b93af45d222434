"""What every replica of a partition knows after the same entries: its state, and nothing else."""
