"""Produce, on the leader: batches are checked, stamped, gathered and proposed."""
