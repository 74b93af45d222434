"""Measurements of clusters, handlers and workers."""
