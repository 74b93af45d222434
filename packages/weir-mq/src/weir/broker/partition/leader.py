"""What of a partition exists only while this node leads: nobody else may answer for it.

A client's batch comes in here: what is checked in which order, and when its sender is told.
"""

from __future__ import annotations

from weir.broker.consumers.acks import Acks, Returns
from weir.broker.consumers.cursor_leases import CursorLeases
from weir.broker.consumers.grants import Grants
from weir.broker.consumers.operations import ClusterOperations, HubOperations
from weir.broker.partition.context import PartitionContext, VisibleConfirm
from weir.broker.produce.appender import Appender, PublishWaiter
from weir.broker.produce.batcher import DeviceBatch, DeviceBatcher, refused
from weir.broker.produce.stable_positions import StablePositions
from weir.broker.records.entries import (
    BatchRecord,
    PartitionEnded,
    PartitionJoined,
    PartitionSealed,
    of_control,
)
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import ROW_BYTES
from weir.broker.scattering.participant import Participant
from weir.broker.state.state import PartitionState
from weir.errors import Refused
from weir.model.batch import Batch
from weir.model.chunks import Piece
from weir.model.header import Columns
from weir.model.topic import ClusterPause
from weir.order.barrier import Barrier, barrier_at
from weir.order.clock import HybridClock
from weir.protocol.client.consumers import MoveCursor, SeekCursor, TakeTurn
from weir.protocol.client.messages import (
    Ack,
    Confirm,
    Extend,
    Level,
    Nack,
    Produce,
    Withdraw,
    Withdrawn,
)

_CHUNK = int(Columns.CHUNK)
#: What is to be looked at beside the messages themselves, where a batch has it.
_SPECIAL = int(Columns.CHUNK | Columns.REFERENCES | Columns.DUE)
_REPLICATED, _EARLY, _VISIBLE = Level.REPLICATED, Level.RECEIVED, Level.VISIBLE


def _received(confirm: Confirm) -> Confirm:
    """Return what level `received` promises: no offset, which may still become another's."""
    return Confirm(-1, confirm.stamp, confirm.duplicate)


