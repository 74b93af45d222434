"""One partition on this shard: its replicated state, and what it does while it leads.

What it tells of itself it tells on any replica that may answer for it.
"""

from __future__ import annotations

from typing import Any, Protocol

import weir_raft as raft
from weir.broker.partition.context import PartitionContext
from weir.broker.partition.fetches import Fetches, check_replica, end_if_astray
from weir.broker.partition.leader import PartitionLeader
from weir.broker.partition.outcomes import apply_control
from weir.broker.partition.retention import done_below, first_needed, retain
from weir.broker.produce.batcher import DeviceBatch
from weir.broker.records.entries import Payload
from weir.broker.replica.group import Group
from weir.broker.replica.requests import no_leader
from weir.broker.runtime.outbox import Caller
from weir.broker.state.state import PartitionState
from weir.errors import DamagedRange, Refused, Unavailable
from weir.model.batch import Batch
from weir.model.ids import node_of, partition_of
from weir.model.topic import ClusterPause, Topic
from weir.order.clock import HybridClock
from weir.protocol.client.messages import (
    Decide,
    Fetch,
    Prepare,
    Produce,
    Pull,
)


def order_of(
    group: int, state: PartitionState, leading: PartitionLeader | None, context: PartitionContext
) -> tuple[int, int]:
    """Return the barrier of a group, 0 if it is not led here; and of partition 0, how many belong
    to its topic's order as of what is applied: see `Fetched`.
    """
    stamp = leading.barrier(context.promises.fenced(group)).stamp if leading is not None else 0
    if partition_of(group):
        return stamp, 0
    return stamp, context.topics.founded_with(group) + len(state.roster)


class EntryWriter(Protocol):
    """Writes the log of a partition."""

    def mark_dirty(self, partition: Partition) -> None:
        """Have `partition` propose what has gathered in it when the next flush begins: `cut`."""


