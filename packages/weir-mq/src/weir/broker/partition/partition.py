"""One partition on this shard: its replicated state, and what it does while it leads.

What it tells of itself it tells on any replica that may answer for it. What exists only while this
node leads is in `PartitionLeader`: nobody else may answer for it. What partitions tell their shard
is data, `PartitionEvents`: the shard's turn looks at it, and acts on it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import msgspec

import weir_raft as raft
from weir.broker.consumers.operations import ConsumerRequests, apply_to_clusters
from weir.broker.partition.fetches import Fetches, StablePositions, end_if_astray
from weir.broker.partition.relay_pulls import RelayPulls
from weir.broker.partition.retention import first_needed
from weir.broker.produce.appender import Admission, Appender, ProduceRequests, VisibleConfirm
from weir.broker.produce.batcher import DeviceBatch, DeviceBatcher
from weir.broker.produce.staging import StageRequests
from weir.broker.records.entries import BatchRecord, ControlRecord, Payload, of_control
from weir.broker.records.partition import (
    AcksPrepared,
    AttemptBarred,
    ConsumerRecord,
    LogStartMoved,
    PartitionEnded,
    PartitionJoined,
    PartitionSealed,
    RelayHoldsStored,
    ScatteringsBarred,
    ScatteringsDecided,
    SinkForgotten,
    SinkPrepared,
    StampsRaised,
)
from weir.broker.replica.group import Group
from weir.broker.replica.requests import no_leader
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.reads import Reads
from weir.broker.scattering.participant import Participant, ParticipantReports, apply_scattering
from weir.broker.state.state import PartitionState
from weir.errors import DamagedRange, Halted, Refused, Unavailable
from weir.model.ids import node_of, partition_of, topic_of
from weir.model.topic import ClusterPause
from weir.order.barrier import Barrier, barrier_at
from weir.order.clock import HighestStamp, HybridClock, Time
from weir.relay.messages import AskFilter, Pull, SayHold


class Promises(Protocol):
    """Knows what voters have promised."""

    def fenced(self, group: int) -> int:
        """Return the highest stamp that the voters of a group led here promised to stand by."""


class TopicFacts(Protocol):
    """Knows of topics what the registry says."""

    @property
    def level(self) -> int:
        """The format level that is written."""

    def founded_with(self, group: int) -> int:
        """Return how many partitions the topic of a group was made with."""

    def check_relay(self, group: int, asked: Pull | AskFilter | SayHold) -> None:
        """Raise `WrongSystem` or `Unauthorized` for what a relay may not ask of a group."""

    def keys_devices(self, group: int) -> bool:
        """Return whether messages of devices have a key in the topic of a group."""

    def check_staging(self, group: int, schema: int) -> None:
        """Raise `LevelTooLow` where nothing is staged yet, or `UnknownSchema` where the schema of
        the topic of a group has no such version.
        """


class DeviceProducer:
    """The producer that a shard writes its devices' messages as; its id is 0 until the registry has
    granted one.
    """

    __slots__ = ("id",)

    def __init__(self) -> None:
        """Wait for the registry."""
        self.id = 0

    def granted(self, id: int) -> None:
        """Write with this id from now on."""
        self.id = id


class PartitionEvents:
    """What the partitions of a shard tell it, until its turn looks."""

    __slots__ = ("entries_applied", "followed", "leads_changed", "proposed", "readable", "visible",
                 "waiting")  # fmt: skip

    def __init__(self) -> None:
        """Nothing has happened yet."""
        #: What is to be confirmed once it is visible, and nobody has looked whether it is.
        self.visible = deque[VisibleConfirm]()
        #: How often a leadership of a partition here began or ended, or its topic was deleted.
        self.leads_changed = 0
        #: How many entries were applied to partitions here.
        self.entries_applied = 0
        #: By group, the partitions in which somebody may wait: no other is told that time passes.
        self.waiting: dict[int, Partition] = {}
        #: By group, the partitions with new messages for which a fetch waits.
        self.readable: dict[int, Partition] = {}
        #: The ids of topics of which somebody waits for the next batch to be accepted here; and by
        #: topic, the highest stamp of those that were proposed since.
        self.followed: set[int] = set()
        self.proposed: dict[int, int] = {}

    def answer_fetches(self) -> None:
        """Answer fetches that wait for applied entries: together, since an answer holds all."""
        readable, self.readable = self.readable, {}
        for partition in readable.values():
            partition.answer_fetches()

    def check_deadlines(self, now_ms: int) -> None:
        """Let waits end that are over, and forget the partitions in which nobody waits."""
        for group in sorted(self.waiting):
            partition = self.waiting[group]
            if now_ms < (partition.rests_until or partition.due_ms):
                continue  # a hundred idle partitions with a reader each cost nothing
            if partition.waiting:
                partition.check_deadlines()
            if not partition.waiting:
                del self.waiting[group]

    def idle_ms(self, now_ms: int, most: int) -> int:
        """Return for how long time brings nothing to those who wait, `most` milliseconds at most;
        0 or less where one of them wants to know of each tick.
        """
        dues = (one.rests_until or one.due_ms for one in self.waiting.values())
        return min(min(dues, default=now_ms + most) - now_ms, most)


class PartitionContext(msgspec.Struct, frozen=True):
    """What the partitions of a shard share."""

    outbox: Outbox
    reads: Reads
    budget: Budget
    time: Time
    highest: HighestStamp
    admission: Admission
    promises: Promises
    topics: TopicFacts
    device_producer: DeviceProducer
    #: Answers of participants in scatterings, and what nobody has finished.
    reports: ParticipantReports
    events: PartitionEvents


class MembershipProposals:
    """Proposals about the members of a topic's order, in one term: in partition 0, the partitions
    that join or have ended, and in any partition its own end.
    """

    __slots__ = ("_clock", "_ending", "_group", "_sealing", "joining")

    def __init__(self, group: Group, clock: HybridClock) -> None:
        """Begin to lead; nothing is proposed."""
        self._group = group
        self._clock = clock
        #: By partition, the floor under which it is about to join the topic's order.
        self.joining: dict[int, int] = {}
        #: Partitions whose end is proposed, and whether this one's seal is.
        self._ending: set[int] = set()
        self._sealing = False

    def join(self, partition: int, wall_ms: int) -> None:
        """Propose, in partition 0, that another belongs to the order from now on: above all that
        was ever promised here (counterexample 6).
        """
        if partition not in self.joining and self._group.accepts:
            floor = self._clock.stamp(wall_ms)
            self._group.propose(of_control(PartitionJoined(partition, floor)))
            self.joining[partition] = floor

    def joined(self, partition: int) -> None:
        """That is committed."""
        self.joining.pop(partition, None)

    def seal(self, wall_ms: int) -> None:
        """Propose that nothing is taken here any more; all that was taken is proposed."""
        if not self._sealing and self._group.accepts:
            self._group.propose(of_control(PartitionSealed(self._clock.stamp(wall_ms))))
            self._sealing = True

    def end(self, partition: int, stamp: int, offset: int) -> None:
        """Propose, in partition 0, that nothing of another is above `stamp`, or behind `offset`."""
        if partition not in self._ending and self._group.accepts:
            self._group.propose(of_control(PartitionEnded(partition, stamp, offset)))
            self._ending.add(partition)


class PartitionLeader:
    """One term's leadership of a partition, from its first applied entry to its end."""

    __slots__ = ("_context", "_group", "_state", "appender", "consumers", "device_batcher",
                 "membership", "participant", "produce", "relays", "stable_positions",
                 "stage_requests")  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, clock: HybridClock, context: PartitionContext,
        pauses: tuple[ClusterPause, ...], relays: RelayPulls,
    ) -> None:  # fmt: skip
        """Begin with nobody waiting; `clock` stamps above all that is in the log or promised;
        `pauses` are what the registry says of the topic's clusters.
        """
        reads, outbox, time = context.reads, context.outbox, context.time
        self.appender = Appender(group, state, time, clock, outbox.counts, context.admission)
        self.consumers = ConsumerRequests(group, state, clock, reads, outbox, time, pauses)
        grants = self.consumers.grants
        self.stable_positions = StablePositions(group, self.appender, state, outbox, time)
        self.participant = Participant(
            group, state, self.appender, grants, context.budget, time, context.reports
        )
        self.produce = ProduceRequests(
            self.appender, grants.pickers, outbox, context.budget, context.events.visible
        )
        self.stage_requests = StageRequests(
            group, self.appender, state.staging, outbox, context.budget, time
        )
        #: Of devices that publish here, once one does.
        self.device_batcher: DeviceBatcher | None = None
        self.membership = MembershipProposals(group, clock)
        self.relays = relays
        self._group = group
        self._context = context
        self._state = state

    # -- requests ----------------------------------------------------------------------------

    def publish_devices(self, producer: int, batch: DeviceBatch) -> None:
        """Take device publishes, of each connection, as the shard's own `producer`."""
        if (devices := self.device_batcher) is None:
            context = self._context
            devices = self.device_batcher = DeviceBatcher(
                self.appender, self._state, producer, context.outbox, context.budget,
                context.admission, context.topics.keys_devices(self._group.id),
            )  # fmt: skip
        devices.publish(batch)

    def special_committed(self, record: BatchRecord) -> None:
        """Go on with a batch of this leadership that is part of a scattering, or of devices."""
        if record.scattered is not None:
            self.participant.batch_prepared(record)
        elif record.device_batch is not None and self.device_batcher is not None:
            self.device_batcher.committed(record.stamp)

    def barrier(self, fenced: int) -> Barrier:
        """Return what may be said now, where `fenced` is what a majority has promised."""
        state = self._state
        if not (state.scatterings.batches or self.appender.flying or self.membership.joining):
            # It rests, as most partitions of most topics do: each question looks at all of them.
            committed = state.last_stamp
            stamp = committed if committed > fenced else fenced
            return tuple.__new__(Barrier, (stamp, state.next_offset))  # in C: there are many
        undecided = state.undecided or self.appender.lowest_under_way  # committed before, so lower
        if joining := self.membership.joining:  # a higher barrier needs the join first
            floor = min(joining.values())
            undecided = min(undecided or floor, floor)
        return barrier_at(fenced, state.last_stamp, undecided, state.decided_offset)

    def seal(self, wall_ms: int) -> None:
        """Take no messages any more, and, once all that were taken are proposed, propose that for
        good. What is undecided by then lies in front of the seal.
        """
        self.appender.is_closed = True
        if not self.has_gathered:
            self.membership.seal(wall_ms)

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for data or a deadline."""
        consumers = self.consumers
        return (
            consumers.grants.due_ms is not None
            or consumers.grants.ended.due_ms is not None
            or bool(self.stable_positions)
            or self.participant.waiting
            or consumers.cursor_leases.waiting
            or consumers.cluster_operations.has_unproposed
            or self.relays.waiting
        )

    @property
    def due_ms(self) -> int | None:
        """The monotonic time before which time brings nothing to those who wait; 0 if it may at
        once, None if nobody waits.
        """
        if self.stable_positions or self.participant.waiting or self.relays.waiting:
            return 0
        return self.consumers.due_ms

    @property
    def has_gathered(self) -> bool:
        """Whether something waits to be proposed."""
        arrived = self.device_batcher is not None and self.device_batcher.has_arrived
        return arrived or bool(self.appender.staged) or self.participant.has_decided

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way."""
        node = self._group.node
        return not self.has_gathered and node.log.applied == node.log.last_index

    def messages_committed(self) -> None:
        """New messages are committed."""
        self.consumers.grants.wake()
        self.stable_positions.answer_committed()

    def check_deadlines(self) -> None:
        """Let waits end that are over."""
        self.consumers.check_deadlines()
        self.stable_positions.expire()
        self.participant.check_deadlines()
        self.relays.look()

    def closed(self, session: int) -> None:
        """A peer is gone."""
        self.consumers.closed(session)
        self.stable_positions.closed(session)
        self.relays.closed(session)

    def stall(self, error: Refused) -> None:
        """No majority has room for publishes under way: refuse their waiting callers."""
        self.produce.stall(error)
        if self.device_batcher is not None:
            self.device_batcher.stall(error)

    def end(self, error: Refused) -> None:
        """The topic is deleted: refuse all who wait; what is under way comes to its end."""
        self.consumers.end(error)
        self.stable_positions.end(error)
        self.relays.end(error)

    def lose(self, error: Refused) -> None:
        """Another leads: refuse all who wait, give back what was charged for them."""
        self.produce.lose(error)
        if self.device_batcher is not None:
            self.device_batcher.lose(error)
        self.participant.lose(error)
        self.stage_requests.lose(error)
        self.consumers.lose(error)
        self.stable_positions.end(error)
        self.relays.end(error)


