"""Stamps, barriers, and the one order that they give (DESIGN §5)."""
