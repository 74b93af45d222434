"""Requests of peers, each to where it belongs, and the sessions they come by."""
