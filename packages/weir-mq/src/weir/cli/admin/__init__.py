"""Verbs that look after the topics, clusters, devices and nodes of a running set."""
