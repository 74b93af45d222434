"""Peers as their own Python clients drive them: as their users have it."""
