"""What lies in a log: where entries are, what they hold, where a stamp or a size cuts them.

Entries are read back from the cache at once, or from the disk off the loop, verified.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile

import msgspec

from weir.codec import Buffer
from weir.model.batch import headers
from weir.storage.disk import Disk
from weir.storage.errors import LogDamaged
from weir.storage.format.frame import HEADER_SIZE, BadFrame, Kind, frame_size, verify
from weir.storage.format.record import Raw
from weir.storage.format.segment import Segment
from weir.storage.group_index import Filled, GroupIndex, LostEntries, Stored, size_between
from weir.storage.scrub import MendPiece, ScrubPiece
from weir.storage.segment_files import Segments

#: So many entries are looked at at once for who wants some tags: a few milliseconds.
PASSED_ENTRIES_MAX = 4_096
#: Behind every log position.
_ANYWHERE = 1 << 63
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


class Span(msgspec.Struct, frozen=True):
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


class Reading(msgspec.Struct, frozen=True):
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
    #: Runs of offsets [first, next) that were passed over: no message there has a wanted tag.
    skipped: tuple[tuple[int, int], ...] = ()

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


class LogReader:
    """Finds and reads what lies in a log; scrubs and mends it, too."""

    __slots__ = ("_disk", "_groups", "_segments", "cache", "durable", "log")

    def __init__(
        self,
        log: int,
        disk: Disk,
        segments: Segments,
        groups: dict[int, GroupIndex],
        cache: Cache,
        durable: int,
    ) -> None:
        """Read log number `log`, of whose frames those below position `durable` are durable."""
        #: The number of the log.
        self.log = log
        self._disk = disk
        self._segments = segments
        self._groups = groups
        #: The latest payloads, to be read from memory.
        self.cache = cache
        #: All frames below this position are durable, as the log says after each flush.
        self.durable = durable

    def read(
        self,
        group: int,
        offset: int,
        max_bytes: int,
        last_index: int,
        behind_offset: int | None = None,
        wanted: frozenset[str] | None = None,
    ) -> Reading | None:
        """Plan to read whole BATCHES entries from the one that holds `offset` on.

        At least one entry, then as many as stay within `max_bytes` of payload and hold offsets
        below `behind_offset`; none above Raft index `last_index`, none that is not durable. If
        tags are `wanted`, entries that have no message with one are passed over, and
        `PASSED_ENTRIES_MAX` entries are looked at, at most. None if there is nothing to read, or
        `offset` lies below the log's start.
        """
        index = self._groups.get(group)
        if index is None:
            return None
        placed: list[tuple[Segment, Stored]] = []
        cached: list[Buffer] = []
        skipped: list[tuple[int, int]] = []
        size, at = 0, offset
        entries = index.holding(offset, last_index, self.durable, wanted)
        for stored, behind in entries if wanted is None else islice(entries, PASSED_ENTRIES_MAX):
            if behind_offset is not None and at >= behind_offset:
                break
            if stored is None:
                skipped.append((at, behind))
                at = behind
                continue
            payload = self.cache.get(stored.position)
            # All from the cache or all from the disk: the next call takes what is left.
            if placed and (size + stored.length > max_bytes or (cached and payload is None)):
                break
            if payload is not None and (cached or not placed):
                cached.extend(payload)
            placed.append((self._segments.find(stored.place), stored))
            size += stored.length
            at = behind
        if not placed and not skipped:
            return None
        log, passed = self.log, tuple(skipped)
        if cached or not placed:
            return Reading(log, group, at, size, tuple(cached), skipped=passed)
        spans = spans_of(placed)
        return Reading(log, group, at, size, None, spans, self._segments.pins, passed)

    def read_entries(
        self,
        group: int,
        indexes: Sequence[int],
        max_bytes: int,
        last_index: int,
        kind: Kind = Kind.BATCHES,
    ) -> Reading | None:
        """Plan to read entries of a `kind` by their Raft indexes, in this order, from the disk.

        At least one entry, then as many as stay within `max_bytes` of payload; none above Raft
        index `last_index`, none that is not durable. None if the first is none of that kind, and
        was not lost.
        """
        some = takewhile(last_index.__ge__, indexes)
        return self._plan(group, some, max_bytes, kind)

    def read_raw(self, group: int, lo: int, hi: int, max_bytes: int) -> Reading | None:
        """Plan to read entries [lo, hi) of any kind, as they lie on the disk, for a peer that lacks
        them; `Reading.entries` says which they are.

        At least one entry, then as many as stay within `max_bytes` of payload; none that is not
        durable. None if there is none at `lo`.
        """
        return self._plan(group, range(lo, hi), max_bytes)

    def cached(self, group: int, lo: int, hi: int, max_bytes: int) -> list[Raw] | None:
        """Return entries [lo, hi) of any kind from memory, durable or not: at least one, then as
        many as are there and stay within `max_bytes` of payload. None if the first is not there.
        """
        found: list[Raw] = []
        size = 0
        for at in range(lo, hi):
            stored = self.stored(group, at)
            payload = self.cache.get(stored.position) if stored is not None else None
            if stored is None or payload is None or (found and size + stored.length > max_bytes):
                break
            size += stored.length
            found.append(Raw(at, stored.term, stored.kind, payload, stored.length))
        return found or None

    def _plan(
        self, group: int, indexes: Iterable[int], max_bytes: int, kind: Kind | None = None
    ) -> Reading | None:
        placed: list[tuple[Segment, Stored]] = []
        size = 0
        for at in indexes:
            stored = self.stored(group, at)
            # What stands in for a lost entry has no term, and no kind of its own: reading it fails.
            if stored is None or (stored.term and kind not in (None, stored.kind)):
                break
            if stored.position >= self.durable or (placed and size + stored.length > max_bytes):
                break
            size += stored.length
            placed.append((self._segments.find(stored.place), stored))
        if not placed:
            return None
        spans = spans_of(placed)
        return Reading(self.log, group, -1, size, None, spans, self._segments.pins)

    def cut_by_stamp(self, group: int, stamp: int) -> tuple[int, int] | None:
        """Return Raft index and first offset of the first durable entry that holds a message
        stamped `stamp` or higher; None if there is none. Messages before that one may lie in the
        entry too; all below it are older than `stamp`.
        """
        index = self._groups.get(group)
        return index.at_stamp(stamp, self.durable) if index else None

    def entry_above(self, group: int, stamp: int) -> tuple[Stored, int] | None:
        """Return the first entry, durable or not, that holds a message stamped above `stamp`, and
        the offset of its first message; None if there is none.
        """
        index = self._groups.get(group)
        cut = index.at_stamp(stamp + 1, _ANYWHERE) if index is not None else None
        if index is None or cut is None or (stored := index.get(cut[0])) is None:
            return None
        return stored, cut[1]

    def bytes_between(self, group: int, first: int, behind: int) -> int:
        """Return about how many bytes messages [first, behind) take: of an entry that holds others
        as well, in proportion.
        """
        index = self._groups.get(group)
        return size_between(index, first, behind) if index and first < behind else 0

    def cut_by_offset(self, group: int, offset: int) -> tuple[int, int] | None:
        """Return Raft index and first offset of the durable entry that holds a message's offset;
        None if that is not stored.
        """
        index = self._groups.get(group)
        return index.at_offset(offset, self.durable) if index else None

    def cut_by_size(
        self, group: int, size: int, beside: Callable[[int], int]
    ) -> tuple[int, int] | None:
        """Return Raft index and first offset of the last durable entry from which on messages take
        at least `size` bytes, of the first one if they never do; None if there is none. `beside`
        says what messages from an offset on take elsewhere: the chunks of their values.
        """
        index = self._groups.get(group)
        return index.at_size(size, self.durable, beside) if index else None

    def stamp_of(self, group: int, offset: int) -> int | None:
        """Return the stamp of the last message of the entry that holds `offset`; None if none."""
        index = self._groups.get(group)
        return index.stamp_of(offset) if index else None

    def group_bytes(self, group: int) -> int:
        """Return the bytes of all entries with messages that a group holds; chunks apart."""
        index = self._groups.get(group)
        return index.batch_bytes if index else 0

    def next_offset(self, group: int) -> int:
        """Return the offset behind the last message that a group holds, durable or not."""
        index = self._groups.get(group)
        return index.next_offset if index is not None else 0

    def of_kind(self, group: int, kind: Kind, first: int) -> list[int]:
        """Return the Raft indices, from `first` on, of a group's entries of a rare kind."""
        index = self._groups.get(group)
        return [] if index is None else index.of_kind(kind, first)

    def base(self, group: int) -> tuple[int, int]:
        """Return index and term of the entry before the first one that a group holds; (0, 0) where
        there was none, and term 0 where it is not known any more.
        """
        index = self._groups.get(group)
        return (index.first - 1, index.before) if index is not None else (0, 0)

    def stored(self, group: int, index: int) -> Stored | None:
        """Return where a group's entry lies, durable or not; None if it is not stored."""
        entries = self._groups.get(group)
        return entries.get(index) if entries is not None else None

    def term_of(self, group: int, index: int) -> int | None:
        """Return the term of a group's entry, durable or not; None if it is not stored."""
        entries = self._groups.get(group)
        return entries.term_of(index) if entries is not None else None

    def hold_closed(self, position: int) -> Segment | None:
        """Return the first closed and durable segment from a place on; its file is not used
        again before `let_go`. None if there is none.
        """
        for segment in chain(self._segments, self._segments.copies):
            if segment.class_:
                durable = segment.name in self._segments.ends
            else:
                durable = segment.end <= self.durable
            if durable and segment.base >= position:
                self._segments.pins[segment.name] += 1
                return segment
        return None

    def scrub(self, segment: Segment) -> ScrubPiece:
        """Return the first piece of a scrub of a segment that is held."""
        return ScrubPiece(self.log, segment, end=self._segments.ends.get(segment.name, 0))

    def let_go(self, segment: Segment) -> None:
        """Let a segment's file be used again, once for each `hold_closed`."""
        self._segments.pins[segment.name] -= 1

    def load(self, stored: Stored) -> bytes:
        """Read one durable entry's payload, verified; blocks: for a start, never for the loop.

        Raises `LogDamaged`.
        """
        return self.load_all([stored])[0]

    def load_all(self, entries: Sequence[Stored]) -> list[bytes]:
        """Return what `load` does of each of a group's entries, in as few reads as are cheap."""
        find, log = self._segments.find, self.log
        spans = spans_of([(find(stored.place), stored) for stored in entries])
        return [payload for span in spans for payload in span.payloads(self._disk, log, None)]

    # -- mending -----------------------------------------------------------------------------

    def mend(self, group: int, index: int, payload: Buffer) -> MendPiece | None:
        """Return what fills in an entry's payload that rotted, to be run off the loop, then to be
        told to `mended`; its file is kept meanwhile. None if the entry is not needed any more.
        """
        stored = self.stored(group, index)
        if stored is None:
            return None
        segment = self._segments.find(stored.place)
        self._segments.pins[segment.name] += 1
        return MendPiece(self.log, segment, group, stored, payload)

    def mended(self, piece: MendPiece) -> bool:
        """A piece is done, whatever came of it: let go of its file. Whether its entry still lies
        there.
        """
        self.let_go(piece.segment)
        return self.stored(piece.group, piece.stored.index) == piece.stored

    def disbelieve(self, group: int, indexes: Iterable[int]) -> None:
        """Count entries as lost that recovery found to be in doubt: reading them fails."""
        index = self._groups.get(group)
        if index is not None:
            LostEntries(index).add_doubtful(indexes)

    def fill(self, group: int, filled: Mapping[int, Filled]) -> None:
        """All that a group lacked is mended: let these entries tell what they hold."""
        index = self._groups.get(group)
        if index is not None and filled:
            LostEntries(index).fill(filled)
