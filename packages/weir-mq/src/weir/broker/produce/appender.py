"""The leader's way in: check, dedupe, stamp, gather, propose (DESIGN §5 Produce).

This state exists only while the partition is led here. Everything in it describes entries that are
proposed or about to be; the replicated memory is `PartitionState`. Chunks and closing batches are
judged by what is committed and what is under way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from weir.broker.api.counts import Counts
from weir.broker.records.entries import BatchRecord, of_batches, record_of
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller
from weir.broker.state.dedupe import Answer, Known, chunk_answer
from weir.broker.state.state import PartitionState
from weir.codec.fields import Buffer
from weir.errors import (
    BadBatch,
    BadChecksum,
    BadRequest,
    Fenced,
    MissingLibrary,
    Overloaded,
    PartitionEnded,
    ProducerExpired,
    SequenceGap,
    SequenceReused,
    TooLarge,
    Unavailable,
    ValueLost,
)
from weir.model.batch import Batch
from weir.model.chunks import Piece, References
from weir.model.header import HEADER_SIZE, Columns, Header, crc_holds, stamped
from weir.model.ids import partition_of
from weir.model.limits import (
    DEDUPE_HORIZON_MS,
    ENTRY_BYTES_MAX,
    OPEN_RUNS_MAX,
    OPEN_VALUE_MS,
    OPEN_VALUES_MAX,
    RETRY_AFTER_MS,
    VALUE_RUNS_MAX,
)
from weir.model.stamp import milliseconds_of, stamp_at
from weir.order.clock import HybridClock, Time
from weir.protocol.client.messages import Confirm

_ORIGIN = int(Columns.ORIGIN)
_LARGE = int(Columns.CHUNK | Columns.REFERENCES)
_SCATTERED = int(Columns.SCATTERED)


#: A value this close to its end counts as over: the stamp that decides is given a moment later.
_MARGIN_MS = 10_000
_NONE = -1
_AGAIN = "open another producer, and send the value again from its beginning"


class PublishWaiter(NamedTuple):
    """A client that waits for the confirm of its batch, at the `Level` that it asked for."""

    caller: Caller
    level: int
    is_repeat: bool = False


@dataclass(slots=True)
class Pending:
    """A batch that is stamped and not committed yet, and all clients that wait for it."""

    record: BatchRecord
    head: bytes
    body: Buffer
    #: When it was put in line, in milliseconds of the monotonic clock.
    since_ms: int
    #: Bytes of the budget that come back with the commit.
    charged: int = 0
    #: Told once it is applied, or sooner that it takes long: see `Appender.stall`.
    clients: list[PublishWaiter] = field(default_factory=list)
    #: Those who need not wait for more than this node's own disk.
    early: list[PublishWaiter] = field(default_factory=list)


class Appender:
    """Takes batches into one partition, in order, while this node leads it."""

    __slots__ = (
        "_ahead",
        "_early",
        "_entry_bytes_max",
        "_group",
        "_next_offset",
        "_preparing",
        "_state",
        "_time",
        "_values",
        "clock",
        "counts",
        "flying",
        "is_closed",
        "staged",
    )

    def __init__(
        self,
        group: Group,
        state: PartitionState,
        time: Time,
        clock: HybridClock,
        counts: Counts,
    ) -> None:
        """Begin to lead; `clock` stamps above the fence of the election, and above the log."""
        self._group = group
        self._state = state
        self._time = time
        self.clock = clock
        self.counts = counts
        self._next_offset = state.next_offset
        self._entry_bytes_max = min(ENTRY_BYTES_MAX, group.log.settings.entry_bytes_max)
        #: Producers with batches under way: what will be known of them once all is committed.
        self._ahead: dict[int, Known] = {}
        self._values = ValuesUnderWay(state)
        #: What is stamped and not proposed yet, in order.
        self.staged: deque[Pending] = deque()
        #: By rising Raft index, the batches of proposed entries for which somebody waits `early`.
        self._early: deque[tuple[int, list[Pending]]] = deque()
        #: What was given a stamp and is not committed yet, by producer, epoch and sequence.
        self.flying: dict[tuple[int, int, int], Pending] = {}
        #: Producers with a part of a scattering under way.
        self._preparing: dict[int, Pending] = {}
        #: Whether nothing new is taken: the partition is sealed, or about to be.
        self.is_closed = bool(state.sealed)

    @property
    def group_id(self) -> int:
        """The partition's group."""
        return self._group.id

    def wall_us(self) -> int:
        """Microseconds since 1970."""
        return self._time.wall_ms() * 1000

    @property
    def next_offset(self) -> int:
        """The offset that the next batch will get."""
        return self._next_offset

    @property
    def lowest_under_way(self) -> int:
        """The lowest stamp that was given and is not committed yet; 0 if there is none."""
        for pending in self.flying.values():
            return pending.record.stamp
        return 0

    def open(self, batch: memoryview, is_part: bool = False) -> Batch:
        """Open a client's batch, which `is_part` of a scattering or not: the first thing that
        happens to it, at a cost by its bytes alone.

        Raises `BadChecksum` if it changed on the way, and `BadRequest` if it was meant so: then
        sending it again would not help, and every reader would refuse it for ever.
        """
        try:
            opened = Batch(batch)
        except BadBatch as error:
            kind = BadRequest if crc_holds(batch) else BadChecksum
            raise kind(str(error)) from None
        header = opened.header
        if header.total_size != len(batch):
            raise BadRequest("one batch a request: bytes follow the batch")
        try:
            opened.check(self._group.id)
        except BadBatch as error:
            raise BadChecksum(f"{error}: send it again") from None
        if header.columns & _ORIGIN:
            raise BadRequest("only a shard writes an origin column")
        if bool(header.columns & _SCATTERED) is not is_part:
            raise BadRequest("parts of scatterings, and no other batches, are sent by SCATTER")
        return opened

    def look_into(self, batch: Batch) -> None:
        """Raise `BadRequest` for a batch that readers could not open; compressed ones inflate.

        What is inflated lives as long as `batch` does. The last thing before a batch is taken:
        only who may publish, and what is next in line, costs it.
        """
        try:
            batch.check_columns()
        except BadBatch as error:
            raise BadRequest(str(error)) from None
        except MissingLibrary as error:
            raise BadRequest(
                f'this broker cannot check it, use compression="none": {error}'
            ) from None

    def judge(self, header: Header) -> Pending | Confirm | None:
        """Decide by the whole log, pending entries included: None if the batch is the next one.

        Else the pending batch that it repeats, or the answer that was given. Raises `SequenceGap`
        (rewind to `detail`), `SequenceReused`, `Fenced` or `ProducerExpired`; and `PartitionEnded`
        for what is new where nothing is taken any more.
        """
        producer, epoch, sequence = header.producer, header.epoch, header.sequence
        if producer in self._preparing or producer in self._state.scatterings.producers:
            raise Unavailable("a scattering of this producer is not decided: try again shortly")
        known = self._ahead.get(producer) or self._state.producers.known(producer)
        if known is None and self._is_old(producer):
            raise ProducerExpired(f"producer {producer} is past the dedupe horizon: open a new one")
        if known is not None and epoch < known.epoch:
            raise Fenced(f"producer {producer} goes on in epoch {known.epoch}", known.epoch)
        expected = known.next_sequence if known is not None and epoch == known.epoch else 0
        if sequence >= expected and self.is_closed:
            self.check_open()
        if sequence > expected:
            raise SequenceGap(f"sequence {sequence} came, {expected} is missing", expected)
        if sequence == expected:
            return None
        pending = self.flying.get((producer, epoch, sequence))
        if pending is not None:
            if (pending.record.hash, pending.record.messages) == (header.hash, header.count):
                return pending
            raise SequenceReused(f"sequence {sequence} is under way with other bytes")
        answer = self._state.producers.answer(producer, sequence)
        if answer is None or (answer.hash, answer.messages) != (header.hash, header.count):
            raise SequenceReused(
                f"sequence {sequence} was used with other bytes, or too long ago to tell"
            )
        return _told(answer, True)

    def check_open(self) -> None:
        """Raise `PartitionEnded` where nothing is taken any more, for good; or `Unavailable`, as
        long as another leader might take it still.
        """
        if not self.is_closed:
            return
        partition = partition_of(self._group.id)
        if not self._state.sealed:
            raise Unavailable(f"partition {partition} is about to end: try again shortly")
        raise PartitionEnded(
            f"partition {partition} has ended, and this is not in it: publish to another one",
            partition,
        )

    @property
    def under_way(self) -> set[tuple[int, int]]:
        """The producers, and their epochs, of what is accepted and not committed yet."""
        return {(producer, epoch) for producer, epoch, _ in self.flying}

    def has_under_way(self, producer: int) -> bool:
        """Return whether a batch of a producer is accepted and not committed yet."""
        return producer in self._ahead

    def check_seen(self, seen: int) -> None:
        """Raise `StampTooFar` if a client's last seen stamp lies too far ahead."""
        self.clock.check_seen(self._time.wall_ms(), seen)

    def check_large(self, batch: Batch) -> None:
        """Raise `ValueLost` or `Overloaded` unless a chunk or closing batch fits what is there."""
        if batch.header.columns & _LARGE:
            self._values.check(batch, self._now_ms())

    @property
    def is_preparing(self) -> bool:
        """Whether a part of a scattering is under way."""
        return bool(self._preparing)

    def preparing(self, producer: int) -> Pending | None:
        """Return the part of a scattering that a producer has under way, if there is one."""
        return self._preparing.get(producer)

    def decided(self, producer: int) -> None:
        """A producer's scattering is decided: the state knows what it may send next, unless that is
        under way already.
        """
        if producer not in self._preparing:
            self._ahead.pop(producer, None)

    def accept(self, batch: Batch, seen: int, taken: int = 0) -> Pending:
        """Stamp a batch that `judge` and `check_seen` let pass, and put it in line; as `taken` from
        the clock, if that is given.
        """
        wall = self._time.wall_ms()
        stamp, offset = taken or self.clock.stamp(wall, seen), self._next_offset
        record = record_of(batch, offset, stamp)
        head, since = stamped(batch.view, stamp, offset), self._time.monotonic_ms()
        pending = Pending(record, head, batch.view[HEADER_SIZE:], since)
        self._next_offset = record.next_offset
        self._ahead[record.producer] = Known(record.epoch, record.sequence + record.messages)
        self.flying[record.producer, record.epoch, record.sequence] = pending
        if record.large is not None:
            self._values.accepted(record)
        if record.scattered is not None:
            self._preparing[record.producer] = pending
        self.staged.append(pending)
        return pending

    def confirm_chunk(self, record: BatchRecord, duplicate: bool) -> Confirm:
        """Return what to tell about a chunk that is applied: the index of its entry."""
        answer = self._state.producers.answer(record.producer, record.sequence)
        assert answer is not None  # its producer's last one
        return _told(answer, duplicate)

    def cut(self) -> None:
        """Propose what is staged: entries of up to 1 MiB together, or one larger batch alone."""
        staged = self.staged
        while staged and self._group.accepts:
            buffers: list[Buffer] = []
            records: list[BatchRecord] = []
            early: list[Pending] = []
            size = 0
            while staged and (not records or self._joins(records[-1], size)):
                pending = staged.popleft()
                buffers += (pending.head, pending.body)
                records.append(pending.record)
                size += pending.record.stored
                if pending.early:
                    early.append(pending)
            index = self._group.propose(of_batches(buffers, records, size))
            if early:
                self._group.report_durable(index)
                self._early.append((index, early))

    def _joins(self, last: BatchRecord, size: int) -> bool:
        """Whether the next batch shares an entry with `last`; a chunk never does, so that
        references to entries are references to chunks, nor a part of a scattering, so that what is
        undecided, or void, is whole entries.
        """
        following = self.staged[0]
        alone = _is_alone(last) or _is_alone(following.record)
        return not alone and size + following.record.stored <= self._entry_bytes_max

    def durable(self, index: int) -> list[Pending]:
        """This node's own disk has its entries through `index`: return the batches in these for
        which somebody waits `early`.
        """
        found: list[Pending] = []
        while self._early and self._early[0][0] <= index:
            found += self._early.popleft()[1]
        return found

    def committed(self, record: BatchRecord) -> Pending | None:
        """Take note that a batch is applied; return it with all who wait for it, if it was accepted
        in this leadership.
        """
        key = (record.producer, record.epoch, record.sequence)
        pending = self.flying.pop(key, None)
        if pending is None:
            return None
        # As the state knows its producer now, unless it is a part of a scattering, undecided yet.
        known: Known | None = Known(record.epoch, record.sequence + record.messages)
        if record.scattered is not None:
            del self._preparing[record.producer]
            known = self._state.producers.known(record.producer)
        if self._ahead.get(record.producer) == known:
            del self._ahead[record.producer]
            self._values.sizes.pop(record.producer, None)
        waited_ms = self._time.monotonic_ms() - pending.since_ms
        messages = record.next_offset - record.offset
        self.counts.committed(self._group.id, waited_ms, messages, record.stored)
        return pending

    def stall(self) -> list[PublishWaiter]:
        """No majority has room for what is under way: return the clients that wait for its commit,
        to be refused. It stays under way, so that what they send again is known as a repeat.
        """
        stalled: list[PublishWaiter] = []
        for pending in self.flying.values():
            stalled += pending.clients
            pending.clients = []
        return stalled

    def lose(self) -> list[Pending]:
        """This node leads no more: return what was under way. Another leader will know what became
        of it; what is staged was never proposed.
        """
        flying, self.flying = self.flying, {}
        self.staged.clear()
        self._early.clear()
        self._preparing.clear()
        return list(flying.values())

    def _is_old(self, producer: int) -> bool:
        return milliseconds_of(producer) < self._now_ms() - DEDUPE_HORIZON_MS

    def _now_ms(self) -> int:
        """Return the time that tables expire by, also when the wall clock went back since."""
        return max(self._time.wall_ms(), milliseconds_of(self.clock.last))