def apply_control(
    index: int,
    record: ControlRecord,
    group: Group,
    state: PartitionState,
    leading: PartitionLeader | None,
) -> None:
    """Apply the record of the entry at Raft index `index`, one that does not change clusters alone,
    then answer its waiting callers if this node is `leading`. Raises `Halted` for one that belongs
    elsewhere.
    """
    match record:
        case LogStartMoved():
            state.move_start(record)
            group.drop_below(state.first_index)
            if leading is not None:
                leading.consumers.grants.start_moved(state.log_start)
        case PartitionJoined(partition, floor):
            state.join(partition, floor)
            if leading is not None:
                leading.membership.joined(partition)
        case PartitionSealed() | PartitionEnded() | RelayHoldsStored():
            _apply_told(record, state)
        case StampsRaised():
            state.last_stamp = max(state.last_stamp, record.stamp)
            if leading is not None:
                leading.stable_positions.answer_committed()
        case SinkForgotten():
            state.staging.sinks.pop(record.query, None)
            if leading is not None:
                leading.stage_requests.forgotten(index)
        case (
            AcksPrepared()
            | SinkPrepared()
            | ScatteringsDecided()
            | ScatteringsBarred()
            | AttemptBarred()
        ):
            participant = leading.participant if leading is not None else None
            apply_scattering(index, record, state, participant)
            if leading is not None:
                # An attempt of a sink that is barred was one below its stamp for the clock so far.
                leading.appender.clock.raise_to(state.last_stamp)
        case _:
            raise Halted(f"a {type(record).__name__} does not belong into a partition")


