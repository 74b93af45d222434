"""The files of a log: their sizes, those in use and their readers, and those made ahead of their
use.

A roll need not wait, and a full disk leaves room (DESIGN §4). A segment that nobody needs any more
is a spare as it lies: its blocks are written, and its frames are of an earlier generation than the
next use's, so none of them will exist then. Its old header does no harm meanwhile: the checkpoint
names the file no more.

A new log takes little: its first segment may be smaller than those that follow, and it has no
spares until a part of that is used.

A spare of an earlier life is kept, because its blocks are the reserve of a disk that is full by
now. But its zeros may be only the page cache's, and its folder entry too: it counts once it was
zeroed again, off the loop. A roll that comes earlier takes it all the same, and its flush waits; so
it does for one that is being made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from weir.model.limits import BATCH_BYTES_MAX, CACHE_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT
from weir.storage.disk import Disk, Pacer, at_once
from weir.storage.errors import BadSettings
from weir.storage.format.frame import frame_size
from weir.storage.format.segment import BLOCK, CLASS_SPACE, SMALL_FRAME, Segment, segment_name

_ENTRIES_PER_SEGMENT_MIN = 4
_BASE = attrgetter("base")
#: Of files that were segments; the rest goes back to the disk.
_KEPT_MAX = 16


class Settings(msgspec.Struct, frozen=True):
    """Which log of which system this is, and its sizes in bytes."""

    log: int
    system: int
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    entry_bytes_max: int = BATCH_BYTES_MAX
    cache_bytes_max: int = CACHE_BYTES_DEFAULT
    #: Files kept ready, so that a roll and a full disk find room (DESIGN §4: two in reserve).
    spares: int = 2
    #: The size of the first segment of a new log, which has no files in reserve while it has hardly
    #: begun that; 0 for a log that begins with a whole segment and its reserve.
    first_segment_bytes: int = 0

    def validate(self) -> None:
        """Raise `BadSettings` where the log could not keep its promises."""
        if self.segment_bytes % BLOCK:
            raise BadSettings(
                f"segment_bytes is {self.segment_bytes:,}: give a multiple of {BLOCK:,}"
            )
        # A segment holds its header, the mark that begins a flush, and its END, besides entries.
        least_first = BLOCK + frame_size(self.entry_bytes_max) + 2 * SMALL_FRAME
        least = max(_ENTRIES_PER_SEGMENT_MIN * self.entry_bytes_max, least_first)
        if self.entry_bytes_max < 1 or self.segment_bytes < least:
            raise BadSettings(
                f"segment_bytes is {self.segment_bytes:,}: with entries of up to "
                f"{self.entry_bytes_max:,} bytes it must be at least {least:,}; raise it, or lower "
                "entry_bytes_max"
            )
        first = self.first_segment_bytes
        if first and (first % BLOCK or not least_first <= first <= self.segment_bytes):
            raise BadSettings(
                f"first_segment_bytes is {first:,}: give a multiple of {BLOCK:,} from "
                f"{least_first:,} to {self.segment_bytes:,}, or 0"
            )


class Segments:
    """Segments in use, ordered by base position; those that nobody needs any more are left out."""

    __slots__ = ("_bases", "_first_size", "_row", "_size", "copies", "ends", "pins")

    def __init__(self, row: Iterable[Segment], size: int, first_size: int = 0) -> None:
        """Take the segments in order, and the size of new ones; the first of all has `first_size`,
        if that is not 0.
        """
        self._row = list(row)
        self._bases = [segment.base for segment in self._row]
        self._size = size
        self._first_size = first_size or size
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

    @property
    def next_size(self) -> int:
        """The size of the segment that is added next."""
        return self._size if self._row else self._first_size

    def extend(self, name: str) -> Segment:
        """Add a segment in file `name` at the end of the row."""
        generation = self.last.generation + 1 if self._row else 1
        base = self.last.end if self._row else 0
        segment = Segment(name, generation, base, self.next_size)
        self._row.append(segment)
        self._bases.append(base)
        return segment


class Spare(msgspec.Struct, frozen=True):
    """A file to be made ahead of its use. `run` blocks for a whole segment's writing."""

    name: str
    size: int

    def run(self, disk: Disk, pace: Pacer = at_once) -> None:
        """Make the file, or zero it if it is there; after an `OSError` (a full disk) it may be run
        again.
        """
        if self.name in disk.names():
            disk.zero(self.name, pace)
        else:
            disk.create(self.name, self.size, pace)


