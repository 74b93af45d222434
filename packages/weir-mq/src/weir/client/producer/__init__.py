"""Producers: messages go out in batches, each exactly once and in order per partition."""
