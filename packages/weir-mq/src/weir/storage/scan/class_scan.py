"""What class segments hold, as a start finds it: by their index files, or frame by frame.

Copies keep the positions that they had, and a start takes them in that order among the segments of
new frames. Behind those they would supersede what came after them (counterexample 12).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count

from weir.storage.compaction.retention_classes import ClassSegment
from weir.storage.disk import Readable
from weir.storage.errors import BadIndexFile, LogDamaged
from weir.storage.format.checkpoint import UNKNOWN, Kept
from weir.storage.format.frame import BadFrame, BadPayload, Frame, frame_size, next_frame, verify
from weir.storage.format.index_file import IndexFile, read_index
from weir.storage.format.rows import Rows
from weir.storage.format.segment import BLOCK, Segment


class FoundCopies:
    """The copies that a checkpoint names, to be taken in the order of their positions."""

    def __init__(self, log: int, kept: Mapping[int, Kept]) -> None:
        """Begin with none; `log` is the log's number, and `kept` what the checkpoint says."""
        self._kept = kept
        self.segments: list[ClassSegment] = []
        #: What of them is damaged, and the place of the first such frame.
        self.holes: list[LogDamaged] = []
        self.lost_place: int | None = None
        self.bad_places: set[int] = set()
        #: By group, the start that index files know of, perhaps a later one than the checkpoint,
        #: and the term of the entry before it.
        self.starts: dict[int, tuple[int, int]] = {}
        self._log = log
        self._heap: list[tuple[int, int, Rows | Frame, int]] = []
        self._numbers = count()

    def read(self, disk: Readable, named: Iterable[tuple[Segment, int]], sound: set[str]) -> None:
        """Read class segments, each up to its byte; blocks. `sound` names files that are there."""
        for segment, end in named:
            found = ClassSegment(segment, end, end, end, lost=segment.name not in sound)
            self.segments.append(found)
            if found.lost:
                self._damaged(found, BLOCK, "this segment is missing or unreadable")
            elif disk.size(segment.name) < segment.size:
                found.damaged = True  # no write may reach past the end of a file
            try:
                index = read_index(disk, segment)
            except BadIndexFile:
                pass
            else:
                if index.end <= end:
                    self._known(found, index)
            if found.indexed < end:
                found.unknown = found.lost
                if not found.lost:
                    self._walk(found, disk.read(segment.name, 0, end))

    def below(self, position: int) -> Iterator[tuple[int, Rows | Frame, int]]:
        """Take what is left below a log position: group, entries, the place of a single frame."""
        while self._heap and self._heap[0][0] < position:
            _, _, item, at = heappop(self._heap)
            if isinstance(item, Frame):
                yield item.group, item, at
                continue
            now, later = item.split(position)
            if later is not None:
                heappush(self._heap, (later.positions[0], next(self._numbers), later, at))
            yield at, now, 0

    def restart(self, group: int) -> None:
        """Copies of what a group held count no more."""
        self.starts.pop(group, None)
        for one in self.segments:
            one.forget(group)

    def _known(self, found: ClassSegment, index: IndexFile) -> None:
        found.indexed = index.end
        for group, rows in index.sections:
            found.runs.setdefault(group, [])
            if not rows.counts(self._kept.get(group, UNKNOWN).floor):
                continue
            self.starts[group] = max((rows.start, rows.before), self.starts.get(group, (0, 0)))
            if rows.positions:
                found.note(group, rows.first, rows.last)
            first = rows.positions[0] if rows.positions else 0
            heappush(self._heap, (first, next(self._numbers), rows, group))

    def _walk(self, found: ClassSegment, data: bytes) -> None:
        """Take all frames that no index file tells of; where one is bad, go on behind it."""
        segment, view, at = found.segment, memoryview(data), found.indexed
        if len(data) < found.saved:
            self._damaged(found, len(data), "the file is cut short")
            found.unknown = True
        while at < len(data):
            try:
                frame = verify(view, at, generation=segment.generation, position=None)
            except BadFrame as bad:
                known = bad.frame.position if isinstance(bad, BadPayload) else None
                self._damaged(found, at, str(bad), known)
                if not isinstance(bad, BadPayload):
                    found.unknown = True
                    at = next_frame(data, at + 8, generation=segment.generation, base=None)
                    continue
                frame = bad.frame
                self.bad_places.add(segment.base + at)
            if frame.position >= self._kept.get(frame.group, UNKNOWN).floor:
                found.note(frame.group, frame.index, frame.index)
            found.runs.setdefault(frame.group, [])
            place = segment.base + at
            heappush(self._heap, (frame.position, next(self._numbers), frame, place))
            at += frame_size(frame.length)

    def _damaged(
        self, found: ClassSegment, at: int, reason: str, position: int | None = None
    ) -> None:
        found.damaged = True
        place = found.segment.base + at
        if self.lost_place is None:
            self.lost_place = place
        position = place if position is None else position
        self.holes.append(LogDamaged(self._log, found.segment.name, position, reason))
