"""Scatterings: parts that are prepared, who coordinates them, who finds out what became of them."""
