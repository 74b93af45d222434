"""A core set goes on alone: what the registry keeps of that, and what an operator asks."""
