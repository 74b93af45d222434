"""The row of segments: which file holds a position, and who is reading it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter

from weir.storage.format.segment import CLASS_SPACE, Segment

_BASE = attrgetter("base")


class Segments:
    """Segments in use, ordered by base position; those that nobody needs any more are left out."""

    __slots__ = ("_bases", "_row", "_size", "copies", "ends", "pins")

    def __init__(self, row: Iterable[Segment], size: int) -> None:
        """Take the segments in order, and the size of new ones."""
        self._row = list(row)
        self._bases = [segment.base for segment in self._row]
        self._size = size
        #: Class segments, ordered by base, and the byte of each file where its frames end.
        self.copies: list[Segment] = []
        self.ends: dict[str, int] = {}
        #: How many readings are under way, by the name of the file.
        self.pins: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, segment: Segment) -> bool:
        return bool(self._row) and self.find(segment.base) == segment

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._row)

    @property
    def last(self) -> Segment:
        """The segment that is written to; there must be one."""
        return self._row[-1]

    def find(self, place: int) -> Segment:
        """Return the segment that holds a place that was handed out. Of one that is missing, that
        is the one before it, or the first there is.
        """
        if place >= CLASS_SPACE:
            return self.copies[bisect_right(self.copies, place, key=_BASE) - 1]
        return self._row[max(bisect_right(self._bases, place) - 1, 0)]

    def drop(self, segment: Segment) -> None:
        """Take a segment other than the last out of the row."""
        at = self._bases.index(segment.base)
        del self._row[at], self._bases[at]

    def extend(self, name: str) -> Segment:
        """Add a segment in file `name` at the end of the row."""
        generation = self.last.generation + 1 if self._row else 1
        base = self.last.end if self._row else 0
        segment = Segment(name, generation, base, self._size)
        self._row.append(segment)
        self._bases.append(base)
        return segment
