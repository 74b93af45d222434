"""Measurements: a node of their own, producers in processes of their own, every message checked."""