class SpareFiles:
    """The spares of one log: ready ones, and those that are still to be made or zeroed."""

    __slots__ = (
        "_lately",
        "_making",
        "_number",
        "_old",
        "_ready",
        "_size",
        "_taken",
        "_taken_before",
        "_target",
        "_unasked",
        "_wanted",
        "awaited",
        "has_begun",
    )

    def __init__(
        self, old: Iterable[str], numbers: Iterable[int], size: int, wanted: int,
        is_new: bool = False,
    ) -> None:  # fmt: skip
        """Keep `old` files, and `wanted` of `size` bytes; `numbers` are all ever used in names. A
        log that `is_new` wants no files ahead until `begin`.
        """
        self._number = max(numbers, default=0)
        self._size = size
        #: How many are kept under load, and how many now.
        self._wanted = wanted
        self._target = 0 if is_new else wanted
        #: Whether files are made ahead of their use.
        self.has_begun = not is_new
        self._ready: list[str] = []
        #: Files of an earlier life that are not zeroed yet: to be asked for, and free to be taken.
        self._unasked = list(old)
        self._old = list(self._unasked)
        #: Those that a roll took before they were made or zeroed: while there are any, nothing may
        #: be written.
        self.awaited: set[str] = set()
        #: Asked for and not made yet, in that order.
        self._making: dict[str, None] = {}
        self._taken = self._taken_before = 0
        #: How many were taken since `trim`.
        self._lately = 0

    @property
    def ready_bytes(self) -> int:
        """The bytes of all files that are ready."""
        return len(self._ready) * self._size

    def begin(self) -> None:
        """Make files ahead of their use from now on, as many as are wanted."""
        self.has_begun, self._target = True, self._wanted

    def wants(self) -> Spare | None:
        """Return a file to make or to zero, then to be told to `made` or `failed`; None if enough.

        The name of a new file was never used before.
        """
        if self._unasked:
            spare = Spare(self._unasked.pop(0), self._size)
        elif len(self._ready) + len(self._making.keys() - self.awaited) < self._target:
            spare = self._plan()
        else:
            return None
        self._making[spare.name] = None
        return spare

    def made(self, spare: Spare) -> None:
        """A file is there, all zeros, durably."""
        name = spare.name
        self._making.pop(name, None)
        if name in self.awaited:
            self.awaited.discard(name)
            return
        if name in self._old:
            self._old.remove(name)
        self._ready.append(name)

    def failed(self, spare: Spare) -> None:
        """A file could not be made, or not be zeroed: it is asked for again."""
        self._making.pop(spare.name, None)
        if spare.name in self.awaited or spare.name in self._old:
            self._unasked.insert(0, spare.name)

    def recycle(self, names: Iterable[str]) -> list[str]:
        """Take files that were segments; return those that are too many.

        As many are kept as are wanted, and as were used since files came last: so many will be used
        again before more come, and no more room is taken than was before these were given up.
        """
        files = list(names)
        used = min(max(self._taken, self._taken_before), _KEPT_MAX)
        room = max(self._target + used - len(self._ready), 0)
        self._ready += files[:room]
        self._taken_before, self._taken = self._taken, 0
        return files[room:]

    def trim(self) -> list[str]:
        """Return the files that are too many for a log that takes few, to be removed.

        It is asked at regular times. Where at most one file was taken since the last time, one is
        enough to keep: a roll takes it, and the next is made before the next roll.
        """
        if self._lately <= 1:
            self._target = min(self._target, 1)
        kept = self._target + min(max(self._taken, self._taken_before), self._lately)
        self._lately = 0
        self._ready, surplus = self._ready[:kept], self._ready[kept:]
        return surplus

    def take(self, size: int = 0) -> tuple[str, Spare | None]:
        """Return the file to use next, and how to make it first if none waits here: of `size`
        bytes, if that is not 0.
        """
        self._taken += 1
        self._lately += 1
        if self._lately > 1:
            self._target = self._wanted
        if self._ready:
            return self._ready.pop(0), None
        if self._old:
            name = self._old.pop(0)
            self.awaited.add(name)
            return name, None
        for name in self._making:
            if name not in self.awaited:
                # Another one beside it might be one too many for the disk.
                self.awaited.add(name)
                return name, None
        missing = self._plan(size)
        return missing.name, missing

    def lend(self) -> tuple[str, Spare | None]:
        """Return a file for copies, and how to make it first: none of those in reserve is given."""
        self._taken += 1
        if len(self._ready) > self._target:
            return self._ready.pop(), None
        missing = self._plan()
        return missing.name, missing

    def _plan(self, size: int = 0) -> Spare:
        self._number += 1
        return Spare(segment_name(self._number), size or self._size)
