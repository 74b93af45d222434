"""Consumers of clusters at a relay."""
