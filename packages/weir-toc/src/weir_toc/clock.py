"""Clocks: a local clock that follows a reference, and the stamps and barriers read from it.

A clock that is wrong delays delivery and changes no order. What order rests on is `Stamps` alone:
what it gave out never lies at or below what it promised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

#: How fast a clock is drawn to the reference: parts per million of the time that passes.
SLEW_PPM = 500
#: How far two oscillators may drift apart between two samples, for the stated error.
DRIFT_PPM = 100
#: So many samples are kept.
SAMPLES = 24
#: A line goes through so many at least, which span so many nanoseconds.
LINE_SAMPLES, LINE_NS = 4, 1_000_000_000
_MILLION, _BILLION = 1_000_000, 1_000_000_000


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
        due = now if now > self.last else self.last  # each packet takes both barriers
        if due > self.barrier_sent:
            self.barrier_sent = due
        return self.barrier_sent

    def commit(self, now: int, oldest: int | None) -> int:
        """Return the commit barrier that a packet queued at this moment carries.

        `oldest` is the lowest reliable stamp that is not acknowledged, or that is recalled and
        whose recall is not acknowledged. Without one, all through the last stamp is.
        """
        found = max(self.last, now) if oldest is None else oldest - 1
        if found > self.commit_sent:
            self.commit_sent = found
        return self.commit_sent


class Clock:
    """A clock that follows a reference: it slews, and never goes back.

    `read` is given a raw time in nanoseconds, such as CLOCK_MONOTONIC. It may jump back: the clock
    then goes on from where it was.

    Of the last samples the half with the lesser round trips is taken, and a line through their
    offsets tells how far the raw clock is off, and how fast it drifts: what delays one way more
    than the other evens out. No sample may contradict the newest: once the raw clock has jumped,
    older ones say nothing.
    """

    __slots__ = (
        "_best", "_is_read", "_offset", "_rate", "_raw", "_samples", "_target", "_target_at",
        "_time",
    )  # fmt: skip

    def __init__(self, raw: int) -> None:
        self._raw = raw
        self._offset = 0
        self._time = raw
        #: The offset of the line at one raw time, and how fast it grows, in parts per billion.
        self._target = self._target_at = self._rate = 0
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)
        #: The sample that tells most, by which the error is stated.
        self._best: _Sample | None = None
        #: Whether anybody has seen the time since the first sample.
        self._is_read = False

    def read(self, raw: int) -> int:
        """Return the time: the reference's, as well as it is known. It never decreases."""
        elapsed = raw - self._raw
        if elapsed < 0:
            # The raw clock jumped back: no time is known to have passed.
            self._offset -= elapsed
            self._target, self._target_at, self._rate = self._offset, raw, 0
            self._samples.clear()
        elif self._rate or self._offset != self._target:
            target = self._target + (raw - self._target_at) * self._rate // _BILLION
            most = elapsed * SLEW_PPM // _MILLION
            self._offset += max(-most, min(most, target - self._offset))
        self._raw = raw
        time = raw + self._offset
        if time > self._time:
            self._time = time
        self._is_read = True
        return self._time

    def sample(self, sent: int, reached: int, answered: int, received: int) -> None:
        """Take one exchange: `sent` and `received` in raw time, the others in the reference's.

        The first one sets the clock, and so do better ones until it is read; later ones turn it.
        """
        round_trip = (received - sent) - (answered - reached)
        offset = ((reached - sent) + (answered - received)) // 2
        if round_trip < 0:
            return  # no clock ran like that: one of both was set meanwhile
        new = _Sample(round_trip, offset, received)
        if any(_contradict(one, new) for one in self._samples):
            self._samples.clear()
        self._samples.append(new)
        if self._best is None:
            self._is_read = False
        self._best = best = min(self._samples, key=lambda one: _error(one, received))
        if not self._is_read:
            self._raw, self._offset = received, best.offset
            self._time = received + best.offset
        self._target_at = received
        self._target, self._rate = best.offset, 0
        line = _line(self._samples, received)
        if line is not None:
            away = _error(best, received)
            self._target = max(best.offset - away, min(best.offset + away, line[0]))
            self._rate = line[1]

    def error_bound(self, raw: int) -> int | None:
        """Return how far the time may be from the reference's, in nanoseconds; None if unknown."""
        best = self._best
        if best is None:
            return None
        return _error(best, raw) + abs(best.offset - self._offset)


def _error(one: _Sample, raw: int) -> int:
    """How far the offset of a sample may be from the true one at a raw time."""
    return one.round_trip // 2 + max(0, raw - one.received) * DRIFT_PPM // _MILLION


def _contradict(old: _Sample, new: _Sample) -> bool:
    """Whether a clock must have jumped between two samples."""
    return abs(new.offset - old.offset) > _error(old, new.received) + new.round_trip // 2 + 1


def _line(samples: Iterable[_Sample], raw: int) -> tuple[int, int] | None:
    """Return the offset at a raw time by a line through the better half of samples, and its slope.

    The slope is in parts per billion. Without enough samples there is no line.
    """
    better = sorted(samples)
    better = better[: len(better) // 2]
    if len(better) < LINE_SAMPLES:
        return None
    times = [one.received - raw for one in better]
    if max(times) - min(times) < LINE_NS:
        return None
    count = len(better)
    time = sum(times) // count
    offset = sum(one.offset for one in better) // count
    over = sum((at - time) ** 2 for at in times)
    slope = sum((at - time) * (one.offset - offset)
                for at, one in zip(times, better, strict=True)) * _BILLION // over  # fmt: skip
    most = DRIFT_PPM * 1_000
    slope = max(-most, min(most, slope))
    return offset - time * slope // _BILLION, slope
