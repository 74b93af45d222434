"""Measurements of Spark's source."""
