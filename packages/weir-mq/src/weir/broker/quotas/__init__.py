"""Quotas at work: what is used, by whom, and what is done where that is too much."""