def _is_alone(record: BatchRecord) -> bool:
    return record.scattered is not None or isinstance(record.large, Piece)


def _told(answer: Answer, duplicate: bool) -> Confirm:
    if answer.offset >= 0:
        return Confirm(answer.offset, answer.stamp, duplicate)
    return Confirm(-1, answer.stamp, duplicate, chunk_answer(answer.offset))


class ValuesUnderWay:
    """What open values will have come to once all that is under way is committed."""

    __slots__ = ("_state", "sizes")

    def __init__(self, state: PartitionState) -> None:
        """Begin to lead: nothing is under way."""
        self._state = state
        #: Of producers with batches under way: their epoch, and the bytes of their open value,
        #: `_NONE` if closed. Once all is committed the state knows it, and it goes.
        self.sizes: dict[int, tuple[int, int]] = {}

    def check(self, batch: Batch, now_ms: int) -> None:
        """Raise `ValueLost` unless a chunk continues its value, or references are all of it.

        `Overloaded` if one more value would be one too many. Any other batch passes.
        """
        producer, epoch = batch.header.producer, batch.header.epoch
        size = self._size(producer, epoch, now_ms)
        if (piece := batch.piece) is not None:
            self._check_room(producer, piece, stamp_at(now_ms - OPEN_VALUE_MS))
            if piece.position and piece.position != size:
                raise ValueLost(
                    f"a piece from byte {piece.position:,} continues nothing: "
                    f"{max(size, 0):,} bytes are there; {_AGAIN}",
                    max(size, 0),
                )
        elif (references := batch.references) is not None:
            value = self._state.values.open(producer)
            there = value is not None and (value.size, value.hash, value.runs) == references
            if size != references.size or not there:
                raise ValueLost(
                    f"the references of a value of {references.size:,} bytes are not its chunks: "
                    f"they expired, or were replaced; {_AGAIN}",
                    max(size, 0),
                )

    def accepted(self, record: BatchRecord) -> None:
        """A batch is under way."""
        if isinstance(record.large, Piece):
            size = record.large.position + record.large.size
            self.sizes[record.producer] = record.epoch, size
        elif isinstance(record.large, References):
            self.sizes[record.producer] = record.epoch, _NONE

    def _growing(self, since: int) -> int:
        values = self._state.values
        begun = sum(values.open(producer) is None for producer in self.sizes)
        return values.growing(since) + begun

    def _size(self, producer: int, epoch: int, now_ms: int) -> int:
        ahead = self.sizes.get(producer)
        if ahead is not None:  # of an older epoch, perhaps, whose value is void
            return ahead[1] if ahead[0] == epoch else _NONE
        value = self._state.values.open(producer)
        if value is None or value.epoch != epoch:
            return _NONE
        over = now_ms - milliseconds_of(value.stamp) > OPEN_VALUE_MS - _MARGIN_MS
        return _NONE if over else value.size

    def _check_room(self, producer: int, piece: Piece, since: int) -> None:
        """What nobody touched since stamp `since` takes no room: this very chunk's entry voids it.

        Were it counted, values given up could keep out those whose entries would void them.
        """
        values = self._state.values
        value = values.open(producer)
        if (value is None or value.stamp < since) and self._growing(since) >= OPEN_VALUES_MAX:
            raise Overloaded(
                f"{OPEN_VALUES_MAX:,} large values are being uploaded here: try again "
                "when some are done",
                RETRY_AFTER_MS,
            )
        if piece.position == 0 or value is None:
            return
        if len(value.packed) // 2 >= VALUE_RUNS_MAX:
            raise TooLarge(
                f"a value in {VALUE_RUNS_MAX:,} places: send it again in larger pieces",
                VALUE_RUNS_MAX,
            )
        if values.open_runs(since) >= OPEN_RUNS_MAX:
            raise Overloaded(
                f"large values grow in {OPEN_RUNS_MAX:,} places here: send larger pieces, or try "
                "again when some are done",
                RETRY_AFTER_MS,
            )
