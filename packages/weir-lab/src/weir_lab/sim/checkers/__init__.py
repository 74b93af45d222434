"""Checkers: one for each promise, by what clients observed."""
