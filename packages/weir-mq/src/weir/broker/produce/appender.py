"""The leader's way in: check, dedupe, stamp, gather, propose (DESIGN §5 Produce).

This state exists only while the partition is led here. Everything in it describes entries that are
proposed or about to be; the replicated memory is `PartitionState`. Chunks and closing batches are
judged by what is committed and what is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from weir.broker.api.counts import Counts
from weir.broker.records.entries import BatchRecord, of_batches, record_of
from weir.broker.replica.group import Group
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.state.large_values import ValuesUnderWay
from weir.broker.state.producers import Answer, Known, chunk_answer
from weir.broker.state.state import PartitionState
from weir.codec import Buffer
from weir.errors import (
    BadBatch,
    BadChecksum,
    BadRequest,
    Fenced,
    MissingLibrary,
    NotLeader,
    PartitionEnded,
    ProducerExpired,
    Refused,
    SequenceGap,
    SequenceReused,
    Unavailable,
)
from weir.model.batch import HEADER_SIZE, Batch, Columns, Header, crc_holds, stamped
from weir.model.columns import Piece
from weir.model.ids import WINDOW_AT, WINDOWS, granted_at, partition_of
from weir.model.limits import (
    DEDUPE_HORIZON_MS,
    ENTRY_BYTES_MAX,
    TAG_RUN_BYTES,
)
from weir.order.clock import HybridClock, Time, milliseconds_of
from weir.protocol.client.messages import Confirm, Level, Produce

_ORIGIN = int(Columns.ORIGIN)
_LARGE = int(Columns.CHUNK | Columns.REFERENCES)
_SCATTERED, _SLICED = int(Columns.SCATTERED), int(Columns.SLICED)
_CHUNK = int(Columns.CHUNK)
#: What is to be looked at beside the messages themselves, where a batch has it.
_SPECIAL = int(Columns.CHUNK | Columns.REFERENCES | Columns.DUE)
_REPLICATED, _EARLY, _VISIBLE = Level.REPLICATED, Level.RECEIVED, Level.VISIBLE


class PublishWaiter(NamedTuple):
    """A client that waits for the confirm of its batch, at the `Level` that it asked for."""

    caller: Caller
    level: int
    is_repeat: bool = False


class Pending(msgspec.Struct):
    """A batch that is stamped and not committed yet, and all clients that wait for it."""

    record: BatchRecord
    head: bytes
    body: Buffer
    #: When it was put in line, in milliseconds of the monotonic clock.
    since_ms: int
    #: Bytes of the budget that come back with the commit.
    charged: int = 0
    #: Told once it is applied, or sooner that it takes long: see `Appender.stall`.
    clients: list[PublishWaiter] = msgspec.field(default_factory=list)
    #: Those who need not wait for more than this node's own disk.
    early: list[PublishWaiter] = msgspec.field(default_factory=list)
    #: Whether it counts in its producer's window: until it is confirmed for the first time.
    in_window: bool = False


class Appender:
    """Takes batches into one partition, in order, while this node leads it."""

    __slots__ = (
        "_admission",
        "_ahead",
        "_early",
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
        "windows",
    )

    def __init__(
        self,
        group: Group,
        state: PartitionState,
        time: Time,
        clock: HybridClock,
        counts: Counts,
        admission: Admission,
    ) -> None:
        """Begin to lead; `clock` stamps above the fence of the election, and above the log.
        `admission` says whether there is room for what is new.
        """
        self._admission = admission
        self._group = group
        self._state = state
        self._time = time
        self.clock = clock
        self.counts = counts
        self._next_offset = state.next_offset
        #: Producers with batches under way: what will be known of them once all is committed.
        self._ahead: dict[int, Known] = {}
        self._values = ValuesUnderWay(state.values)
        #: What is stamped and not proposed yet, in order.
        self.staged: deque[Pending] = deque()
        #: By rising Raft index, the batches of proposed entries for which somebody waits `early`.
        self._early: deque[tuple[int, list[Pending]]] = deque()
        #: What was given a stamp and is not committed yet, by producer, epoch and sequence.
        self.flying: dict[tuple[int, int, int], Pending] = {}
        #: Of producers that were granted a window: how many batches of an epoch were accepted here
        #: and are not confirmed yet.
        self.windows: dict[tuple[int, int], int] = {}
        #: Producers with a part of a scattering under way.
        self._preparing: dict[int, Pending] = {}
        #: Whether nothing new is taken: the partition is sealed, or about to be.
        self.is_closed = bool(state.membership.sealed)

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

    @property
    def highest_under_way(self) -> int:
        """The highest stamp that was given and is not committed yet; 0 if there is none."""
        for pending in reversed(self.flying.values()):
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
        if header.columns & _SLICED:
            raise BadRequest("a slice of a batch is served, and never published: send whole ones")
        if bool(header.columns & _SCATTERED) is not is_part:
            raise BadRequest("parts of scatterings, and no other batches, are sent by SCATTER")
        return opened

    def look_into(self, batch: Batch) -> None:
        """Raise `BadRequest` for a batch that readers could not open; compressed ones inflate.

        What is inflated lives as long as `batch` does. It is the last step before a batch is taken:
        only authorized publishes, whose sequence is next, cost it.
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
        (rewind to `detail`), `SequenceReused`, `Fenced` or `ProducerExpired`; and for what is new
        what `check_open` raises.
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
        if sequence >= expected and (self.is_closed or self._admission.full_topics):
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

    @property
    def is_open(self) -> bool:
        """Whether new batches are taken: else what was taken before is still answered."""
        return not (self.is_closed or self._admission.is_full(self._group.id))

    def check_open(self) -> None:
        """Raise `PartitionEnded` where nothing is taken any more, for good; `Unavailable`, as long
        as another leader might take it still; or `QuotaExceeded` while the namespace may store no
        more.
        """
        if not self.is_closed:
            self._admission.check_stored(self._group.id)
            return
        partition = partition_of(self._group.id)
        if not self._state.membership.sealed:
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
        if record.producer >> WINDOW_AT:
            key = record.producer, record.epoch
            self.windows[key] = self.windows.get(key, 0) + 1
            pending.in_window = True
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
        while staged:
            taken: list[Pending] = []
            buffers: list[Buffer] = []
            records: list[BatchRecord] = []
            early: list[Pending] = []
            size = 0
            while staged and (not records or self._joins(records[-1], size)):
                pending = staged.popleft()
                taken.append(pending)
                if pending.early:
                    early.append(pending)
                buffers += (pending.head, pending.body)
                records.append(pending.record)
                size += pending.record.stored
            try:
                index = self._group.propose(of_batches(buffers, records, size))
            except (NotLeader, Unavailable):  # it is being handed over: all stay in line
                staged.extendleft(reversed(taken))
                return
            if early:
                self._group.report_durable(index)
                self._early.append((index, early))

    def _joins(self, last: BatchRecord, size: int) -> bool:
        """Whether the next batch shares an entry with `last`; a chunk never does, so that
        references to entries are references to chunks, nor a part of a scattering, so that what is
        undecided, or void, is whole entries. A long entry ends where the tags change: readers of
        some tags pass over whole entries.
        """
        following = self.staged[0]
        if size >= TAG_RUN_BYTES and set(following.record.tags) != set(last.tags):
            return False
        alone = _is_alone(last) or _is_alone(following.record)
        most = min(ENTRY_BYTES_MAX, self._group.log.settings.entry_bytes_max)
        return not alone and size + following.record.stored <= most

    def durable(self, index: int) -> list[Pending]:
        """This node's own disk has its entries through `index`: return the batches in these for
        which somebody waits `early`. They are confirmed now, and make room in their windows.
        """
        found: list[Pending] = []
        while self._early and self._early[0][0] <= index:
            found += self._early.popleft()[1]
        for pending in found:
            if pending.in_window:
                self._leave_window(pending)
        return found

    def _leave_window(self, pending: Pending) -> None:
        """A batch is confirmed: its producer may send one more."""
        key = pending.record.producer, pending.record.epoch
        under_way = self.windows[key] - 1
        if under_way:
            self.windows[key] = under_way
        else:
            del self.windows[key]
        pending.in_window = False

    def committed(self, record: BatchRecord) -> Pending | None:
        """Take note that a batch is applied; return it with all who wait for it, if it was accepted
        in this leadership.
        """
        key = (record.producer, record.epoch, record.sequence)
        pending = self.flying.pop(key, None)
        if pending is None:
            return None
        if pending.in_window:
            self._leave_window(pending)
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
        return milliseconds_of(granted_at(producer)) < self._now_ms() - DEDUPE_HORIZON_MS

    def _now_ms(self) -> int:
        """Return the time that tables expire by, also when the wall clock went back since."""
        return max(self._time.wall_ms(), milliseconds_of(self.clock.last))


