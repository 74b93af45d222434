"""The row of segments: which file holds a position, and who is reading it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator

from weir.log.segment import Segment


class Segments:
    """Segments in use, ordered by base position; those that nobody needs any more are left out."""

    __slots__ = ("_bases", "_row", "_size", "pins")

    def __init__(self, row: Iterable[Segment], size: int) -> None:
        """Take the segments in order, and the size of new ones."""
        self._row = list(row)
        self._bases = [segment.base for segment in self._row]
        self._size = size
        #: How many readings are under way, by the name of the file.
        self.pins: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._row)

    @property
    def last(self) -> Segment:
        """The segment that is written to; there must be one."""
        return self._row[-1]

    def find(self, position: int) -> Segment:
        """Return the segment that holds a position; the position must have been handed out."""
        return self._row[bisect_right(self._bases, position) - 1]

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
