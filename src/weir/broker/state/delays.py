"""Where a partition's delayed messages lie: a row for each batch that has some, packed.

A row says between which times a batch's messages are due; each message's own time stays in the log,
in the DUE column. Rows are the same on every replica, for they come and go by entries and stamps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import compress
from typing import NamedTuple

#: Rows whose messages are all due stay until there are twice as many rows as after the last sweep.
_SWEEP_LEAST = 1_024


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

    def add(self, row: Row, now_ms: int, most: int) -> None:
        """Append the row of a batch whose stamp lies in `now_ms`, unless all of it is due.

        Rows that are past by then go once there are many, or `most`: who adds sees to it that
        fewer are not.
        """
        if row.greatest <= now_ms:
            return
        if len(self) >= min(self._sweep_at, most):
            self._sweep(now_ms)
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

    def is_full(self, most: int, now_ms: int) -> bool:
        """Return whether there are `most` rows that are not all due."""
        return len(self) >= most and sum(map(now_ms.__lt__, self._greatest)) >= most

    def has_live(self, offset: int, now_ms: int) -> bool:
        """Return whether messages from `offset` on are not due."""
        at = bisect_right(self._nexts, offset)
        return any(map(now_ms.__lt__, self._greatest[at:]))

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self._firsts, self._nexts, self._least, self._greatest

    def _row(self, at: int) -> Row:
        return Row(self._firsts[at], self._nexts[at], self._least[at], self._greatest[at])

    def _sweep(self, now_ms: int) -> None:
        kept = bytes(map(now_ms.__lt__, self._greatest))
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
