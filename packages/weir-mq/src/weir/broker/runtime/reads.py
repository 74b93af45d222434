"""Reads under way: from the cache at once, from the disk by way of the host.

What a reading returned opens as batches, however the cache or the log has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from weir.broker.api.effects import StartRead, Work
from weir.broker.api.events import ReadDone
from weir.broker.records.staging import joined, published
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.filtering import Slices
from weir.broker.runtime.outbox import Outbox
from weir.broker.state.ranges import Ranges
from weir.broker.state.staging import PublishedBatch, StagingTable
from weir.codec import Buffer, total
from weir.errors import DamagedRange, Refused, Unavailable
from weir.model.batch import HEADER_SIZE, Batch
from weir.storage.disk import Disk
from weir.storage.format.frame import Kind
from weir.storage.log_reader import LogReader, Reading

#: So many staged batches at once: what they take shows only on the disk.
_STAGED_AT_ONCE = 64
#: Gets the payloads, and the refusal if there are none.
Then = Callable[[Sequence[Buffer], Refused | None], None]


class Pause(msgspec.Struct, frozen=True):
    """Nothing to read: it is done when the shard has seen to whatever else came meanwhile."""

    log: int
    cached: None = None
    size: int = 0

    def pin(self) -> None:
        """There is nothing to keep."""

    def release(self) -> None:
        """There is nothing to let go."""

    def run(self, disk: Disk) -> Sequence[bytes]:
        """Return nothing."""
        return ()


class PublishedReading:
    """Batches that were staged, as their publication gave them offsets and a stamp. It is used as a
    `weir.storage.log_reader.Reading` is: which batches these are, only the partition's state knows.
    """

    __slots__ = ("_batches", "_reading", "cached", "log", "next_offset", "size")

    def __init__(
        self, log: int, batches: Sequence[PublishedBatch], reading: Reading | None,
        cached: Sequence[tuple[Buffer, ...]],
    ) -> None:  # fmt: skip
        """Give these `batches`, whose entries a `reading` finds on the disk, or that are `cached`
        in memory.
        """
        self.log = log
        self._batches = batches
        self._reading = reading
        self.next_offset = batches[-1].behind
        self.size = reading.size if reading is not None else 0
        self.cached = None if reading is not None else self._stamped(map(joined, cached))

    @property
    def skipped(self) -> tuple[tuple[int, int], ...]:
        """Nothing is passed over."""
        return ()

    @property
    def from_disk(self) -> Reading | None:
        """What reads the entries, unless they are in memory."""
        return self._reading

    def pin(self) -> None:
        """Keep the files from being used again."""
        if self._reading is not None:
            self._reading.pin()

    def release(self) -> None:
        """Let them be used again; once for each `pin`."""
        if self._reading is not None:
            self._reading.release()

    def run(self, disk: Disk) -> Sequence[Buffer]:
        """Read, verify and stamp; blocks. See `Reading.run`."""
        assert self._reading is not None  # what is cached is not run
        return self._stamped(self._reading.run(disk))

    def _stamped(self, payloads: Iterable[Buffer]) -> tuple[Buffer, ...]:
        found: list[Buffer] = []
        for payload, batch in zip(payloads, self._batches, strict=False):
            found += published(payload, batch.stamp, batch.first)
        return tuple(found)

    def reached(self, payloads: Sequence[Buffer]) -> int:
        """Return the offset behind the last message of what `run` returned."""
        return self._batches[len(payloads) // 2 - 1].behind

    def is_cut(self, payloads: Sequence[Buffer]) -> bool:
        """Whether more messages have the stamp of the last one of what `run` returned."""
        return not self._batches[len(payloads) // 2 - 1].is_last

    @property
    def is_alike(self) -> bool:
        """Whether several batches here have one stamp."""
        return not all(batch.is_last for batch in self._batches[:-1])


#: What gives messages: of entries, or of what was staged.
MessageReading = Reading | PublishedReading


def read_messages(
    reader: LogReader, group: int, staging: StagingTable, offset: int, max_bytes: int,
    last_index: int, behind_offset: int, wanted: frozenset[str] | None = None,
) -> MessageReading | None:  # fmt: skip
    """Plan to read whole batches from the one that holds `offset` on, wherever they lie: at least
    one, then as many as stay within `max_bytes` and hold offsets below `behind_offset`.

    What follows in another place is left for the next call. If tags are `wanted`, entries without
    one are passed over; of what was staged all batches are read. None if there is nothing to read;
    see `LogReader.read`.
    """
    if not len(staging.published):
        return reader.read(group, offset, max_bytes, last_index, behind_offset, wanted)
    if not staging.published.holds(offset):
        behind_offset = staging.published.next_first(offset, behind_offset)
        return reader.read(group, offset, max_bytes, last_index, behind_offset, wanted)
    batches: list[PublishedBatch] = []
    cached: list[tuple[Buffer, ...]] = []
    size = 0
    for batch in staging.published.of(offset):
        payload = _cached(reader, group, batch.entry)
        length = total(payload) if payload is not None else 0
        is_full = len(batches) >= _STAGED_AT_ONCE or size + length > max_bytes
        if batches and (is_full or batch.first >= behind_offset or bool(cached) != bool(payload)):
            break
        batches.append(batch)
        size += length
        if payload is not None:
            cached.append(payload)
    if cached:
        return PublishedReading(reader.log, batches, None, cached)
    entries = [batch.entry for batch in batches]
    reading = reader.read_entries(group, entries, max_bytes, last_index, Kind.STAGED)
    if reading is None:
        return None
    return PublishedReading(reader.log, batches[: len(reading.entries)], reading, ())


def _cached(reader: LogReader, group: int, entry: int) -> tuple[Buffer, ...] | None:
    """Return the payload of a durable entry if it lies in memory."""
    stored = reader.stored(group, entry)
    if stored is None or stored.position >= reader.durable:
        return None
    return reader.cache.get(stored.position)


class _Started(NamedTuple):
    """A reading, and who is told what it came to: by a function, for any room may read, and what it
    makes of bytes, a grant or a snapshot, is its own.
    """

    work: Work
    then: Then


class Reads:
    """Hands readings to the host and the answers back; charges the bytes meanwhile."""

    __slots__ = ("_budget", "_next", "_outbox", "_under_way", "queue", "slices")

    def __init__(self, outbox: Outbox, budget: Budget) -> None:
        """Begin with none."""
        self._outbox = outbox
        self._budget = budget
        self._next = 1
        #: Slices of batches, for readers of some tags.
        self.slices = Slices()
        #: Readings that wait for room.
        self.queue: deque[_Started] = deque()
        self._under_way: dict[int, _Started] = {}

    def start(self, reading: Work, then: Then, at_once: bool = False) -> None:
        """Call `then` with the payloads: now if they are cached, else after the host's read.

        A reading waits, without any memory, until the budget has room for it; but not `at_once`,
        for who bounds these by other means, and may hold up what gives the room back.
        """
        if reading.cached is not None:
            self._outbox.counts.reads_cached += 1
            then(reading.cached, None)
            return
        reading.pin()
        if at_once:
            self._start(_Started(reading, then))
            return
        self.queue.append(_Started(reading, then))
        self.start_waiting()

    def start_waiting(self) -> None:
        """Start the readings that wait, in turn, as far as the budget has room."""
        while self.queue and self._budget.has_room(self.queue[0].work.size):
            self._start(self.queue.popleft())

    def _start(self, started: _Started) -> None:
        reading = started.work
        self._outbox.counts.reads_disk += reading.size > 0  # else it asks no disk
        self._budget.take(reading.size)
        ticket, self._next = self._next, self._next + 1
        self._under_way[ticket] = started
        self._outbox.put(StartRead(reading.log, ticket, reading))

    def under_way(self, ticket: int) -> Work:
        """Return what the host reads under a number."""
        return self._under_way[ticket].work

    def done(self, event: ReadDone, comes: bool = False) -> None:
        """Pass on what the host read. What is damaged `comes` from other nodes, or does not."""
        reading, then = self._under_way.pop(event.ticket)
        reading.release()
        self._budget.release(reading.size)
        failure = _refusal(event)
        if comes:
            failure = Unavailable(
                "these messages are damaged on this node, which fetches them from the others: ask "
                f"again shortly ({event.failure})"
            )
        then(event.payloads, failure)


def _refusal(event: ReadDone) -> Refused | None:
    if not event.failure:
        return None
    if event.damaged_at >= 0:
        return DamagedRange(event.failure, event.damaged_at)
    return Unavailable(event.failure)


def batches_in(payloads: Sequence[Buffer]) -> Iterator[Batch]:
    """Open batches that lie glued together, or cut behind their headers, as the cache has them.

    Raises `BadBatch` for bytes that are none.
    """
    pieces = iter(payloads)
    for piece in pieces:
        whole = b"".join((piece, next(pieces))) if len(piece) == HEADER_SIZE else piece
        at = 0
        while at < len(whole):
            batch = Batch(whole, at)
            at += batch.header.total_size
            yield batch


def without(payloads: Sequence[Buffer], voids: Ranges) -> list[Buffer]:
    """Leave the batches out that are void."""
    kept: list[Buffer] = []
    for batch in batches_in(payloads):
        behind = batch.header.next_offset
        if not voids.covers(behind - 1, behind):
            kept.append(batch.view)
    return kept