class Partition:
    """The machine of one partition's group."""

    __slots__ = ("_events", "_fence", "_pauses", "_writer", "context", "cursors_done", "fetches",
                 "group", "leading", "rests_until", "state")  # fmt: skip

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
        self._writer = writer
        self.leading: PartitionLeader | None = None
        #: How far the clusters are here that read the topic in total order, as the leader of
        #: partition 0 said; None before it has.
        self.cursors_done: dict[str, int] | None = None
        self._fence = self.rests_until = 0

    @property
    def leads(self) -> bool:
        """Whether this node leads and has applied an entry of its own term."""
        return self.leading is not None

    @property
    def has_leader(self) -> bool:
        """Whether it is known who answers for it; of a damaged one, others do, or nobody will."""
        group = self.group
        if self.leading is not None or group.damage is not None:
            return True
        return group.leader not in (0, group.voter)

    @property
    def waiting(self) -> bool:
        """Whether a fetch or pull waits here for data or its deadline."""
        leading = self.leading
        return self.fetches.waiting or (leading is not None and leading.waiting)

    def order(self) -> tuple[int, int]:
        """Return its barrier, and how many partitions its topic is of: see `Fetched`."""
        return order_of(self.group.id, self.state, self.leading, self.context)

    # -- requests ----------------------------------------------------------------------------

    def check_applied(self) -> None:
        """Raise unless all that was ever confirmed is applied here, or never will be."""
        if not self.group.is_read_as_it_lies:
            self.led()

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

    def open_batch(self, caller: Caller, request: Produce) -> Batch:
        """Open the batch of a request to publish; whoever may publish it goes on with `publish`."""
        self.context.admission.check(self.group.id)
        leading = self.leading or self.led()
        self.context.outbox.touches(caller.session, self.group.id)
        return leading.appender.open(request.batch)

    def publish(self, caller: Caller, request: Produce, batch: Batch) -> None:
        """Take a batch; the reply comes after the commit."""
        leading = self.leading or self.led()
        if leading.publish(caller, request, batch):
            self._writer.mark_dirty(self)

    def publish_devices(self, batch: DeviceBatch) -> None:
        """Take device publishes, those of a connection together; confirms come after the commit."""
        leading, producer = self.led(), self.context.device_producer.id
        if not producer:
            raise Unavailable("the shard's own producer is being opened: try again shortly")
        leading.publish_devices(producer, batch)
        self._writer.mark_dirty(self)

    def part(self, request: Prepare | Decide, caller: Caller) -> None:
        """Prepare a part of a scattering, or do a step with it."""
        if isinstance(request, Prepare):
            self.context.admission.check(self.group.id)
        self.begin_waiting()
        if self.led().participant.take(request, caller):
            self._writer.mark_dirty(self)

    def fetch(self, caller: Caller, request: Fetch) -> None:
        """Read by offset."""
        if request.replica and self.leading is None:
            check_replica(self.group)
        elif not self.group.is_read_as_it_lies or request.offset >= self.state.next_offset:
            self.led()  # what a damaged one held behind its end, nobody knows
        self.context.outbox.touches(caller.session, self.group.id)
        self.fetches.fetch(caller, request)

    def pull(self, caller: Caller, request: Pull) -> None:
        """Ask for a grant."""
        grants = self.led().grants
        self.context.outbox.touches(caller.session, self.group.id)
        self.begin_waiting()
        grants.pull(caller, request)

    @property
    def leader(self) -> tuple[int, int]:
        """The node that leads as far as this replica knows, 0 if none, and the Raft term."""
        return node_of(self.group.leader), self.group.node.term

    # -- time and peers ----------------------------------------------------------------------

    @property
    def has_staged(self) -> bool:
        """Whether something is in line that is not proposed yet."""
        return self.leading is not None and bool(self.leading.appender.staged)

    def cut(self) -> int:
        """Propose all that has gathered since the last flush began; return from how many devices,
        or rather from how many reads of their connections.
        """
        return self.leading.cut() if self.leading is not None else 0

    def begin_waiting(self) -> None:
        """Be told that time passes, until nobody waits: said first, for what follows may raise."""
        self._events.waiting[self.group.id] = self
        self.rests_until = 0

    def answer_fetches(self) -> None:
        """See `WaitingPartition`."""
        self.fetches.answer_ready()

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
            self.leading.drain(acks)

    def retain(self, topic: Topic) -> None:
        """Propose a later start if its topic's settings let messages go."""
        if self.leading is None or not self.group.accepts:
            return
        settings, done = topic.settings, 0
        if settings.until_done:
            cursors = self.cursors_done
            if topic.order != "total":
                cursors = {}  # no cluster reads such a topic by a cursor
            elif partition_of(self.group.id) == 0:
                cursors = self.state.cursors.done_in(0)
            done = done_below(self.state, settings.until_done, cursors)
        retain(self.group, self.state, settings, self.context.time.wall_ms(), done)

    def stall(self, error: Refused) -> None:
        """No majority has room for publishes that are under way: tell who waits for them."""
        if self.leading is not None:
            self.leading.stall(error)

    def end(self, error: Refused) -> None:
        """The topic is deleted: refuse all who wait; what is under way comes to its end.

        With other replicas it may not, for these end it as well.
        """
        self._events.leads_changed += 1
        if self.group.has_others:
            self.lose(error)
        self.fetches.end(error)
        if self.leading is not None:
            self.leading.end(error)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way."""
        return self.leading is None or self.leading.at_rest

    @property
    def under_way(self) -> set[tuple[int, int]]:
        """The producers, and their epochs, of what is accepted and not committed yet."""
        return set() if self.leading is None else self.leading.appender.under_way

    def has_under_way(self, producer: int) -> bool:
        """Return whether a batch of a producer is accepted and not committed yet."""
        return self.leading is not None and self.leading.appender.has_under_way(producer)

    def closed(self, session: int) -> None:
        """A peer is gone."""
        self.fetches.closed(session)
        if self.leading is not None:
            self.leading.closed(session)

    # -- the machine -------------------------------------------------------------------------

    def lead(self, leadership: raft.Leadership) -> None:
        """Keep the fence until the first entry of this term is applied."""
        self.context.outbox.counts.leads_begun += 1
        self._fence = max(self._fence, leadership.fence)

    def lose(self, error: Refused) -> None:
        """Lead no more: all who wait are sent to who leads next, who alone knows what became of
        what they asked for.
        """
        self.fetches.end(error)
        self.context.outbox.counts.leads_lost += 1
        leading, self.leading = self.leading, None
        self._events.leads_changed += 1
        if leading is None:
            return
        leading.lose(error)
        if self.group.cut_off:
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
                self.leading.cluster_operations.follow(pauses)

    def changing(self) -> None:
        """See `Machine`: whoever is elected by the new members has all promises in its log."""
        promised = max(self._fence, self.context.highest.promised)
        self.led().stable_positions.raise_above(promised)

    def decode(self, data: Any) -> PartitionState:
        """See `Machine`."""
        return PartitionState.decode(data)

    def restore(self, state: PartitionState) -> None:
        """Take a state as another node had it, in place of what is known here."""
        self.state.become(state)

    def apply(self, index: int, payload: Payload) -> None:
        """Apply a committed entry, then tell who waits for it."""
        self._events.entries_applied += 1
        state = self.state
        # Both times by what `decided_offset` is mostly, for each batch comes by here.
        before = state.decided_offset if state.scatterings.batches else state.next_offset
        if payload.batches:
            for batch in payload.batches:
                state.apply(batch, index)
                if self.leading is not None:
                    self.leading.committed(batch)
        elif payload.control is not None:
            if self.leading is not None:
                self.begin_waiting()  # a pull is back in line if acks left nothing of its grant
            apply_control(index, payload.control, self.group, state, self.leading)
        elif self.leading is None and self.group.begins_own_term(index):
            # Every inherited entry is applied, so next offset, stamp and dedupe are complete.
            self._lead_now()
        behind = state.decided_offset if state.scatterings.batches else state.next_offset
        if behind > before and self.group.id in self._events.waiting:  # chunks are nobody's news
            self._messages_committed()

    def durable(self, index: int) -> None:
        """See `Machine`: clients that need no more than that are confirmed."""
        if self.leading is not None:
            self.leading.durable(index)

    def encode(self) -> object:
        """Return the state for a snapshot."""
        return self.state.encode()

    @property
    def first_needed(self) -> int:
        """See `Machine`."""
        return first_needed(self.group, self.state)

    def _messages_committed(self) -> None:
        if self.fetches.waiting:
            self._events.readable[self.group.id] = self
        if self.leading is not None:
            self.leading.messages_committed()

    def _lead_now(self) -> None:
        context = self.context
        self._events.leads_changed += 1
        clock = HybridClock(max(self._fence, self.state.last_stamp), context.highest)
        self.leading = PartitionLeader(self.group, self.state, clock, context, self._pauses)
        self.begin_waiting()  # there may be something that an earlier leader left behind
