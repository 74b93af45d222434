"""Enforces quotas: counts usage by entity, and throttles entities that exceed their quotas."""
