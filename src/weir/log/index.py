"""Where each group's entries lie: Raft index and offset to a place, in packed arrays.

29 bytes an entry and no object, so that millions of entries stay outside the garbage collector's
view. It lives in memory and is rebuilt by the scan at start.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from weir.log.errors import BadRecord
from weir.log.frame import Kind


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an entry lies: position of its frame, bytes of its payload."""

    index: int
    term: int
    kind: Kind
    position: int
    length: int


class GroupIndex:
    """One group's entries, `first` to `last`, without a gap."""

    __slots__ = ("_behind", "_kinds", "_lengths", "_positions", "_terms", "first")

    def __init__(self, first: int) -> None:
        """Begin with nothing stored; `first` is the index of the first entry to come."""
        self.first = first
        self._positions = array("Q")
        self._lengths = array("I")
        self._terms = array("Q")
        self._kinds = array("B")
        # The offset behind each entry. An entry without messages repeats its predecessor's, so
        # the array never falls, and the entry that holds an offset is one binary search away.
        self._behind = array("q")

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def last(self) -> int:
        """The highest index stored; `first - 1` if there is none."""
        return self.first + len(self._positions) - 1

    @property
    def next_offset(self) -> int:
        """The offset behind the last message stored."""
        return self._behind[-1] if self._behind else 0

    def add(
        self, index: int, term: int, kind: Kind, position: int, length: int, next_offset: int
    ) -> None:
        """Append an entry; those at its index and above are superseded (Raft's conflict rule).

        `next_offset` is the offset behind its last message, -1 if it has none. Raises `BadRecord`
        if an index would be left out.
        """
        count = index - self.first
        if count != len(self._positions):
            self._truncate(count, index)
        self._positions.append(position)
        self._lengths.append(length)
        self._terms.append(term)
        self._kinds.append(kind)
        self._behind.append(max(next_offset, self.next_offset))

    def check(self, index: int) -> None:
        """Raise `BadRecord` if an entry at `index` would leave a gap."""
        if index > self.last + 1 and self._positions:
            raise BadRecord(f"entry {index} cannot follow entry {self.last}: one is missing")

    def _truncate(self, count: int, index: int) -> None:
        self.check(index)
        if count < 0 or not self._positions:
            self.first, count = index, 0
        for column in (self._positions, self._lengths, self._terms, self._kinds, self._behind):
            del column[count:]

    def get(self, index: int) -> Stored | None:
        """Return where the entry at `index` lies; None if it is not stored."""
        at = index - self.first
        return self._stored(at) if 0 <= at < len(self._positions) else None

    def holding(self, offset: int, last_index: int, durable: int) -> Iterator[tuple[Stored, int]]:
        """Yield the entries with messages from the one that holds `offset` on, with the offset
        behind each; none above Raft index `last_index` or at log position `durable` or above.
        """
        stop = min(last_index - self.first + 1, len(self._positions))
        at = bisect_right(self._behind, offset)
        while at < stop and self._positions[at] < durable:
            offset = self._behind[at]
            yield self._stored(at), offset
            at = bisect_right(self._behind, offset, at + 1)

    def _stored(self, at: int) -> Stored:
        return Stored(
            self.first + at,
            self._terms[at],
            Kind(self._kinds[at]),
            self._positions[at],
            self._lengths[at],
        )
