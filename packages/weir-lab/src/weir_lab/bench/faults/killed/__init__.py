"""Handlers with an inbox, killed with -9 at any moment: how often each message has its effect."""
