"""What may be asked for: numbers of a measurement within their bounds."""

from __future__ import annotations


def check_bounds(**bounds: tuple[int, int, int]) -> None:
    """Raise `ValueError`, by name, for the first (value, least, most) that is not within them."""
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise ValueError(f"{name}={value:,}: it must be {least:,} to {most:,}")
