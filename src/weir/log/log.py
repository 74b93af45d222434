"""The log: append, flush, read. Pure but for the disk port; one owner calls it, on the loop.

    log.append(record)            stages frames, gives them positions
    flush = log.next_flush()      one in flight (DESIGN §5 Flush)
    flush.run(disk)               off the loop
    log.flushed(flush)            now they are durable, and readers may see them

A log is opened by `weir.log.recovery.recover`, never by hand.
"""

from __future__ import annotations

from weir.codec.fields import Buffer, padding
from weir.errors import TooLarge
from weir.log.cache import Cache
from weir.log.disk import Disk
from weir.log.errors import BadRecord
from weir.log.flush import Flush, Staged
from weir.log.frame import Kind, frame_size, pack
from weir.log.index import GroupIndex, Stored
from weir.log.reading import Reading, spans_of
from weir.log.record import HARD_STATE_SIZE, Record
from weir.log.reserve import Reserve, Spare
from weir.log.segment import SMALL_FRAME, Segment, mark_frame, pack_header
from weir.log.segments import Segments
from weir.log.settings import Settings

_OWN_KINDS = (Kind.MARK, Kind.END)


class Log:
    """One numbered log: the frames of all its groups, in one row of segments."""

    def __init__(
        self,
        disk: Disk,
        settings: Settings,
        segments: Segments,
        reserve: Reserve,
        groups: dict[int, GroupIndex],
        tail: int,
    ) -> None:
        """Go on at position `tail`, below which all is durable."""
        self.settings = settings
        self._disk = disk
        self._segments = segments
        self._reserve = reserve
        self._groups = groups
        self._cache = Cache(settings.cache_bytes_max)
        self._tail = tail
        self._durable = tail
        self._limit = segments.last.limit if segments else tail
        self._generation = segments.last.generation if segments else 0
        self._staged: Staged | None = None
        self._flight: Flush | None = None
        self._marked = -1

    @property
    def durable(self) -> int:
        """All frames below this position are durable."""
        return self._durable

    @property
    def tail(self) -> int:
        """The position of the next frame."""
        return self._tail

    @property
    def room_bytes(self) -> int:
        """What can still be written without a new file: the last segment's rest and the spares."""
        return self._limit - self._tail + self._reserve.ready_bytes

    @property
    def waiting(self) -> bool:
        """Whether something is staged that no flush has taken yet."""
        return self._staged is not None

    # -- writing -----------------------------------------------------------------------------

    def append(self, record: Record, token: object = None) -> int:
        """Stage a record and return its position; no byte of the payload is copied.

        An entry supersedes its group's entries at its index and above. The flush that makes it
        durable carries `token`. Raises `TooLarge` or `BadRecord` before anything is staged.
        """
        size, kind = record.size, record.kind
        index = self._groups.get(record.group)
        self._check(record, index)
        staged = self._staged or self._stage()
        position = self._place(staged, frame_size(size))
        staged.buffers.append(
            pack(
                self._generation,
                position,
                kind,
                record.payload,
                size,
                group=record.group,
                term=record.term,
                index=record.index,
            )
        )
        staged.buffers.extend(record.payload)
        if size & 7:
            staged.buffers.append(padding(size))
        if token is not None:
            staged.tokens.append(token)
        if kind is not Kind.HARD_STATE:
            if index is None:
                index = self._groups[record.group] = GroupIndex(record.index)
            index.add(record.index, record.term, kind, position, size, record.next_offset)
            if kind is Kind.BATCHES:
                self._cache.put(position, record.payload, size)
        return position

    def next_flush(self) -> Flush | None:
        """Take everything staged; None if nothing is, while a flush is in flight, or while a spare
        that it needs is being zeroed.
        """
        if self._flight or not self._staged or self._reserve.holds_back:
            return None
        self._flight = self._staged.seal(self._tail)
        self._staged = None
        return self._flight

    def flushed(self, flush: Flush) -> None:
        """Count a flush as durable, once its `run` has returned."""
        if flush is not self._flight:
            raise ValueError("this flush is not the one in flight: report each once, in order")
        self._durable = flush.end
        self._flight = None

    def mark_idle(self) -> None:
        """Stage a lone MARK unless the last flush was one or something is staged anyway.

        Without it the last flush before a quiet time would stay above the durable mark, where
        rot looks like a torn tail (DESIGN §4 Damage).
        """
        if not self._staged and self._marked != self._tail:
            self._stage()
            self._marked = self._tail

    def wants_spare(self) -> Spare | None:
        """Return a file to make off the loop, then to be told to `spare_ready` or `spare_failed`;
        None if enough.
        """
        return self._reserve.wants()

    def spare_ready(self, spare: Spare) -> None:
        """Take a made file into the reserve."""
        self._reserve.made(spare)

    def spare_failed(self, spare: Spare) -> None:
        """There was no room for a file: `wants_spare` asks again."""
        self._reserve.failed(spare)

    def _check(self, record: Record, index: GroupIndex | None) -> None:
        size, largest = record.size, self.settings.entry_bytes_max
        if size > largest:
            raise TooLarge(
                f"an entry of {size:,} bytes: the log takes up to {largest:,}; send smaller "
                "batches or raise entry_bytes_max",
                largest,
            )
        if size < 1 or size != sum(map(len, record.payload)):
            raise BadRecord(f"a record says {size:,} bytes and does not hold as many, or is empty")
        if record.kind in _OWN_KINDS:
            raise BadRecord(f"{record.kind.name} frames are the log's own")
        if record.kind is Kind.HARD_STATE and size != HARD_STATE_SIZE:
            raise BadRecord(f"a hard state of {size} bytes: pack one with HardState")
        if index is not None:
            index.check(record.index)

    def _stage(self) -> Staged:
        """Begin what will be the next flush with its MARK.

        The mark's value is known already: one flush is in flight at most, so this one is written
        only when everything before it is durable.
        """
        start = self._tail
        staged = self._staged = Staged(start)
        if start + SMALL_FRAME <= self._limit:
            segment = self._segments.last
            staged.open(segment.name, start - segment.base)
        position = self._place(staged, SMALL_FRAME)
        staged.buffers.extend(mark_frame(self._generation, position, start))
        return staged

    def _place(self, staged: Staged, room: int) -> int:
        """Take `room` bytes at the tail, in a new segment if they do not fit in this one."""
        if self._tail + room > self._limit:
            self._roll(staged)
        position = self._tail
        self._tail = position + room
        return position

    def _roll(self, staged: Staged) -> None:
        if self._segments:
            closing = self._segments.last
            if self._tail == staged.start:
                staged.open(closing.name, self._tail - closing.base)
            staged.buffers.extend(closing.end_frame(self._tail))
        name, missing = self._reserve.take()
        segment = self._segments.extend(name)
        staged.open(segment.name, 0, missing)
        staged.buffers.append(pack_header(segment, self.settings.log, self.settings.system))
        self._tail, self._limit = segment.first, segment.limit
        self._generation = segment.generation

    # -- reading -----------------------------------------------------------------------------

    def read(
        self,
        group: int,
        offset: int,
        max_bytes: int,
        last_index: int,
        behind_offset: int | None = None,
    ) -> Reading | None:
        """Plan to read whole BATCHES entries from the one that holds `offset` on.

        At least one entry, then as many as stay within `max_bytes` of payload and hold offsets
        below `behind_offset`; none above Raft index `last_index`, none that is not durable. None
        if there is nothing to read.
        """
        index = self._groups.get(group)
        if index is None:
            return None
        placed: list[tuple[Segment, Stored]] = []
        cached: list[Buffer] = []
        size, next_offset = 0, -1
        for stored, behind in index.holding(offset, last_index, self._durable):
            payload = self._cache.get(stored.position)
            if behind_offset is not None and next_offset >= behind_offset:
                break
            # All from the cache or all from the disk: the next call takes what is left.
            if placed and (size + stored.length > max_bytes or (cached and payload is None)):
                break
            if payload is not None and (cached or not placed):
                cached.extend(payload)
            placed.append((self._segments.find(stored.position), stored))
            size += stored.length
            next_offset = behind
        if not placed:
            return None
        log = self.settings.log
        if cached:
            return Reading(log, group, next_offset, size, tuple(cached))
        return Reading(log, group, next_offset, size, None, spans_of(placed))

    def stored(self, group: int, index: int) -> Stored | None:
        """Return where a group's entry lies, durable or not; None if it is not stored."""
        entries = self._groups.get(group)
        return entries.get(index) if entries else None

    def load(self, stored: Stored) -> bytes:
        """Read one durable entry's payload, verified; blocks. Raises `LogDamaged`."""
        segment = self._segments.find(stored.position)
        (span,) = spans_of([(segment, stored)])
        return span.run(self._disk, self.settings.log, None)[0]
