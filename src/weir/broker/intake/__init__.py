"""The leader's way in: batches are checked, stamped, gathered and proposed."""
