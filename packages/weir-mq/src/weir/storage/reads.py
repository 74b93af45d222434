"""Reading entries back: from the cache at once, or from the disk off the loop, verified."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weir.codec.fields import Buffer
from weir.model.header import headers
from weir.storage.disk import Disk
from weir.storage.errors import LogDamaged
from weir.storage.format.frame import HEADER_SIZE, BadFrame, frame_size, verify
from weir.storage.format.segment import Segment
from weir.storage.group_index import Stored

#: What keeping a payload takes besides its own bytes.
ENTRY_BYTES = 256


class Cache:
    """The latest payloads by log position, up to a number of bytes; the oldest leave first."""

    __slots__ = ("_bytes", "_bytes_max", "_kept")

    def __init__(self, bytes_max: int) -> None:
        """Hold at most `bytes_max` bytes, what it takes to keep them included."""
        self._bytes_max = bytes_max
        self._bytes = 0
        # Not a plain dict: taking its first key again and again walks over all removed ones.
        self._kept: OrderedDict[int, tuple[tuple[Buffer, ...], int]] = OrderedDict()

    def put(self, position: int, payload: tuple[Buffer, ...], length: int) -> None:
        """Keep a payload of `length` bytes; one over the whole budget is not kept."""
        size = length + ENTRY_BYTES
        if size > self._bytes_max:
            return
        self._kept[position] = (payload, size)
        self._bytes += size
        while self._bytes > self._bytes_max:
            self._bytes -= self._kept.popitem(last=False)[1][1]

    def get(self, position: int) -> tuple[Buffer, ...] | None:
        """Return the payload of the frame at a position, if it is still here."""
        kept = self._kept.get(position)
        return kept[0] if kept else None


#: Reading over a gap this small is cheaper than another call: a mark, or a small group's frame.
_GAP_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Span:
    """Entries of one segment that lie so close together that one read fetches them."""

    segment: Segment
    entries: tuple[Stored, ...]

    def run(self, disk: Disk, log: int, group: int | None) -> list[bytes]:
        """Return the verified payloads; `group` None takes whichever the frames name."""
        return list(self.payloads(disk, log, group))

    def payloads(self, disk: Disk, log: int, group: int | None) -> Iterator[bytes]:
        """Yield what `run` returns, up to the first entry that is damaged."""
        start = self.entries[0].place
        end = self.entries[-1].place + frame_size(self.entries[-1].length)
        segment = self.segment
        if not segment.base <= start < segment.end:  # it stands in for one that lay in no other
            where = "before" if start < segment.base else "behind"
            reason = f"the segment {where} this one is missing or unreadable"
            raise LogDamaged(log, segment.name, self.entries[0].position, reason)
        try:
            data = memoryview(disk.read(segment.name, start - segment.base, end - start))
        except FileNotFoundError as gone:
            position = self.entries[0].position
            raise LogDamaged(log, segment.name, position, "the file is missing") from gone
        for stored in self.entries:
            yield _payload(data, stored.place - start, stored, segment, log, group)


@dataclass(frozen=True, slots=True)
class Reading:
    """Whole entries of one group: `cached` if it needs no disk, else to be `run` off the loop.

    `next_offset` is the offset behind the last message; `size` the bytes of all payloads. A reading
    that is not run at once pins its segments: `pin`, then `release` when it was run or given up.
    """

    log: int
    group: int
    next_offset: int
    size: int
    cached: tuple[Buffer, ...] | None
    spans: tuple[Span, ...] = ()
    #: The log's own count of readings, by file.
    pins: Counter[str] | None = None

    @property
    def entries(self) -> tuple[Stored, ...]:
        """Where the entries lie that are read from the disk, in the order of the payloads."""
        return tuple(stored for span in self.spans for stored in span.entries)

    def pin(self) -> None:
        """Keep the files of this reading from being used again."""
        if self.pins is not None:
            self.pins.update(span.segment.name for span in self.spans)

    def release(self) -> None:
        """Let them be used again; once for each `pin`."""
        if self.pins is not None:
            self.pins.subtract(span.segment.name for span in self.spans)

    def run(self, disk: Disk) -> list[bytes]:
        """Read and verify the payloads, in order, up to the first that cannot be read; blocks.

        Raises `LogDamaged` or `OSError` if that is the first of all: an entry takes none of those
        before it along, and the next reading, which begins with it, tells what is wrong.
        """
        payloads: list[bytes] = []
        try:
            for span in self.spans:
                for payload in span.payloads(disk, self.log, self.group):
                    payloads.append(payload)
        except (LogDamaged, OSError):
            if not payloads:
                raise
        return payloads

    def reached(self, payloads: Sequence[Buffer]) -> int:
        """Return the offset behind the last message of what `run` returned."""
        if self.cached is not None or len(payloads) == len(self.entries):
            return self.next_offset
        return headers(payloads[-1])[-1].next_offset


def spans_of(placed: Sequence[tuple[Segment, Stored]]) -> tuple[Span, ...]:
    """Gather entries, in the order of their positions, into as few reads as are cheap."""
    spans: list[tuple[Segment, list[Stored]]] = []
    end = -1
    for segment, stored in placed:
        if spans and spans[-1][0] is segment and 0 <= stored.place - end <= _GAP_BYTES:
            spans[-1][1].append(stored)
        else:
            spans.append((segment, [stored]))
        end = stored.place + frame_size(stored.length)
    return tuple(Span(segment, tuple(entries)) for segment, entries in spans)


def _payload(
    data: memoryview, at: int, stored: Stored, segment: Segment, log: int, group: int | None
) -> bytes:
    position = stored.position
    try:
        frame = verify(data, at, generation=segment.generation, position=position)
    except BadFrame as bad:
        raise LogDamaged(log, segment.name, position, str(bad)) from bad
    wanted = (stored.index, stored.term, stored.kind, stored.length)
    if (frame.index, frame.term, frame.kind, frame.length) != wanted or (
        group is not None and frame.group != group
    ):
        raise LogDamaged(log, segment.name, position, f"another frame lies there: {frame}")
    start = at + HEADER_SIZE
    return bytes(data[start : start + frame.length])
