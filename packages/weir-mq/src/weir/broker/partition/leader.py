"""What of a partition exists only while this node leads: nobody else may answer for it.

A client's batch comes in here: what is checked in which order, and when its sender is told.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.consumers.acks import Acks, Returns
from weir.broker.consumers.cursor_leases import Turns
from weir.broker.consumers.grants import Grants
from weir.broker.consumers.operations import ClusterOperations, Standings
from weir.broker.partition.context import Surroundings
from weir.broker.produce.appender import Appender
from weir.broker.produce.batcher import Crowd, DeviceBatcher, refused
from weir.broker.produce.stable_positions import Settling
from weir.broker.records.control import PartitionEnded, PartitionJoined, PartitionSealed
from weir.broker.records.entries import BatchRecord, of_control
from weir.broker.replica.group import Group
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import ROW_BYTES
from weir.broker.scattering.participant import Participant
from weir.broker.state.state import PartitionState
from weir.errors import Refused, Unavailable
from weir.model.batch import Batch
from weir.model.header import Columns, Header
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


def publish(
    shared: Surroundings,
    intake: Appender,
    caller: Caller,
    request: Produce,
    own: Callable[[Header], None],
    check_dues: Callable[[Batch], None],
) -> bool:
    """Take a batch; the reply comes once it is as safe as its level says. `own` raises unless its
    sender may, `check_dues` where messages would come too late. Return whether there is something
    new to propose. Raises `Refused`.
    """
    batch = intake.open(request.batch)
    own(batch.header)
    verdict = intake.judge(batch.header)
    # Who sends a chunk needs to know its place, to refer to it.
    level = _REPLICATED if batch.header.columns & _CHUNK else request.level
    early = level == _EARLY

    def tell(reply: Confirm) -> None:
        if level == _VISIBLE:
            _when_visible(shared, intake.group_id, caller, reply)
        else:
            shared.outbox.reply(caller, _received(reply) if early else reply)

    if isinstance(verdict, Confirm):
        tell(verdict)
        return False
    repeats = verdict is not None
    if verdict is None:
        if request.seen > intake.clock.highest:  # else who is honest had it from here
            intake.check_seen(request.seen)
        shared.budget.check(batch.header.raw_size)
        intake.look_into(batch)
        if batch.header.columns & _SPECIAL:
            intake.check_large(batch)
            check_dues(batch)
        shared.budget.charge(len(request.batch))
        verdict = intake.accept(batch, request.seen)
        verdict.charged = len(request.batch)

    def confirm(outcome: BatchRecord | Refused) -> None:
        if isinstance(outcome, Refused):
            shared.outbox.refuse(caller, outcome)
        else:
            tell(intake.confirm(outcome, repeats))

    # One that was cut already may be durable, or not: whoever repeats it waits for the commit.
    (verdict.early if early and not repeats else verdict.clients).append(confirm)
    return not repeats


def publish_devices(shared: Surroundings, group: int, fan_in: DeviceBatcher, crowd: Crowd) -> None:
    """Take device publishes to a group, of each connection, or refuse all of it, in line either
    way: one without a sequence knows its reply by its place alone.
    """
    charges = [
        sum(map(len, publishes.values)) + ROW_BYTES * len(publishes.values)
        for _, publishes in crowd
    ]
    charged = sum(charges)
    if len(crowd) > 1 and not shared.budget.fits(charged):  # there may be room for some
        for one in crowd:
            publish_devices(shared, group, fan_in, (one,))
        return
    try:
        shared.admit(group)
        shared.budget.charge(charged)
    except Refused as error:
        for seat, publishes in crowd:
            fan_in.add(seat, refused(publishes, error), 0, error.detail)
    else:
        for (seat, publishes), charged in zip(crowd, charges, strict=True):
            fan_in.add(seat, publishes, charged)


def _when_visible(shared: Surroundings, group: int, caller: Caller, confirm: Confirm) -> None:
    """Confirm a batch that is committed once nothing can come before it in its topic's order."""

    def then(visible: bool) -> None:
        if visible:
            shared.outbox.reply(caller, confirm)
        else:
            slow = Unavailable(
                "it is committed, but not all of the topic's partitions have got so far, or can: "
                "send it again to wait on"
            )
            shared.outbox.refuse(caller, slow)

    try:
        shared.when_visible(group, confirm.stamp, caller.session, then)
    except Refused as error:
        shared.outbox.refuse(caller, error)


def _received(confirm: Confirm) -> Confirm:
    """Return what level `received` promises: no offset, which may still become another's."""
    return Confirm(-1, confirm.stamp, confirm.duplicate)