def _apply_told(
    record: PartitionSealed | PartitionEnded | RelayHoldsStored, state: PartitionState
) -> None:
    match record:
        case RelayHoldsStored(rows):
            state.membership.relay_holds = rows
        case PartitionSealed(stamp):
            state.seal(stamp)
        case PartitionEnded(partition, stamp, offset):
            state.membership.end(partition, stamp, offset)


class EntryWriter(Protocol):
    """Writes the log of a partition."""

    def mark_dirty(self, partition: Partition) -> None:
        """Have `partition` propose what has gathered in it when the next flush begins: `cut`."""


class Partition:
    """The machine of one partition's group."""

    __slots__ = ("_events", "_fence", "_pauses", "context", "cursors_done", "fetches", "group",
                 "leading", "rests_until", "state", "writer")  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, context: PartitionContext,
        writer: EntryWriter, pauses: tuple[ClusterPause, ...] = (),
    ) -> None:  # fmt: skip
        """Join a restored state with its group, whose log the `writer` writes; `pauses` are what
        the registry says of the topic's clusters.
        """
        self._pauses = pauses
        self.group = group
        self.state = state
        self.fetches = Fetches(group, state, context.reads, context.outbox, context.time, self)
        self.context = context
        self._events = context.events
        self.writer = writer
        self.leading: PartitionLeader | None = None
        #: How far the clusters are here that read the topic in total order, as the leader of
        #: partition 0 said; None before it has.
        self.cursors_done: dict[str, int] | None = None
        self._fence = 0
        #: The monotonic time before which time brings nothing, unless somebody begins to wait.
        self.rests_until = 0

    @property
    def leads(self) -> bool:
        """Whether this node leads and has applied an entry of its own term."""
        return self.leading is not None

    @property
    def has_leader(self) -> bool:
        """Whether its leader is known; a damaged replica counts: others answer, or none will."""
        group = self.group
        if self.leading is not None or group.damage is not None:
            return True
        return group.leader not in (0, group.voter)

    @property
    def waiting(self) -> bool:
        """Whether a fetch or pull waits here for data or its deadline."""
        leading = self.leading
        return self.fetches.waiting or (leading is not None and leading.waiting)

    @property
    def due_ms(self) -> int:
        """The monotonic time before which time brings nothing to those who wait; 0 if it may."""
        if self.leading is None:
            return 0  # whether it is astray is seen with each tick
        dues = [self.leading.due_ms, self.fetches.due_ms if self.fetches.waiting else None]
        return min((due for due in dues if due is not None), default=0)

    def order(self) -> tuple[int, int]:
        """Return its barrier, 0 if it is not led here; and of partition 0, how many belong to its
        topic's order as of what is applied: see `Fetched`.
        """
        group, leading, context = self.group.id, self.leading, self.context
        stamp = leading.barrier(context.promises.fenced(group)).stamp if leading is not None else 0
        if partition_of(group):
            return stamp, 0
        return stamp, context.topics.founded_with(group) + len(self.state.membership.joined)

    def led(self) -> PartitionLeader:
        """Return what this node has as its leader. Raises `NotLeader`, `Unavailable` while it
        starts, or `DamagedRange` where nobody will lead it.
        """
        if self.leading is None:
            damage = self.group.damage
            if damage is not None and self.group.is_read_as_it_lies:
                raise DamagedRange(f"this partition can only be read: {damage}", damage.position)
            if self.group.has_others and self.group.leader != self.group.voter:
                raise no_leader(node_of(self.group.leader))
            raise Unavailable("this partition is starting: try again shortly")
        return self.leading

    # -- time and peers ----------------------------------------------------------------------

    def cut(self) -> int:
        """Propose all that has gathered since the last flush began; return from how many devices,
        or rather from how many reads of their connections.
        """
        if (leading := self.leading) is None:
            return 0
        devices, batcher = 0, leading.device_batcher
        if batcher is not None and batcher.has_arrived:
            devices = batcher.cut()
        leading.appender.cut()
        if leading.appender.staged:  # it is being handed over
            self.writer.mark_dirty(self)
        leading.participant.cut()
        events = self._events
        if events.followed and (topic := topic_of(self.group.id)) in events.followed:
            stamp = leading.appender.clock.last
            events.proposed[topic] = max(stamp, events.proposed.get(topic, 0))
        return devices

    def begin_waiting(self, until_ms: int = 0) -> None:
        """Be told that time passes, until nobody waits: said first, for what follows may raise. To
        who begins to wait while this node leads, time brings nothing before `until_ms`.
        """
        rests_until = until_ms if self.leading is not None else 0
        if self.group.id in self._events.waiting:
            rests_until = min(rests_until, self.rests_until)
        self._events.waiting[self.group.id], self.rests_until = self, rests_until

    def answer_fetches(self) -> None:
        """Answer the fetches and relays that wait for messages that are there by now."""
        self.fetches.answer_ready()
        if self.leading is not None:
            self.leading.relays.look()

    def check_deadlines(self) -> None:
        """Let waits end that are over."""
        if self.leading is None:
            end_if_astray(self.group, self.fetches)
        self.fetches.expire()
        if self.leading is not None:
            self.leading.check_deadlines()
            self.rests_until = 0 if self.leading.waiting else self.fetches.due_ms

    def drain(self, acks: bool) -> None:
        """The node stops: let nobody wait any more; fetches go on, and so do `acks` for a while."""
        self.fetches.drain()
        if self.leading is not None:
            self.leading.consumers.drain(acks)
            self.leading.relays.end(Unavailable("this node is stopping: ask again shortly"))

    def stall(self, error: Refused) -> None:
        """No majority has room for publishes under way: refuse their waiting callers."""
        if self.leading is not None:
            self.leading.stall(error)

    def end(self, error: Refused) -> None:
        """The topic is deleted: refuse all who wait; what is under way comes to its end.

        With other replicas it may not, for these end it as well.
        """
        self._events.leads_changed += 1
        if self.group.has_others:
            self.lose(error, cut_off=False)
        self.fetches.end(error)
        if self.leading is not None:
            self.leading.end(error)

    def closed(self, session: int) -> None:
        """A peer is gone."""
        self.fetches.closed(session)
        if self.leading is not None:
            self.leading.closed(session)
            if session in self.leading.consumers.grants.ended:
                self.begin_waiting()

    # -- the machine -------------------------------------------------------------------------

    def lead(self, leadership: raft.Leadership) -> None:
        """Keep the fence until the first entry of this term is applied."""
        self.context.outbox.counts.leads_begun += 1
        self._fence = max(self._fence, leadership.fence)

    def lose(self, error: Refused, cut_off: bool) -> None:
        """Stop leading: send all waiting callers to the next leader, which alone knows the outcome
        of their requests.
        """
        self.fetches.end(error)
        self.context.outbox.counts.leads_lost += 1
        leading, self.leading = self.leading, None
        self._events.leads_changed += 1
        if leading is None:
            return
        leading.lose(error)
        if cut_off:
            self.context.outbox.hang_up(self.group.id, "this node lost touch with the others")

    def begin_above(self, floor: int) -> None:
        """Stamp above what had been promised when this partition joined its topic's order."""
        self._fence = max(self._fence, floor)
        if self.leading is not None:
            self.leading.appender.clock.raise_to(floor)

    def pause(self, pauses: tuple[ClusterPause, ...]) -> None:
        """The registry says which of the topic's clusters are paused, and which go on."""
        if pauses != self._pauses:
            self._pauses = pauses
            if self.leading is not None:
                self.begin_waiting()
                self.leading.consumers.cluster_operations.follow(pauses)

    def changing(self) -> None:
        """See `Machine`: a leader that the new members elect has all promises in its log."""
        promised = max(self._fence, self.context.highest.promised)
        self.led().stable_positions.raise_above(promised)

    def decode(self, data: Any) -> PartitionState:
        """See `Machine`."""
        return PartitionState.decode(data)

    def restore(self, state: PartitionState) -> None:
        """Take a state as another node had it, in place of what is known here."""
        self.state.become(state)

    def apply(self, index: int, payload: Payload) -> None:
        """Apply a committed entry, then answer its waiting callers."""
        self._events.entries_applied += 1
        state = self.state
        # Both times by what `decided_offset` is mostly, for each batch comes by here.
        before = state.decided_offset if state.scatterings.batches else state.next_offset
        if payload.batches:
            for batch in payload.batches:
                state.apply(batch, index)
                if (leading := self.leading) is None or not leading.produce.committed(batch):
                    continue
                if batch.scattered is not None or batch.device_batch is not None:
                    leading.special_committed(batch)
        elif payload.staged is not None:
            is_taken = state.staging.add(index, payload.staged)
            if self.leading is not None:
                self.leading.stage_requests.applied(index, payload.staged, is_taken)
        elif (record := payload.control) is not None:
            self._apply_control(index, record)
        else:
            state.begin_lineage(raft.lineage_of(self.group.node.log.term(index)))
            if self.leading is None and self.group.begins_own_term(index):
                # Every inherited entry is applied, so next offset, stamp and dedupe are complete.
                self._lead_now()
        behind = state.decided_offset if state.scatterings.batches else state.next_offset
        if behind > before and self.group.id in self._events.waiting:  # chunks are nobody's news
            self._messages_committed()

    def _apply_control(self, index: int, record: ControlRecord) -> None:
        state, leading = self.state, self.leading
        if leading is not None:
            self.begin_waiting()  # a pull is back in line if acks left nothing of its grant
            leading.consumers.grants.next_deadline.forget()
        if isinstance(record, ConsumerRecord):
            consumers = leading.consumers if leading is not None else None
            apply_to_clusters(index, record, state, consumers)
        else:
            apply_control(index, record, self.group, state, leading)
            if isinstance(record, PartitionJoined):
                self.fetches.roster_grew()

    def durable(self, index: int) -> None:
        """See `Machine`: clients that need no more than that are confirmed."""
        if self.leading is not None:
            self.leading.produce.durable(index)

    def encode(self) -> object:
        """Return the state for a snapshot."""
        return self.state.encode()

    @property
    def first_needed(self) -> int:
        """See `Machine`."""
        return first_needed(self.group, self.state)

    def _messages_committed(self) -> None:
        leading = self.leading
        if self.fetches.waiting or (leading is not None and leading.relays.waiting):
            self._events.readable[self.group.id] = self
        if leading is not None:
            leading.messages_committed()

    def _lead_now(self) -> None:
        context = self.context
        self._events.leads_changed += 1
        group, state = self.group, self.state
        clock = HybridClock(max(self._fence, state.last_stamp), context.highest)
        relays = RelayPulls(group, state, context.reads, context.outbox, context.time, self)
        self.leading = PartitionLeader(group, state, clock, context, self._pauses, relays)
        self.begin_waiting()  # there may be something that an earlier leader left behind
