"""The nouns that every room shares: ids, stamps, messages, batches, topics, limits."""