def _is_alone(record: BatchRecord) -> bool:
    return record.scattered is not None or isinstance(record.large, Piece)


def _told(answer: Answer, duplicate: bool) -> Confirm:
    if answer.offset >= 0:
        return Confirm(answer.offset, answer.stamp, duplicate)
    return Confirm(-1, answer.stamp, duplicate, chunk_answer(answer.offset))


class Admission(Protocol):
    """Says whether a shard takes publishes."""

    #: The topics of namespaces that may store no more.
    full_topics: Mapping[int, Refused]

    def check(self, group: int) -> None:
        """Raise `Unavailable` once the shard takes no more publishes to a group, `Overloaded` while
        disks are full; 0 stands for no group but its own disks.
        """

    def is_full(self, group: int) -> bool:
        """Return whether the namespace of a group may store no more."""

    def check_stored(self, group: int) -> None:
        """Raise `QuotaExceeded` while the namespace of a group may store no more."""

    def check_cluster(self, group: int, is_known: bool) -> None:
        """Raise `QuotaExceeded` while its namespace may have no more clusters, unless this one is
        known.
        """


class DelayLimits(Protocol):
    """Says which delayed messages a partition takes."""

    def check_dues(self, batch: Batch) -> None:
        """Raise `BadRequest` or `Overloaded` for delayed messages that cannot be taken."""


