"""What is asked of where a group's entries lie: one binary search in packed arrays each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

import msgspec

from weir.storage.format.frame import KINDS, Kind, frame_size
from weir.storage.format.rows import empty

#: The stamp of a lost entry until the next messages tell: what is not known to be old must not go
#: by age.
UNKNOWN = (1 << 63) - 1


class Stored(msgspec.Struct, frozen=True):
    """Where an entry lies: position and place of its frame, bytes of its payload.

    They differ for a copy, which has the position of what it is a copy of.
    """

    index: int
    term: int
    kind: Kind
    position: int
    length: int
    place: int


class IndexLookups:
    """The reading side of `weir.storage.entries.group_index.GroupIndex`."""

    __slots__ = (
        "_behind",
        "_columns",
        "_kinds",
        "_lengths",
        "_places",
        "_positions",
        "_stamps",
        "_terms",
        "_total",
        "_totals",
        "base",
        "before",
        "first",
        "floor",
    )

    def __init__(self, first: int, floor: int = 0, before: int = 0) -> None:
        """Begin with nothing stored; `first` is the index of the first entry to come, `before` the
        term of the entry before it. The group's frames count from log position `floor` on.
        """
        self.first = first
        self.floor = floor
        #: The term of the entry before `first`; 0 where it is not known.
        self.before = before
        #: The offset behind everything before `first`; -1 until the first messages tell.
        self.base = -1
        self._total = 0
        self._columns = empty()
        # An entry without messages repeats its predecessor's offset behind, stamp and sum of bytes,
        # so these columns never fall, and a place in them is one binary search away.
        self._positions, self._places, self._terms, self._behind, self._stamps, *rest = (
            self._columns
        )
        self._totals, self._lengths, self._kinds = rest

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def last(self) -> int:
        """The highest index stored; `first - 1` if there is none."""
        return self.first + len(self._positions) - 1

    @property
    def next_offset(self) -> int:
        """The offset behind the last message stored."""
        return max(self._behind[-1] if self._behind else self.base, 0)

    @property
    def batch_bytes(self) -> int:
        """The bytes of all entries with messages; chunks, which have no offset, do not count."""
        return self._totals[-1] - self._total if self._totals else 0

    # -- by log position ---------------------------------------------------------------------

    def span(self, start: int, end: int, room: int) -> tuple[int, int, int]:
        """Return the first and the last index between two log positions, and about the bytes that
        their frames take, or less if that is more than `room`; the last lies below the first if
        there are none.
        """
        a, b = bisect_left(self._positions, start), bisect_left(self._positions, end)
        size = (b - a) * frame_size(1)
        if size <= room:
            size += sum(self._lengths[a:b])
        return self.first + a, self.first + b - 1, size

    def reaches(self, start: int, end: int) -> bool:
        """Whether entries lie around two log positions: without a look at those in between."""
        positions = self._positions
        return bool(positions) and positions[0] < end and positions[-1] >= start

    def uses(self, start: int, end: int) -> bool:
        """Whether an entry lies between two log positions."""
        at = bisect_left(self._positions, start)
        return at < len(self._positions) and self._positions[at] < end

    def last_below(self, position: int) -> int:
        """Return the index of the last entry below a log position; `first - 1` if there is none."""
        return self.first + bisect_left(self._positions, position) - 1

    def behind(self, index: int) -> int:
        """Return the offset behind entry `index`; -1 where no messages came yet."""
        at = min(index - self.first, len(self._behind) - 1)
        return max(self._behind[at], self.base) if at >= 0 else self.base

    def position_of(self, index: int) -> int | None:
        """Return the position of the entry at `index`, or of the first one if that lies above."""
        at = max(index - self.first, 0)
        return self._positions[at] if at < len(self._positions) else None

    # -- by index, offset, stamp and size ------------------------------------------------------

    def get(self, index: int) -> Stored | None:
        """Return where the entry at `index` lies; None if it is not stored."""
        at = index - self.first
        return self._stored(at) if 0 <= at < len(self._positions) else None

    def term_of(self, index: int) -> int | None:
        """Return the term of the entry at `index`; None if it is not stored."""
        at = index - self.first
        return self._terms[at] if 0 <= at < len(self._terms) else None

    def of_kind(self, kind: Kind, first: int) -> list[int]:
        """Return the indices, from `first` on, of the entries of a rare kind."""
        kinds, found = self._kinds.tobytes(), []
        at = kinds.find(kind, max(first - self.first, 0))
        while at >= 0:
            found.append(self.first + at)
            at = kinds.find(kind, at + 1)
        return found

    def holding(self, offset: int, last_index: int, durable: int) -> Iterator[tuple[Stored, int]]:
        """Yield the entries with messages from the one that holds `offset` on, with the offset
        behind each; none above Raft index `last_index` or at log position `durable` or above, and
        none at all if `offset` lies before the first message stored.
        """
        if offset < self.base:
            return
        stop = min(last_index - self.first + 1, len(self._positions))
        at = bisect_right(self._behind, offset)
        while at < stop and self._positions[at] < durable:
            offset = self._behind[at]
            yield self._stored(at), offset
            at = bisect_right(self._behind, offset, at + 1)

    def at_stamp(self, stamp: int, durable: int) -> tuple[int, int] | None:
        """Return Raft index and first offset of the first entry whose last message has `stamp` or
        a higher one; None if none below log position `durable` has.
        """
        return self._messages(bisect_left(self._stamps, stamp), durable)

    def at_offset(self, offset: int, durable: int) -> tuple[int, int] | None:
        """Return Raft index and first offset of the entry that holds `offset`; None if none below
        log position `durable` does.
        """
        return self._messages(bisect_right(self._behind, offset), durable)

    def stamp_of(self, offset: int) -> int | None:
        """Return the stamp of the entry that holds `offset`; None if none is stored, or known."""
        at = bisect_right(self._behind, offset)
        if offset < self.base or at == len(self._stamps) or self._stamps[at] == UNKNOWN:
            return None
        return self._stamps[at]

    def at_size(
        self, size: int, durable: int, beside: Callable[[int], int] = lambda _: 0
    ) -> tuple[int, int] | None:
        """Return Raft index and first offset of the last entry from which on all messages together
        take at least `size` bytes, of the first one if they never do; None if no messages lie below
        log position `durable`. `beside` says what messages from an offset on take elsewhere.
        """
        stop = bisect_left(self._positions, durable)
        if not stop:
            return None
        whole = self._totals[stop - 1]

        def without(row: int) -> int:
            """Return minus the bytes that are left from a row on, so that they rise."""
            before = self._totals[row - 1] if row else self._total
            first = max(self._behind[row - 1], self.base) if row else self.base
            return before - whole - beside(first)

        start = bisect_right(range(stop), -size, key=without) - 1
        last = bisect_left(self._behind, self._behind[stop - 1], 0, stop)
        return self._messages(min(max(start, 0), last), durable)

    def _messages(self, at: int, durable: int) -> tuple[int, int] | None:
        """Return index and first offset of the first entry with messages from row `at` on."""
        first = max(self._behind[at - 1], self.base) if at else self.base
        at = bisect_right(self._behind, first, at)
        if at == len(self._positions) or self._positions[at] >= durable:
            return None
        return self.first + at, first

    def _stored(self, at: int) -> Stored:
        return Stored(
            self.first + at,
            self._terms[at],
            KINDS[self._kinds[at]],
            self._positions[at],
            self._lengths[at],
            self._places[at],
        )
