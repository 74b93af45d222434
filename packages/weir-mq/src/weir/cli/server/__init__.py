"""Verbs that found, configure and run nodes."""