class Leading:
    """One term's leadership of a partition, from its first applied entry to its end."""

    __slots__ = (
        "_ending",
        "_group",
        "_joining",
        "_outbox",
        "_sealing",
        "_state",
        "acks",
        "fan_in",
        "grants",
        "intake",
        "parts",
        "returns",
        "settling",
        "standings",
        "steering",
        "turns",
    )  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, clock: HybridClock, shared: Surroundings,
        pauses: tuple[ClusterPause, ...],
    ) -> None:  # fmt: skip
        """Begin with nobody waiting; `clock` stamps above all that is in the log or promised;
        `pauses` are what the registry says of the topic's clusters.
        """
        reads, outbox, time = shared.reads, shared.outbox, shared.time
        self.intake = Appender(group, state, time, clock, outbox.counts)
        self.grants = Grants(group, state, self.intake, reads, outbox, time)
        self.acks = Acks(group, state, outbox)
        self.returns = Returns(group, state, self.intake, self.grants, outbox, time)
        self.turns = Turns(group, state, self.intake, outbox, time, self.grants.is_read)
        self.steering = ClusterOperations(group, state, self.grants, self.turns, outbox, time)
        self.steering.follow(pauses)
        self.standings = Standings(group, state, outbox)
        self.settling = Settling(group, self.intake, state, outbox, time)
        self.parts = Participant(
            group, state, self.intake, self.grants, shared.budget, time, shared.recover
        )
        self.fan_in: DeviceBatcher | None = None
        self._group = group
        self._outbox = outbox
        self._state = state
        #: By partition, the floor under which it is about to join the topic's order.
        self._joining: dict[int, int] = {}
        #: Partitions whose end is proposed, and whether this one's seal is.
        self._ending: set[int] = set()
        self._sealing = False

    def devices(self, producer: int, outbox: Outbox, budget: Budget) -> DeviceBatcher:
        """Return what packs devices' messages, as the shard's own `producer`."""
        if self.fan_in is None:
            self.fan_in = DeviceBatcher(
                self.intake, self._state, producer, outbox.answer, budget.release
            )
        return self.fan_in

    def settle(self, caller: Caller, request: Ack | Nack | Extend | Withdraw) -> None:
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
                self.turns.withdraw(caller.session, request.cluster)
                self._outbox.reply(caller, Withdrawn())

    def turn(self, caller: Caller, request: TakeTurn | MoveCursor | SeekCursor) -> None:
        """Read the topic in total order, in turn. Raises `Refused`."""
        match request:
            case TakeTurn():
                self.turns.take(caller, request)
            case MoveCursor():
                self.turns.move(caller, request)
            case SeekCursor():
                self.turns.seek(caller, request)

    def barrier(self, fenced: int) -> Barrier:
        """Return what may be said now, where `fenced` is what a majority has promised."""
        state = self._state
        if not (state.scatterings.batches or self.intake.flying or self._joining):
            # It rests, as most partitions of most topics do: each question looks at all of them.
            committed = state.last_stamp
            return Barrier(committed if committed > fenced else fenced, state.next_offset)
        undecided = state.undecided or self.intake.lowest_under_way  # committed before, so lower
        if self._joining:  # whoever is told more must know who has joined
            floor = min(self._joining.values())
            undecided = min(undecided or floor, floor)
        return barrier_at(fenced, state.last_stamp, undecided, state.decided_offset)

    def join(self, partition: int, wall_ms: int) -> None:
        """Propose, in partition 0, that another belongs to the order from now on: above all that
        was ever promised here (counterexample 6).
        """
        if partition not in self._joining and self._group.accepts:
            floor = self.intake.clock.stamp(wall_ms)
            self._group.propose(of_control(PartitionJoined(partition, floor)))
            self._joining[partition] = floor

    def joined(self, partition: int) -> None:
        """That is committed."""
        self._joining.pop(partition, None)

    def seal(self, wall_ms: int) -> None:
        """Take no messages any more, and, once all that were taken are proposed, propose that for
        good. What is undecided by then lies in front of the seal.
        """
        self.intake.is_closed = True
        if self._sealing or self.has_gathered or not self._group.accepts:
            return
        stamp = self.intake.clock.stamp(wall_ms)
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
            or bool(self.settling)
            or self.parts.waiting
            or self.turns.waiting
            or self.steering.behind
        )

    @property
    def has_gathered(self) -> bool:
        """Whether something waits to be proposed."""
        arrived = self.fan_in is not None and self.fan_in.has_arrived
        return arrived or self.intake.has_staged or self.parts.has_decided

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way."""
        node = self._group.node
        return not self.has_gathered and node.applied_index == node.last_index

    def cut(self) -> int:
        """Propose what has gathered; return from how many reads of devices' connections."""
        devices = 0
        if self.fan_in is not None and self.fan_in.has_arrived:
            devices = self.fan_in.cut()
        self.intake.cut()
        self.parts.cut()
        return devices

    def wake(self) -> None:
        """New messages are committed."""
        self.grants.wake()
        self.settling.wake()

    def tick(self) -> None:
        """Let waits end that are over."""
        self.grants.tick()
        self.settling.tick()
        self.parts.tick()
        self.turns.tick()
        self.steering.tick()

    def closed(self, session: int) -> None:
        """A peer is gone."""
        self.grants.closed(session)
        self.settling.closed(session)
        self.turns.closed(session)

    def drain(self, acks: bool) -> None:
        """The node stops: let nobody wait any more, but for `acks` for a while."""
        self.grants.drain()
        self.steering.commands.drain()
        self.standings.commands.drain()
        self.turns.drain()
        if not acks:
            self.acks.commands.drain()
            self.returns.commands.drain()

    def stall(self, error: Refused) -> None:
        """No majority has room for what is under way: tell who waits for it."""
        self.intake.stall(error)
        if self.fan_in is not None:
            self.fan_in.stall(error)

    def end(self, error: Refused) -> None:
        """The topic is deleted: refuse all who wait; what is under way comes to its end."""
        self.grants.end(error)
        self.settling.end(error)
        self.turns.end(error)

    def lose(self, error: Refused, release: Callable[[int], None]) -> None:
        """Another leads: refuse all who wait, `release` what was charged for them."""
        release(self.intake.lose(error))
        if self.fan_in is not None:
            self.fan_in.lose(error)
        self.parts.lose(error)
        self.turns.lose(error)
        self.grants.lose(error)
        self.acks.commands.lose(error)
        self.returns.commands.lose(error)
        self.steering.commands.lose(error)
        self.standings.commands.lose(error)
        self.settling.end(error)
