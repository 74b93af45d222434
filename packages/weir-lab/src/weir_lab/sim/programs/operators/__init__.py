"""Simulated operators of topics, clusters and sets."""
