"""Forwarding: requests that other shards answer, and the registry as other shards see it."""
