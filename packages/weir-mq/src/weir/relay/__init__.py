"""Relays: copies of partitions in BrokerSets below the core, with its offsets, stamps and order."""
