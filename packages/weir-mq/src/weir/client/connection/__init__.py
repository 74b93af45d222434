"""Connections to the shards of a BrokerSet, and what a client takes from its machine."""
