"""Stamps: hybrid logical time as one integer below 2^63 (DESIGN §2).

A stamp is milliseconds since 1970 · 65,536 + a logic counter; the counter carries into the
milliseconds, so a burst of more than 65,535 entries in a millisecond still rises.
"""

from __future__ import annotations

LOGIC_BITS = 16
STAMP_MAX = (1 << 63) - 1
#: No clock comes here before the year 4199, and whoever stamps above it has as much room again.
STAMP_FAR = 1 << 62


def stamp_at(milliseconds: int) -> int:
    """Return the lowest stamp of a millisecond since 1970."""
    return milliseconds << LOGIC_BITS


def milliseconds_of(stamp: int) -> int:
    """Return the millisecond since 1970 that a stamp lies in."""
    return stamp >> LOGIC_BITS
