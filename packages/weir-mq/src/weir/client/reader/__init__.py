"""Readers: batches or messages of a topic from a position on, without a consumer cluster."""
