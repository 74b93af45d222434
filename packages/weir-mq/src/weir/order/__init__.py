"""Stamps and the order they give (DESIGN §5). Barriers and merging join this room later."""
