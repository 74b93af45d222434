"""The row of segments: which file holds a position, which files wait to be used."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from weir.log.disk import Disk
from weir.log.segment import Segment, segment_name


@dataclass(frozen=True, slots=True)
class Spare:
    """A file to be made ahead of its use. `run` blocks for a whole segment's writing."""

    name: str
    size: int

    def run(self, disk: Disk) -> None:
        """Make the file; after an `OSError` (a full disk) it may be run again."""
        disk.create(self.name, self.size)


class Segments:
    """Segments in use, ordered by base position without a gap, and the spares."""

    __slots__ = ("_bases", "_number", "_row", "_size", "spares")

    def __init__(self, row: Iterable[Segment], numbers: Iterable[int], size: int) -> None:
        """Take the segments in order, all file numbers ever seen, and the size of new files."""
        self._row = list(row)
        self._bases = [segment.base for segment in self._row]
        self._number = max(numbers, default=0)
        self._size = size
        self.spares: list[str] = []

    def __len__(self) -> int:
        return len(self._row)

    @property
    def last(self) -> Segment:
        """The segment that is written to; there must be one."""
        return self._row[-1]

    def find(self, position: int) -> Segment:
        """Return the segment that holds a position; the position must have been handed out."""
        return self._row[bisect_right(self._bases, position) - 1]

    def plan(self) -> Spare:
        """Return a file to make, under a name that was never used."""
        self._number += 1
        return Spare(segment_name(self._number), self._size)

    def extend(self) -> tuple[Segment, Spare | None]:
        """Add a segment at the end of the row, and the file to make first if no spare waits."""
        missing = None if self.spares else self.plan()
        name = missing.name if missing else self.spares.pop(0)
        generation = self.last.generation + 1 if self._row else 1
        base = self.last.end if self._row else 0
        segment = Segment(name, generation, base, self._size)
        self._row.append(segment)
        self._bases.append(base)
        return segment, missing
