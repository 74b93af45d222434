"""Rows: the entries of one group as packed columns, in memory and in index files.

Columns are native little-endian arrays, so that a restart loads them without looking at a row.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from weir.codec.fields import Buffer, padding
from weir.storage.errors import BadIndexFile

#: The start of a group that is gone for ever: none of its entries is needed.
GONE = (1 << 64) - 1
#: Bytes of one entry over all columns.
ROW_BYTES = 53
_HEAD = struct.Struct("<QQQQQqQQ")
#: Type codes, widest first, so that every column of a file begins aligned.
_CODES = "QQQqqQIB"


@dataclass(frozen=True, slots=True)
class Rows:
    """Entries `first` and up of a group, without a gap, a column for each field.

    `start` is the group's start when they were taken, `before` the term of the entry before that,
    and `floor` the position from which on the group's frames counted. `base` and `total` sum up
    everything before the entries: the offset behind it, -1 where that is not known, and the bytes
    of all entries with messages.
    """

    floor: int
    start: int
    before: int
    first: int
    base: int
    total: int
    positions: array[int]
    places: array[int]
    terms: array[int]
    behind: array[int]
    stamps: array[int]
    totals: array[int]
    lengths: array[int]
    kinds: array[int]

    def counts(self, floor: int) -> bool:
        """Whether this is said of the group as it is since log position `floor`."""
        return self.floor == floor or (self.start == GONE and self.floor > floor)

    @property
    def columns(self) -> tuple[array[int], ...]:
        """All columns, in the order in which they lie in a file."""
        return (
            self.positions,
            self.places,
            self.terms,
            self.behind,
            self.stamps,
            self.totals,
            self.lengths,
            self.kinds,
        )

    @property
    def last(self) -> int:
        """The index of the last entry."""
        return self.first + len(self.positions) - 1

    def above(self, start: int) -> Rows | None:
        """Return the entries from index `start` on; None if there are none."""
        count = start - self.first
        if count <= 0 and self.positions:
            return self
        if start > self.last or not self.positions:
            return None
        columns = (column[count:] for column in self.columns)
        base = max(self.base, self.behind[count - 1])
        return self._of(start, base, self.totals[count - 1], columns)

    def through(self, last: int) -> Rows:
        """Return the entries up to index `last`."""
        if last >= self.last:
            return self
        columns = (column[: max(last + 1 - self.first, 0)] for column in self.columns)
        return self._of(self.first, self.base, self.total, columns)

    def split(self, position: int) -> tuple[Rows, Rows | None]:
        """Return the entries below a log position, and those from there on; None if none are."""
        count = bisect_left(self.positions, position)
        if count == len(self.positions):
            return self, None
        below = (column[:count] for column in self.columns)
        now = self._of(self.first, self.base, self.total, below)
        return now, self.above(self.first + count)

    def _of(self, first: int, base: int, total: int, columns: Iterable[array[int]]) -> Rows:
        return Rows(self.floor, self.start, self.before, first, base, total, *columns)

    def pack(self, group: int) -> list[Buffer]:
        """Return the group's section of an index file: a head, then the columns, 8-aligned."""
        head = _HEAD.pack(
            group,
            self.floor,
            self.start,
            self.before,
            self.first,
            self.base,
            self.total,
            len(self.positions),
        )
        columns = (column.tobytes() for column in self.columns)
        return [head, *chain.from_iterable((data, padding(len(data))) for data in columns)]


def unpack(data: memoryview, at: int) -> tuple[int, Rows, int]:
    """Read the section at byte `at`: its group, its rows, the byte behind it.

    Raises `BadIndexFile` where it reaches past the end.
    """
    if len(data) - at < _HEAD.size:
        raise BadIndexFile("a section is cut short")
    group, floor, start, before, first, base, total, count = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    columns = []
    for code in _CODES:
        column = array(code)
        size = count * column.itemsize
        if len(data) - at < size:
            raise BadIndexFile(f"a section says {count:,} entries, which are not there")
        column.frombytes(data[at : at + size])
        columns.append(column)
        at += size + len(padding(size))
    return group, Rows(floor, start, before, first, base, total, *columns), at


def gone(floor: int) -> Rows:
    """Return the rows of a group of which nothing below log position `floor` is needed any more."""
    return Rows(floor, GONE, 0, GONE, -1, 0, *empty())


def empty() -> tuple[array[int], ...]:
    """Return columns without a row."""
    return tuple(array(code) for code in _CODES)
