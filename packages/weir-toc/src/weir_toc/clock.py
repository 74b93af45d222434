"""Clocks: a local clock that follows a reference, and the stamps and barriers read from it.

A clock that is wrong delays delivery and changes no order. What order rests on is `Stamps` alone:
what it gave out never lies at or below what it promised.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: How fast a clock is drawn to the reference: parts per million of the time that passes.
SLEW_PPM = 500
#: How far two oscillators may drift apart between two samples, for the stated error.
DRIFT_PPM = 100
#: The least round trip among so many samples is taken.
SAMPLES = 8
_MILLION = 1_000_000


class _Sample(NamedTuple):
    """One exchange; the least one has the least round trip."""

    round_trip: int
    offset: int
    received: int


class Stamps:
    """The stamps that one process gives, and the barriers that it sends; unwrapped nanoseconds.

    A barrier says that no later best effort stamp lies below it, a commit barrier that no later
    reliable stamp lies at or below it. Both services share one sequence of stamps.
    """

    __slots__ = ("barrier_sent", "commit_sent", "last")

    def __init__(self, floor: int) -> None:
        """Begin above `floor`, which others may have promised for this process."""
        #: The last stamp given.
        self.last = floor
        #: The highest barriers sent. The minimum over the network never exceeds them.
        self.barrier_sent = floor
        self.commit_sent = floor

    def stamp(self, now: int) -> int:
        """Return the next stamp: above the last one and above every commit barrier sent."""
        self.last = max(self.last + 1, self.commit_sent + 1, self.barrier_sent, now)
        return self.last

    def run(self, now: int, count: int) -> int:
        """Return the first of `count` next stamps, which follow each other."""
        first = self.stamp(now)
        self.last = first + count - 1
        return first

    def barrier(self, now: int) -> int:
        """Return the best effort barrier that a packet queued at this moment carries."""
        self.barrier_sent = max(self.barrier_sent, self.last, now)
        return self.barrier_sent

    def commit(self, now: int, oldest: int | None) -> int:
        """Return the commit barrier that a packet queued at this moment carries.

        `oldest` is the lowest reliable stamp that is not acknowledged, or that is recalled and
        whose recall is not acknowledged. Without one, all through the last stamp is.
        """
        found = max(self.last, now) if oldest is None else oldest - 1
        self.commit_sent = max(self.commit_sent, found)
        return self.commit_sent


class Clock:
    """A clock that follows a reference: it slews, and never goes back.

    `read` is given a raw time in nanoseconds, such as CLOCK_MONOTONIC. It may jump back: the clock
    then goes on from where it was.
    """

    __slots__ = ("_offset", "_raw", "_samples", "_target", "_time")

    def __init__(self, raw: int) -> None:
        self._raw = raw
        self._offset = 0
        self._target = 0
        self._time = raw
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)

    def read(self, raw: int) -> int:
        """Return the time: the reference's, as well as it is known. It never decreases."""
        elapsed = raw - self._raw
        if elapsed < 0:
            # The raw clock jumped back: no time is known to have passed.
            self._offset -= elapsed
            self._target -= elapsed
        elif self._offset != self._target:
            most = elapsed * SLEW_PPM // _MILLION
            self._offset += max(-most, min(most, self._target - self._offset))
        self._raw = raw
        self._time = max(self._time, raw + self._offset)
        return self._time

    def sample(self, sent: int, reached: int, answered: int, received: int) -> None:
        """Take one exchange: `sent` and `received` in raw time, the others in the reference's.

        The first one sets the clock; later ones only turn it.
        """
        round_trip = (received - sent) - (answered - reached)
        offset = ((reached - sent) + (answered - received)) // 2
        if round_trip < 0:
            return  # no clock ran like that: one of both was set meanwhile
        is_first = not self._samples
        self._samples.append(_Sample(round_trip, offset, received))
        self._target = min(self._samples).offset
        if is_first:
            self._raw, self._offset = received, self._target
            self._time = received + self._offset

    def error_bound(self, raw: int) -> int | None:
        """Return how far the time may be from the reference's, in nanoseconds; None if unknown."""
        if not self._samples:
            return None
        used = min(self._samples)
        drift = max(0, raw - used.received) * DRIFT_PPM // _MILLION
        return used.round_trip // 2 + drift + abs(self._target - self._offset)
