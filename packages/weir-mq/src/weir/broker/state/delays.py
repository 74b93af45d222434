"""Where a partition's delayed messages lie: a row for each batch that has some, packed.

A row says between which times a batch's messages are due; each message's own time stays in the log,
in the DUE column. Rows are the same on every replica, for they come and go by entries and stamps.
Leaders judge by their wall clocks what is due, and stamps may be ahead of those: so a row stays for
as long as the clock of some leader may lie below its times.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import compress
from typing import NamedTuple

from weir.model.limits import MAX_AHEAD_MS

#: Stamps may be ahead of a leader's wall clock by so much: two clocks within `max_ahead` of the
#: median differ by twice as much, and a stamp lies as much again above the clock that gave it.
STAMPS_AHEAD_MS = 3 * MAX_AHEAD_MS
#: Rows whose messages are long due stay until there are twice as many rows as after the last sweep.
_SWEEP_LEAST = 1_024


def is_past(due_ms: int, stamp_ms: int) -> bool:
    """Return whether a time is past by any leader's clock once something is stamped `stamp_ms`."""
    return due_ms <= stamp_ms - STAMPS_AHEAD_MS


class Row(NamedTuple):
    """Messages [first, next) of one batch, due from `least` to `greatest`, in ms since 1970."""

    first: int
    next: int
    least: int
    greatest: int


class Delays:
    """Rows in the order of their offsets, 32 bytes each."""

    __slots__ = ("_firsts", "_greatest", "_least", "_nexts", "_sweep_at")

    def __init__(self) -> None:
        """Begin with none."""
        self._firsts = array("q")
        self._nexts = array("q")
        self._least = array("q")
        self._greatest = array("q")
        self._sweep_at = _SWEEP_LEAST

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, row: Row, stamp_ms: int, most: int) -> None:
        """Append the row of a batch stamped at `stamp_ms`, unless all of it is due by any clock.

        Rows that are past by then go once there are many, or `most`: who adds sees to it that
        fewer are not (`is_full`).
        """
        if is_past(row.greatest, stamp_ms):
            return
        if len(self) >= min(self._sweep_at, most):
            self._sweep(stamp_ms - STAMPS_AHEAD_MS)
        for column, number in zip(self._columns, row, strict=True):
            column.append(number)

    def drop_below(self, start: int) -> None:
        """Forget the messages below offset `start`: they are gone."""
        count = bisect_right(self._nexts, start)
        for column in self._columns:
            del column[:count]

    def live(self, offset: int, behind: int, now_ms: int) -> Row | None:
        """Return the first row that holds offsets of [offset, behind) and is not all due."""
        at = bisect_right(self._nexts, offset)
        while at < len(self._firsts) and self._firsts[at] < behind:
            if self._greatest[at] > now_ms:
                return self._row(at)
            at += 1
        return None

    def of(self, first: int) -> Row | None:
        """Return the row that begins at an offset."""
        at = bisect_left(self._firsts, first)
        if at < len(self._firsts) and self._firsts[at] == first:
            return self._row(at)
        return None

    def is_full(self, most: int, stamp_ms: int) -> bool:
        """Return whether there are `most` rows that a batch stamped at `stamp_ms` leaves."""
        since_ms = stamp_ms - STAMPS_AHEAD_MS
        return len(self) >= most and sum(map(since_ms.__lt__, self._greatest)) >= most

    def has_live(self, offset: int, now_ms: int) -> bool:
        """Return whether messages from `offset` on are not due."""
        at = bisect_right(self._nexts, offset)
        return any(map(now_ms.__lt__, self._greatest[at:]))

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self._firsts, self._nexts, self._least, self._greatest

    def _row(self, at: int) -> Row:
        return Row(self._firsts[at], self._nexts[at], self._least[at], self._greatest[at])

    def _sweep(self, since_ms: int) -> None:
        kept = bytes(map(since_ms.__lt__, self._greatest))
        if not all(kept):
            for column in self._columns:
                column[:] = array("q", compress(column, kept))
        self._sweep_at = max(_SWEEP_LEAST, 2 * len(self))

    def encode(self) -> tuple[object, ...]:
        """Return the rows for a snapshot."""
        return (self._sweep_at, *(column.tobytes() for column in self._columns))

    @classmethod
    def decode(cls, sweep_at: int, *columns: bytes) -> Delays:
        """Return the rows of a snapshot."""
        found = cls()
        found._sweep_at = sweep_at
        for column, data in zip(found._columns, columns, strict=True):
            column.frombytes(data)
        return found
