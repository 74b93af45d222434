"""Logins, authorization, and the end of sessions that lose their rights."""
