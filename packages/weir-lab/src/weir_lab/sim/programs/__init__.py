"""Simulated clients of every kind."""
