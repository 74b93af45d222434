"""Worlds whose faults come in a given order, and logs alone."""
