"""Verbs that publish and consume messages."""
