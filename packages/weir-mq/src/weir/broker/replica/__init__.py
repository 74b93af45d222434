"""Replicas of Raft groups: their storage, how entries become durable, are applied and sent."""
