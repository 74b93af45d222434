"""Metrics, health, status lines and warnings of a running node."""
