"""Measurements of logs: how long they take to open, to verify, to sync."""