class VisibleConfirm(NamedTuple):
    """A batch of a group is committed, and its caller is told once it is visible: when nothing can
    come before it any more in its topic's order.
    """

    group: int
    caller: Caller
    confirm: Confirm


class ProduceRequests:
    """Takes the batches that clients send to one partition while this node leads it: what is
    checked in which order, and when each sender is told.
    """

    __slots__ = ("_appender", "_budget", "_delays", "_group", "_outbox", "_visible")

    def __init__(
        self, appender: Appender, delays: DelayLimits, outbox: Outbox, budget: Budget,
        visible: deque[VisibleConfirm],
    ) -> None:  # fmt: skip
        """Begin without waiters; callers that wait until their batch is visible go to `visible`."""
        self._appender = appender
        self._group = appender.group_id
        self._delays = delays
        self._outbox = outbox
        self._budget = budget
        self._visible = visible

    def publish(self, caller: Caller, request: Produce, batch: Batch) -> bool:
        """Take the batch of a request that its sender may publish; the reply comes once it is as
        safe as its level says. Return whether there is something new to propose. Raises `Refused`.
        """
        appender, columns = self._appender, batch.header.columns
        verdict = appender.judge(batch.header)
        # The sender of a chunk needs to know its place, to refer to it.
        level = _REPLICATED if columns & _CHUNK else request.level
        if isinstance(verdict, Confirm):
            self._tell(caller, level, verdict)
            return False
        repeats = verdict is not None
        if verdict is None:
            producer, epoch = batch.header.producer, batch.header.epoch
            window = WINDOWS[producer >> WINDOW_AT & 7]
            if appender.windows.get((producer, epoch), 0) >= window:
                raise BadRequest(
                    f"producer {producer} has its window of {window} under way, and this is one "
                    "more: wait for a confirm first, or open a producer with a larger window"
                )
            if request.seen > appender.clock.highest.stamp:  # else it comes from here
                appender.check_seen(request.seen)
            if batch.header.compression:  # else it is as long as what is charged below
                self._budget.check(batch.header.raw_size)
            appender.look_into(batch)
            if columns & _SPECIAL:
                appender.check_large(batch)
                self._delays.check_dues(batch)
            self._budget.charge(len(request.batch))
            verdict = appender.accept(batch, request.seen)
            verdict.charged = len(request.batch)
        # One that was cut already may be durable, or not: a repeated publish waits for the commit.
        waiters = verdict.early if level == _EARLY and not repeats else verdict.clients
        waiters.append(PublishWaiter(caller, level, repeats))
        return not repeats

    def committed(self, record: BatchRecord) -> bool:
        """Tell all who wait for a batch that is applied now; return whether it was accepted in this
        leadership.
        """
        pending = self._appender.committed(record)
        if pending is None:
            return False
        early, pending.early = pending.early, []
        for waiter in (*early, *pending.clients):
            self._confirm(waiter, record)
        self._budget.release(pending.charged)
        return True

    def durable(self, index: int) -> None:
        """This node's own disk has its entries through `index`: some wait for no more."""
        for pending in self._appender.durable(index):
            early, pending.early = pending.early, []
            for waiter in early:
                self._confirm(waiter, pending.record)

    def stall(self, error: Refused) -> None:
        """No majority has room for publishes under way: refuse their waiting callers."""
        for waiter in self._appender.stall():
            self._outbox.refuse(waiter.caller, error)

    def lose(self, error: Refused) -> None:
        """Another leads: refuse all who wait, give back what was charged for them."""
        for pending in self._appender.lose():
            for waiter in (*pending.early, *pending.clients):
                self._outbox.refuse(waiter.caller, error)
            self._budget.release(pending.charged)

    def _confirm(self, waiter: PublishWaiter, record: BatchRecord) -> None:
        caller, level, is_repeat = waiter
        if isinstance(record.large, Piece):
            confirm = self._appender.confirm_chunk(record, is_repeat)
        else:
            confirm = Confirm(record.offset, record.stamp, is_repeat)
        if level == _REPLICATED:  # as most
            self._outbox.reply(caller, confirm)
        else:
            self._tell(caller, level, confirm)

    def _tell(self, caller: Caller, level: int, confirm: Confirm) -> None:
        if level == _VISIBLE:
            self._visible.append(VisibleConfirm(self._group, caller, confirm))
        else:
            self._outbox.reply(caller, _received(confirm) if level == _EARLY else confirm)


def _received(confirm: Confirm) -> Confirm:
    """Return what level `received` promises: no offset, which may still become another's."""
    return Confirm(-1, confirm.stamp, confirm.duplicate)
