"""Simulated clients that read and consume."""
