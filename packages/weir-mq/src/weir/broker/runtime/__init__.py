"""What every room of a shard uses: the outbox, budgets, waits, reads and sessions."""