class PartitionLeader:
    """One term's leadership of a partition, from its first applied entry to its end."""

    __slots__ = (
        "_budget",
        "_context",
        "_ending",
        "_group",
        "_joining",
        "_outbox",
        "_sealing",
        "_state",
        "acks",
        "appender",
        "cluster_operations",
        "cursor_leases",
        "device_batcher",
        "grants",
        "hub_operations",
        "participant",
        "returns",
        "stable_positions",
    )  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, clock: HybridClock, context: PartitionContext,
        pauses: tuple[ClusterPause, ...],
    ) -> None:  # fmt: skip
        """Begin with nobody waiting; `clock` stamps above all that is in the log or promised;
        `pauses` are what the registry says of the topic's clusters.
        """
        reads, outbox, time = context.reads, context.outbox, context.time
        self.appender = Appender(group, state, time, clock, outbox.counts)
        self.grants = Grants(group, state, self.appender, reads, outbox, time)
        self.acks = Acks(group, state, outbox)
        self.returns = Returns(group, state, self.appender, self.grants, outbox, time)
        self.cursor_leases = CursorLeases(group, state, self.appender, outbox, time, self.grants)
        self.cluster_operations = ClusterOperations(
            group, state, self.grants, self.cursor_leases, outbox, time
        )
        self.cluster_operations.follow(pauses)
        self.hub_operations = HubOperations(group, state, outbox)
        self.stable_positions = StablePositions(group, self.appender, state, outbox, time)
        self.participant = Participant(
            group, state, self.appender, self.grants, context.budget, time, context.reports
        )
        self.device_batcher: DeviceBatcher | None = None
        self._group = group
        self._context = context
        self._budget = context.budget
        self._outbox = outbox
        self._state = state
        #: By partition, the floor under which it is about to join the topic's order.
        self._joining: dict[int, int] = {}
        #: Partitions whose end is proposed, and whether this one's seal is.
        self._ending: set[int] = set()
        self._sealing = False

    # -- publishing --------------------------------------------------------------------------

    def publish(self, caller: Caller, request: Produce, batch: Batch) -> bool:
        """Take the batch of a request that its sender may publish; the reply comes once it is as
        safe as its level says. Return whether there is something new to propose. Raises `Refused`.
        """
        appender, columns = self.appender, batch.header.columns
        verdict = appender.judge(batch.header)
        # Who sends a chunk needs to know its place, to refer to it.
        level = _REPLICATED if columns & _CHUNK else request.level
        if isinstance(verdict, Confirm):
            self._tell(caller, level, verdict)
            return False
        repeats = verdict is not None
        if verdict is None:
            if request.seen > appender.clock.highest:  # else who is honest had it from here
                appender.check_seen(request.seen)
            self._budget.check(batch.header.raw_size)
            appender.look_into(batch)
            if columns & _SPECIAL:
                appender.check_large(batch)
                self.grants.pickers.check_dues(batch)
            self._budget.charge(len(request.batch))
            verdict = appender.accept(batch, request.seen)
            verdict.charged = len(request.batch)
        # One that was cut already may be durable, or not: whoever repeats it waits for the commit.
        waiters = verdict.early if level == _EARLY and not repeats else verdict.clients
        waiters.append(PublishWaiter(caller, level, repeats))
        return not repeats

    def publish_devices(self, producer: int, batch: DeviceBatch) -> None:
        """Take device publishes, of each connection, as the shard's own `producer`, or refuse all
        of it, in line either way: one without a sequence knows its reply by its place alone.
        """
        charges = [
            sum(map(len, publishes.values)) + ROW_BYTES * len(publishes.values)
            for _, publishes in batch
        ]
        charged = sum(charges)
        if len(batch) > 1 and not self._budget.fits(charged):  # there may be room for some
            for one in batch:
                self.publish_devices(producer, (one,))
            return
        if (devices := self.device_batcher) is None:
            devices = self.device_batcher = DeviceBatcher(
                self.appender, self._state, producer, self._outbox, self._budget
            )
        try:
            self._context.admission.check(self._group.id)
            self._budget.charge(charged)
        except Refused as error:
            for device, publishes in batch:
                devices.add(device, refused(publishes, error), 0, error.detail)
        else:
            for (device, publishes), charged in zip(batch, charges, strict=True):
                devices.add(device, publishes, charged)

    def committed(self, record: BatchRecord) -> None:
        """Tell all who wait for a batch that is applied now."""
        pending = self.appender.committed(record)
        if pending is None:
            return
        early, pending.early = pending.early, []
        for waiter in (*early, *pending.clients):
            self._confirm(waiter, record)
        if record.scattered is not None:
            self.participant.batch_prepared(record)
        elif record.device_batch is not None and self.device_batcher is not None:
            self.device_batcher.committed(record.stamp)
        self._budget.release(pending.charged)

    def durable(self, index: int) -> None:
        """This node's own disk has its entries through `index`: some wait for no more."""
        for pending in self.appender.durable(index):
            early, pending.early = pending.early, []
            for waiter in early:
                self._confirm(waiter, pending.record)

    def _confirm(self, waiter: PublishWaiter, record: BatchRecord) -> None:
        if isinstance(record.large, Piece):
            confirm = self.appender.confirm_chunk(record, waiter.is_repeat)
        else:
            confirm = Confirm(record.offset, record.stamp, waiter.is_repeat)
        self._tell(waiter.caller, waiter.level, confirm)

    def _tell(self, caller: Caller, level: int, confirm: Confirm) -> None:
        if level == _VISIBLE:
            self._context.events.visible.append(VisibleConfirm(self._group.id, caller, confirm))
        else:
            self._outbox.reply(caller, _received(confirm) if level == _EARLY else confirm)

    # -- requests ----------------------------------------------------------------------------

    def change_grants(self, caller: Caller, request: Ack | Nack | Extend | Withdraw) -> None:
        """Ack messages of grants, give them back, let grants last longer, or wait for none. Raises
        `Refused`.
        """
        match request:
            case Ack():
                self.acks.ack(caller, request)
            case Nack():
                self.returns.nack(caller, request)
            case Extend():
                self.returns.extend(caller, request)
            case Withdraw():
                self.grants.withdraw(caller.session, request.cluster)
                self.cursor_leases.withdraw(caller.session, request.cluster)
                self._outbox.reply(caller, Withdrawn())

    def steer_cursor(self, caller: Caller, request: TakeTurn | MoveCursor | SeekCursor) -> None:
        """Read the topic in total order, in turn. Raises `Refused`."""
        match request:
            case TakeTurn():
                self.cursor_leases.take(caller, request)
            case MoveCursor():
                self.cursor_leases.move(caller, request)
            case SeekCursor():
                self.cursor_leases.seek(caller, request)

    def barrier(self, fenced: int) -> Barrier:
        """Return what may be said now, where `fenced` is what a majority has promised."""
        state = self._state
        if not (state.scatterings.batches or self.appender.flying or self._joining):
            # It rests, as most partitions of most topics do: each question looks at all of them.
            committed = state.last_stamp
            return Barrier(committed if committed > fenced else fenced, state.next_offset)
        undecided = state.undecided or self.appender.lowest_under_way  # committed before, so lower
        if self._joining:  # whoever is told more must know who has joined
            floor = min(self._joining.values())
            undecided = min(undecided or floor, floor)
        return barrier_at(fenced, state.last_stamp, undecided, state.decided_offset)

    def join(self, partition: int, wall_ms: int) -> None:
        """Propose, in partition 0, that another belongs to the order from now on: above all that
        was ever promised here (counterexample 6).
        """
        if partition not in self._joining and self._group.accepts:
            floor = self.appender.clock.stamp(wall_ms)
            self._group.propose(of_control(PartitionJoined(partition, floor)))
            self._joining[partition] = floor

    def joined(self, partition: int) -> None:
        """That is committed."""
        self._joining.pop(partition, None)

    def seal(self, wall_ms: int) -> None:
        """Take no messages any more, and, once all that were taken are proposed, propose that for
        good. What is undecided by then lies in front of the seal.
        """
        self.appender.is_closed = True
        if self._sealing or self.has_gathered or not self._group.accepts:
            return
        stamp = self.appender.clock.stamp(wall_ms)
        self._group.propose(of_control(PartitionSealed(stamp)))
        self._sealing = True

    def count_out(self, partition: int, stamp: int, offset: int) -> None:
        """Propose, in partition 0, that nothing of another is above `stamp`, or behind `offset`."""
        if partition not in self._ending and self._group.accepts:
            self._group.propose(of_control(PartitionEnded(partition, stamp, offset)))
            self._ending.add(partition)

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for data or a deadline."""
        return (
            self.grants.waiting
            or bool(self.stable_positions)
            or self.participant.waiting
            or self.cursor_leases.waiting
            or self.cluster_operations.has_unproposed
        )

    @property
    def has_gathered(self) -> bool:
        """Whether something waits to be proposed."""
        arrived = self.device_batcher is not None and self.device_batcher.has_arrived
        return arrived or bool(self.appender.staged) or self.participant.has_decided

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way."""
        node = self._group.node
        return not self.has_gathered and node.applied_index == node.last_index

    def cut(self) -> int:
        """Propose what has gathered; return from how many reads of devices' connections."""
        devices = 0
        if self.device_batcher is not None and self.device_batcher.has_arrived:
            devices = self.device_batcher.cut()
        self.appender.cut()
        self.participant.cut()
        return devices

    def messages_committed(self) -> None:
        """New messages are committed."""
        self.grants.wake()
        self.stable_positions.answer_committed()

    def check_deadlines(self) -> None:
        """Let waits end that are over."""
        self.grants.serve_all()
        self.stable_positions.expire()
        self.participant.check_deadlines()
        self.cursor_leases.serve_all()
        self.cluster_operations.propose_pauses()

    def closed(self, session: int) -> None:
        """A peer is gone."""
        self.grants.closed(session)
        self.stable_positions.closed(session)
        self.cursor_leases.closed(session)

    def drain(self, acks: bool) -> None:
        """The node stops: let nobody wait any more, but for `acks` for a while."""
        self.grants.drain()
        self.cluster_operations.commands.drain()
        self.hub_operations.commands.drain()
        self.cursor_leases.drain()
        if not acks:
            self.acks.commands.drain()
            self.returns.commands.drain()

    def stall(self, error: Refused) -> None:
        """No majority has room for what is under way: tell who waits for it."""
        for waiter in self.appender.stall():
            self._outbox.refuse(waiter.caller, error)
        if self.device_batcher is not None:
            self.device_batcher.stall(error)

    def end(self, error: Refused) -> None:
        """The topic is deleted: refuse all who wait; what is under way comes to its end."""
        self.grants.end(error)
        self.stable_positions.end(error)
        self.cursor_leases.end(error)

    def lose(self, error: Refused) -> None:
        """Another leads: refuse all who wait, give back what was charged for them."""
        for pending in self.appender.lose():
            for waiter in (*pending.early, *pending.clients):
                self._outbox.refuse(waiter.caller, error)
            self._budget.release(pending.charged)
        if self.device_batcher is not None:
            self.device_batcher.lose(error)
        self.participant.lose(error)
        self.cursor_leases.lose(error)
        self.grants.lose(error)
        self.acks.commands.lose(error)
        self.returns.commands.lose(error)
        self.cluster_operations.commands.lose(error)
        self.hub_operations.commands.lose(error)
        self.stable_positions.end(error)
