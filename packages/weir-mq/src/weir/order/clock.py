"""Stamps: hybrid logical time as one integer below 2^63 (DESIGN §2).

A stamp is milliseconds since 1970 · 65,536 + a logic counter; the counter carries into the
milliseconds, so a burst of more than 65,535 entries in a millisecond still rises. The clock of a
partition's leader gives each entry a stamp above every earlier one (DESIGN §5 Produce, *Stamp*).
"""

from __future__ import annotations

from typing import Protocol

from weir.errors import StampTooFar
from weir.model.limits import MAX_AHEAD_MS

LOGIC_BITS = 16
STAMP_MAX = (1 << 63) - 1
#: No clock comes here before the year 4199, and stamps above it have as much room again.
STAMP_FAR = 1 << 62


def stamp_at(milliseconds: int) -> int:
    """Return the lowest stamp of a millisecond since 1970."""
    return milliseconds << LOGIC_BITS


def milliseconds_of(stamp: int) -> int:
    """Return the millisecond since 1970 that a stamp lies in."""
    return stamp >> LOGIC_BITS


class Time(Protocol):
    """The time as a host gives it: the only way in which a pure room learns it."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970. May jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since whenever. Never falls; deadlines are kept by it."""


class HighestStamp:
    """The highest stamp of all clocks of a shard: what an honest client may have seen here.

    None of them stamps at or below `promised` any more: others were told so.
    """

    __slots__ = ("promised", "stamp")

    def __init__(self, stamp: int = 0) -> None:
        """Begin with a stamp, or none."""
        self.stamp = stamp
        self.promised = 0


class HybridClock:
    """Gives each entry a stamp above every earlier one, and near the time while clocks are sane."""

    __slots__ = ("_last", "highest", "max_ahead_ms")

    def __init__(
        self, last: int = 0, highest: HighestStamp | None = None, max_ahead_ms: int = MAX_AHEAD_MS
    ) -> None:
        """Go on above `last`: the log's last stamp, or the fence of an election if higher.

        `highest` is shared by the clocks of a shard; None is a clock of its own.
        """
        #: What all clocks of this shard gave.
        self.highest = highest or HighestStamp()
        self._last = 0
        self.max_ahead_ms = max_ahead_ms
        self.raise_to(last)

    @property
    def last(self) -> int:
        """The last stamp given."""
        return self._last

    def raise_to(self, stamp: int) -> None:
        """Go on above a stamp that somebody else gave."""
        self._last = max(self._last, stamp)
        self.highest.stamp = max(self.highest.stamp, stamp)

    def check_seen(self, wall_ms: int, seen: int) -> None:
        """Raise `StampTooFar` if a client's last seen stamp would drag the partition ahead.

        The bound is the clock plus `max_ahead`, or what this shard gave already (the clock may
        have been set back since): bounding against the last stamp *plus* something would let a
        client creep ahead request by request.
        """
        highest = max(self.highest.stamp, stamp_at(wall_ms + self.max_ahead_ms))
        if seen > highest:
            raise StampTooFar(
                f"last seen stamp {seen} lies over {self.max_ahead_ms} ms ahead of this node's "
                "clock: check both clocks, then start a new session",
                highest,
            )

    def clamp(self, wall_ms: int, seen: int) -> int:
        """Return `seen`, or the clock plus `max_ahead` if that is less: for who cannot be refused.

        Not even what this shard gave may pass: one partition that a bad clock stamped far ahead
        would drag along every partition that its hubs go to next.
        """
        return min(seen, stamp_at(wall_ms + self.max_ahead_ms))

    @property
    def floor(self) -> int:
        """The highest stamp that was given, or promised not to be."""
        return max(self._last, self.highest.promised)

    def take(self, stamp: int) -> bool:
        """Give exactly this stamp, which must be checked as one that was seen; False if it is not
        above all that were given or promised.
        """
        if stamp <= self.floor:
            return False
        self.raise_to(stamp)
        return True

    def stamp(self, wall_ms: int, seen: int = 0) -> int:
        """Return max(now, last + 1, seen + 1, promised + 1) and make it the last; `seen` must be
        checked.
        """
        highest = self.highest
        last = max(wall_ms << LOGIC_BITS, self._last + 1, seen + 1, highest.promised + 1)
        self._last = last
        if last > highest.stamp:
            highest.stamp = last
        return last
