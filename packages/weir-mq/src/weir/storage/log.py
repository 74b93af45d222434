"""The log: append, flush, read. Pure but for the disk port; one owner calls it, on the loop.

    log.append(record)            stages frames, gives them positions
    flush = log.next_flush()      one in flight (DESIGN §5 Flush)
    flush.run(disk)               off the loop
    log.flushed(flush)            now they are durable, and readers may see them

A flush writes and syncs everything staged since the last one in one go. It begins with a MARK frame
that names how far the log was durable before it. Nothing in a flush counts until `run` has returned
and the log was told so.

A log is opened by `weir.storage.recovery.recover`, never by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from weir.codec import Buffer, padding
from weir.errors import TooLarge
from weir.storage.disk import Disk
from weir.storage.errors import BadRecord
from weir.storage.format.checkpoint import Body, Checkpoint
from weir.storage.format.frame import HEADER_SIZE as FRAME_HEADER_SIZE
from weir.storage.format.frame import Kind, mark_frame, pack
from weir.storage.format.index_file import IndexFile, gone
from weir.storage.format.record import HARD_STATE_SIZE, Base, HardState, Record, snapshot_records
from weir.storage.format.segment import SMALL_FRAME, Segment, pack_header
from weir.storage.group_index import GroupTable
from weir.storage.log_reader import Cache, LogReader
from weir.storage.segment_files import Segments, Settings, Spare, SpareFiles
from weir.storage.segment_lifecycle import Chore, SegmentLifecycle

#: What each entry is compared with: looking them up in their class takes longer than that.
_HARD_STATE, _BATCHES = Kind.HARD_STATE, Kind.BATCHES
#: A new log gets its reserve once such a part of its first segment is used.
_BEGUN_PARTS = 32
#: Frames that no group gives to the log.
_OWN_KINDS = (Kind.MARK, Kind.END, Kind.SNAPSHOT)
#: Those of which not all that can be written is right; of the others, what has the right size.
_CHECKED_KINDS = (*_OWN_KINDS, Kind.HARD_STATE)


class Run(msgspec.Struct, frozen=True):
    """Bytes that follow one another in one segment: one write. `missing` is made first."""

    name: str
    offset: int
    buffers: list[Buffer]
    missing: Spare | None = None


class Flush(msgspec.Struct, frozen=True):
    """Log positions `start` to `end`, with the tokens given to `append`, in order, and the bound
    that it makes durable.
    """

    start: int
    end: int
    runs: tuple[Run, ...]
    tokens: tuple[object, ...]
    bound: int = 0

    @property
    def missing_bytes(self) -> int:
        """The size of the files that it may have to make first."""
        return sum(run.missing.size for run in self.runs if run.missing)

    def run(self, disk: Disk) -> None:
        """Write and sync; blocks. When it returns, all is durable.

        After an `OSError` (no room for a new segment) it may be run again: the same bytes go to
        the same places. After `DiskFailed` it must not be.
        """
        for run in self.runs:
            if run.missing and run.missing.name not in disk.names():
                run.missing.run(disk)
            disk.write(run.name, run.offset, run.buffers)
        for run in self.runs:
            disk.sync(run.name)


class Staged:
    """What the next flush will write, in the order of its positions."""

    __slots__ = ("bound", "buffers", "runs", "start", "tokens")

    def __init__(self, start: int, bound: int, segment: Segment | None) -> None:
        """Begin at position `start` in a segment; None where it has no room left. The MARK names
        `bound`.
        """
        self.start = start
        self.bound = bound
        self.tokens: list[object] = []
        #: The bytes of the run that is open; appending to it is all that staging a frame takes.
        self.buffers: list[Buffer] = []
        self.runs: list[Run] = []
        if segment is not None:
            self.runs.append(Run(segment.name, start - segment.base, self.buffers))

    def open(self, name: str, offset: int, missing: Spare | None = None) -> None:
        """Begin a run at a byte of a file."""
        self.buffers = []
        self.runs.append(Run(name, offset, self.buffers, missing))


class ActiveSegment:
    """The segment that is written to: how far records may reach in it, and whose entries it has."""

    __slots__ = ("generation", "groups", "limit", "segment")

    def __init__(self, segment: Segment | None, groups: Iterable[int] = ()) -> None:
        """Take the last segment, None if there is none yet, and the groups with entries in it."""
        self.segment = segment
        self.limit = segment.limit if segment is not None else 0
        self.generation = segment.generation if segment is not None else 0
        self.groups = set(groups)

    def index_file(self, table: GroupTable) -> IndexFile:
        """Return where the entries lie, now that no more come."""
        segment = self.segment
        assert segment is not None
        found = ((group, table.index.get(group)) for group in sorted(self.groups))
        floors, base, end = table.floors, segment.base, segment.end
        return IndexFile(
            segment,
            [
                (group, gone(floors.get(group, 0)) if index is None else index.rows(base, end))
                for group, index in found
            ],
        )


class Log:
    """One numbered log: the frames of all its groups, in one row of segments."""

    def __init__(
        self,
        disk: Disk,
        settings: Settings,
        segments: Segments,
        spares: SpareFiles,
        groups: GroupTable,
        lifecycle: SegmentLifecycle,
        tail: int,
        bound: int,
    ) -> None:
        """Go on at position `tail`, below which all is durable, with the bound found there."""
        self.settings = settings
        self.segments = segments
        #: The files kept ready for the segments to come.
        self.spares = spares
        #: What is known of the groups.
        self.groups = groups
        #: What becomes of segments that are full, and the copies of what outlives them.
        self.lifecycle = lifecycle
        #: What lies in the log.
        self.reader = LogReader(
            settings.log, disk, segments, groups.index, Cache(settings.cache_bytes_max), tail
        )
        #: The position of the next frame.
        self.tail = tail
        self._active = ActiveSegment(None)
        if segments:
            last = segments.last
            used = (g for g, index in groups.index.items() if index.uses(last.base, last.end))
            self._active = ActiveSegment(last, used)
        #: What no flush has taken yet.
        self.staged: Staged | None = None
        self._flight: Flush | None = None
        self._marked = -1
        #: How far promises may go: durable, on its way, and as it was found.
        self.bound = self._next_bound = self.found_bound = bound
        #: How many frames were staged since the log was opened, marks aside.
        self.frames = 0

    @property
    def filled(self) -> float:
        """Which part of the last segment is used, from 0 to 1; 1 if a flush waits for the next."""
        last = self._active.segment
        if last is None or self.spares.awaited:
            return 1.0
        return (self.tail - last.base) / last.size

    @property
    def room_bytes(self) -> int:
        """What can still be written without a new file: the last segment's rest and the spares."""
        return self._active.limit - self.tail + self.spares.ready_bytes

    @property
    def tends_at(self) -> int:
        """The position from which the log may need files, or have some that are full."""
        segment = self._active.segment
        if segment is None:
            return 0
        if self.spares.has_begun:
            return segment.end
        return segment.first + segment.size // _BEGUN_PARTS

    def next_spare(self) -> Spare | None:
        """Return a file to make ahead of its use, to be told to `spares`; None if there are enough,
        or as long as hardly anything was written to a new log.
        """
        if not self.spares.has_begun and self.tail >= self.tends_at:
            self.spares.begin()
        return self.spares.wants()

    # -- writing -----------------------------------------------------------------------------

    def append(self, record: Record, token: object = None) -> int:
        """Stage a record and return its position; no byte of the payload is copied.

        An entry supersedes its group's entries at its index and above. The flush that makes it
        durable carries `token`. Raises `TooLarge` or `BadRecord` before anything is staged.
        """
        size, kind = record.size, record.kind
        groups = self.groups
        index = groups.index.get(record.group)
        is_plain = 0 < size <= self.settings.entry_bytes_max and kind not in _CHECKED_KINDS
        if not is_plain or size != sum(map(len, record.payload)):
            _check(record, self.settings.entry_bytes_max)
        supersedes = index is not None and index.check(record.index)
        if index is None and groups.is_gone(record.group):
            # So that a start knows it too, whatever the checkpoint that it finds says of the group.
            self.install(record.group, 0, 0, 0, 0, (b"",))
            index = groups.index[record.group]
        position = self._put(record, token)
        if kind is _HARD_STATE:
            groups.hard_states[record.group] = HardState.unpack(b"".join(record.payload))
        else:
            if index is None:
                index = groups.begin(record.group, record.index)
            elif supersedes:
                groups.supersede(position, index.position_of(record.index))
            index.add(
                record.index, record.term, kind, position, size,
                record.first_offset, record.next_offset, record.stamp, tags=record.tags,
            )  # fmt: skip
            self._active.groups.add(record.group)
            # A chunk is read once and late, if ever: it must not drive out what is new.
            if kind is not _BATCHES or record.first_offset < record.next_offset:
                self.reader.cache.put(position, record.payload, size)
        return position

    def install(
        self,
        group: int,
        index: int,
        term: int,
        base_index: int,
        base_term: int,
        data: Sequence[Buffer],
        token: object = None,
    ) -> int:
        """Stage a snapshot that a peer sent: the state of a group after entry `index`, of `term`.

        Returns the position of its first frame. The group begins anew there, with nothing of what
        it held: entries follow the one at `base_index`, of `base_term`. The flush that makes it
        durable carries `token`. Raises `BadRecord` before anything is staged.
        """
        if not 0 <= base_index <= index:
            raise BadRecord(f"a snapshot of entry {index} cannot stand on entry {base_index}")
        base = Base(base_index, base_term)
        state = self.groups.hard_states.get(group, HardState(0, 0, 0))
        room = self.settings.entry_bytes_max
        # No flush is taken in between: it holds all parts, or none.
        parts = list(snapshot_records(group, (index, term), base, state, data, room))
        places = [self._put(one, token if one is parts[-1] else None) for one in parts]
        self.lifecycle.install(group, places[0], index, base)
        return places[0]

    def next_flush(self) -> Flush | None:
        """Take everything staged; None if nothing is, while a flush is in flight, or while a spare
        that it needs is being zeroed.
        """
        if self._flight or self.staged is None or self.spares.awaited:
            return None
        staged, self.staged = self.staged, None
        runs, tokens = tuple(staged.runs), tuple(staged.tokens)
        self._flight = Flush(staged.start, self.tail, runs, tokens, staged.bound)
        return self._flight

    def flushed(self, flush: Flush) -> None:
        """Count a flush as durable, once its `run` has returned."""
        if flush is not self._flight:
            raise ValueError("this flush is not the one in flight: report each once, in order")
        self.reader.durable = flush.end
        self.bound = max(self.bound, flush.bound)
        self._flight = None

    def extend_bound(self, bound: int) -> None:
        """Stage a higher promise bound; it is `bound` once the flush that takes it is durable."""
        self._next_bound = bound
        staged = self.staged
        if staged is None:
            self._stage()
            self._marked = self.tail  # a lone MARK, unless more joins it
        else:
            staged.bound = bound
            position = self._place(staged, SMALL_FRAME)
            staged.buffers.extend(
                mark_frame(self._active.generation, position, staged.start, bound)
            )

    def mark_idle(self) -> None:
        """Stage a lone MARK unless the last flush was one or something is staged anyway.

        Without it the last flush before a quiet time would stay above the durable mark, where
        rot looks like a torn tail (DESIGN §4 Damage).
        """
        if not self.staged and self._marked != self.tail:
            self._stage()
            self._marked = self.tail

    # -- what is needed, and work on the disk -------------------------------------------------

    def drop_below(self, group: int, index: int) -> None:
        """Entries of a group below Raft index `index`, all in a durable checkpoint, are not needed:
        `read` finds none of them, and the next checkpoint frees the segments that hold no others.
        """
        self.lifecycle.drop_below(group, index)

    def drop_group(self, group: int) -> None:
        """Nothing of a group is needed any more. What is appended to it again begins it anew."""
        self.lifecycle.drop_group(group, self.tail)

    def checkpoint(self, applied: Mapping[int, int], body: bytes | Body) -> Checkpoint:
        """Return the next checkpoint: `body` is the broker's, and holds the state of each group
        through the Raft index in `applied`. Tell `checkpoint_saved` when it is durable.
        """
        return self.lifecycle.checkpoint(applied, body, self.reader.durable, self.bound)

    def freeable(self, needed: Mapping[int, int]) -> list[Segment]:
        """Return the segments that checkpoints may free, where entries of each group below the
        Raft index in `needed` go.
        """
        return self.lifecycle.freeable(needed, self.reader.durable)

    def checkpoint_saved(self) -> None:
        """The last checkpoint is durable, in both places."""
        self.lifecycle.saved()

    def next_chore(self) -> Chore | None:
        """Return work to be run off the loop, handed out once; None if there is none now."""
        return self.lifecycle.next_chore(self.reader.durable)

    # -- staging -----------------------------------------------------------------------------

    def _put(self, record: Record, token: object) -> int:
        """Stage a record's frame; return its position."""
        size = record.size
        self.frames += 1
        staged = self.staged or self._stage()
        pad = padding(size) if size & 7 else b""
        room = FRAME_HEADER_SIZE + size + len(pad)
        if self.tail + room > self._active.limit:
            self._roll(staged)
        position = self.tail
        self.tail = position + room
        staged.buffers.append(
            pack(
                self._active.generation, position, record.kind, record.payload, size,
                group=record.group, term=record.term, index=record.index,
            )
        )  # fmt: skip
        staged.buffers.extend(record.payload)
        if pad:
            staged.buffers.append(pad)
        if token is not None:
            staged.tokens.append(token)
        return position

    def _stage(self) -> Staged:
        """Begin what will be the next flush with its MARK.

        The mark's value is known already: one flush is in flight at most, so this one is written
        only when everything before it is durable.
        """
        start = self.tail
        active = self._active
        fits = start + SMALL_FRAME <= active.limit
        staged = self.staged = Staged(start, self._next_bound, active.segment if fits else None)
        if fits:
            position, self.tail = start, start + SMALL_FRAME
        else:
            position = self._place(staged, SMALL_FRAME)
        staged.buffers.extend(mark_frame(self._active.generation, position, start, staged.bound))
        return staged

    def _place(self, staged: Staged, room: int) -> int:
        """Take `room` bytes at the tail, in a new segment if they do not fit in this one."""
        if self.tail + room > self._active.limit:
            self._roll(staged)
        position = self.tail
        self.tail = position + room
        return position

    def _roll(self, staged: Staged) -> None:
        closing = self._active.segment
        if closing is not None:
            self.lifecycle.closed(self._active.index_file(self.groups))
            if self.tail == staged.start:
                staged.open(closing.name, self.tail - closing.base)
            staged.buffers.extend(closing.end_frame(self.tail))
        name, missing = self.spares.take(self.segments.next_size)
        segment = self.segments.extend(name)
        staged.open(segment.name, 0, missing)
        staged.buffers.append(pack_header(segment, self.settings.log, self.settings.system))
        self._active = ActiveSegment(segment)
        self.tail = segment.first


def _check(record: Record, largest: int) -> None:
    """Raise `TooLarge` above `largest` bytes, `BadRecord` if no group can give this."""
    size, kind = record.size, record.kind
    if size > largest:
        raise TooLarge(
            f"an entry of {size:,} bytes: the log takes up to {largest:,}; send smaller "
            "batches or raise entry_bytes_max",
            largest,
        )
    if size < 1 or size != sum(map(len, record.payload)):
        raise BadRecord(f"a record says {size:,} bytes and does not hold as many, or is empty")
    if kind in _OWN_KINDS:
        raise BadRecord(f"the log makes {kind.name} frames itself")
    if kind is _HARD_STATE and size != HARD_STATE_SIZE:
        raise BadRecord(f"a hard state of {size} bytes: pack one with HardState")
