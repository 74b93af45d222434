"""Simulated clients that publish."""
