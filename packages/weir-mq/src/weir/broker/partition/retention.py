"""Retention: which messages are to go, and when a shard looks for them (DESIGN §4: log start
moves).

The leader looks at ages and sizes now and then, and proposes; every replica lets go at the entry.
So no replica's clock decides (counterexample 13). Whole entries go, never a part of one; what is
left is never less than a size limit. Values that somebody began and left lying go with them. Where
a topic keeps messages until clusters are done with them, those go that all of these have
acknowledged; age and size let more go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from weir.broker.forwarding.forwarder import NO_REPLY, Forwarder
from weir.broker.metadata.catalog import Catalog
from weir.broker.partition.relay_pulls import RelayPulls
from weir.broker.records.entries import of_control
from weir.broker.records.partition import LogStartMoved
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.broker.state.state import PartitionState
from weir.errors import Refused
from weir.model.ids import LIMIT_MAX, Address, partition_of, topic_of
from weir.model.limits import OPEN_VALUE_MS
from weir.model.topic import EVERY_CLUSTER, FOREVER, Topic, TopicSettings
from weir.order.clock import Time, stamp_at
from weir.protocol.client.order import ReportDone
from weir.relay.holds import Child, HoldLimits

#: A tick looks at so many partitions at most: a look costs some microseconds.
_LOOKS_PER_TICK = 64


def done_below(
    state: PartitionState, until_done: Sequence[str], cursors: Mapping[str, int] | None
) -> int:
    """Return the offset below which all clusters of `until_done` are done; 0 if there is none.

    `cursors` says how far the clusters are that read the topic in total order, for those are not
    known to each partition; None if nobody has said so yet. A cluster that is named and has not
    begun keeps everything.
    """
    if cursors is None:
        return 0
    found = {name: cluster.cursor for name, cluster in state.clusters.items()} | dict(cursors)
    names = found.keys() if tuple(until_done) == (EVERY_CLUSTER,) else until_done
    return min((found.get(name, 0) for name in names), default=0)


def new_start(
    group: Group, state: PartitionState, settings: TopicSettings, wall_ms: int, done: int = 0,
    held: int = LIMIT_MAX,
) -> LogStartMoved | None:  # fmt: skip
    """Return where the log is to start by its topic's settings, and which open values are void;
    None if all may stay as it is. Relays need what lies from `held` on.
    """
    # The leader takes no chunk of such a value any more, so that none is on its way: see
    # `ValuesUnderWay`.
    if state.undecided:
        return None  # soon
    since = stamp_at(max(wall_ms - OPEN_VALUE_MS, 0))
    if not (state.values.untouched(since) or state.staging.untouched(since)):
        since = 0
    index, offset = _cut(group, state, settings, wall_ms, done)
    if offset > held:
        index, offset = group.log.reader.cut_by_offset(group.id, held) or (0, 0)
    if offset > state.log_start:
        # The chunks of a value lie before its message: what is kept of those keeps more entries.
        needed = state.first_needed_index(index, offset, since)
        return LogStartMoved(needed, offset, since)
    return LogStartMoved(state.first_index, state.log_start, since) if since else None


def first_needed(group: Group, state: PartitionState) -> int:
    """Return the Raft index of the first entry that holds messages to keep, or is to hold some."""
    stored, index = group.log.reader.cut_by_stamp(group.id, 0), group.node.log.last_index + 1
    if stored is not None and state.log_start < state.next_offset:
        index = max(stored[0], state.first_index)
    return state.first_needed_index(index, state.log_start)


def _cut(
    group: Group, state: PartitionState, settings: TopicSettings, wall_ms: int, done: int
) -> tuple[int, int]:
    """Return Raft index and offset of what is to stay; that may lie below where the log starts."""
    if state.next_offset == state.log_start:
        return 0, 0
    log, cuts = group.log, []
    # Behind all that is committed: what remains of a topic that was idle for too long.
    everything = (group.node.log.applied + 1, state.next_offset)
    if settings.retention_ms != FOREVER:
        oldest = stamp_at(max(wall_ms - settings.retention_ms, 0))
        cuts.append(log.reader.cut_by_stamp(group.id, oldest) or everything)
    if settings.retention_bytes != FOREVER:
        cut = log.reader.cut_by_size(group.id, settings.retention_bytes, state.stored_apart)
        if cut is not None:
            cuts.append(cut)
    if done:
        cuts.append(log.reader.cut_by_offset(group.id, done) or everything)
    index, offset = max(cuts, key=lambda cut: cut[1], default=(0, 0))
    if offset > state.next_offset:
        index, offset = everything
    return index, offset


class Leading(Protocol):
    """A partition that is led here, as far as its retention goes."""

    @property
    def relays(self) -> RelayPulls:
        """What relays need of it."""


class Retained(Protocol):
    """A partition of this shard, as far as its retention goes."""

    group: Group
    state: PartitionState
    #: How far clusters are that read the topic in total order; None if nobody has said so yet.
    cursors_done: dict[str, int] | None

    @property
    def leads(self) -> bool:
        """Whether this node leads it."""

    @property
    def leading(self) -> Leading | None:
        """What it does while this node leads it."""


class Served(Protocol):
    """The partitions of a shard."""

    catalog: Catalog

    def partitions(self) -> Iterable[Retained]:
        """Return all of them."""

    def find(self, group: int) -> Retained | None:
        """Return the partition of a group if it is served here."""


class RetentionSweep:
    """Looks at every partition of a shard once in a while.

    A cluster that reads a topic in total order has its cursor in partition 0. Where messages stay
    until clusters are done with them, the leader of partition 0 tells those of the others how far
    such clusters are. That is not replicated: without it messages stay longer.
    """

    __slots__ = ("_due_ms", "_every_ms", "_forwarder", "_left", "_outbox", "_relays", "_time",
                 "_topics")  # fmt: skip

    def __init__(
        self, topics: Served, forwarder: Forwarder, outbox: Outbox, time: Time, every_ms: int
    ) -> None:
        """Begin `every_ms` from now."""
        self._topics = topics
        self._forwarder = forwarder
        self._outbox = outbox
        self._time = time
        self._every_ms = every_ms
        self._due_ms = time.monotonic_ms() + every_ms
        self._left: list[int] = []
        #: The relays of the topology of this version.
        self._relays: tuple[int, Mapping[Child, HoldLimits]] = (0, {})

    @property
    def is_under_way(self) -> bool:
        """Whether partitions are left to be looked at with the next ticks."""
        return bool(self._left)

    def look_at_next(self) -> None:
        """Look at the next partitions, if it is time."""
        now = self._time.monotonic_ms()
        if now >= self._due_ms and not self._left:
            self._due_ms = now + self._every_ms
            self._left = [partition.group.id for partition in self._topics.partitions()]
        if not self._left:
            return
        looked, self._left = self._left[:_LOOKS_PER_TICK], self._left[_LOOKS_PER_TICK:]
        for group in looked:
            topic = self._topics.catalog.by_id(topic_of(group))
            partition = self._topics.find(group)  # it may not have joined its topic yet
            if topic is not None and partition is not None:
                self.retain(topic, partition)
                if topic.settings.until_done and topic.order == "total":
                    self._report(topic, partition)

    def retain(self, topic: Topic, partition: Retained) -> None:
        """Propose a later start of a partition if its topic's settings let messages go."""
        group, state = partition.group, partition.state
        if not partition.leads or not group.accepts:
            return
        settings, done = topic.settings, 0
        if settings.until_done:
            cursors = partition.cursors_done
            if topic.order != "total":
                cursors = {}  # no cluster reads such a topic by a cursor
            elif partition_of(group.id) == 0:
                cursors = state.cursors.done_in(0)
            done = done_below(state, settings.until_done, cursors)
        held = self._held(partition)
        moved = new_start(group, state, settings, self._time.wall_ms(), done, held)
        if moved is not None:
            group.propose(of_control(moved))

    def _held(self, partition: Retained) -> int:
        """Return from where on relays of the topology need a partition; propose to store that."""
        topology, leading = self._topics.catalog.topology, partition.leading
        if leading is None:
            return LIMIT_MAX
        version, relays = self._relays
        if version != topology.version:
            relays = topology.relays()
            self._relays = topology.version, relays
        held = leading.relays.keep(relays)
        stored = leading.relays.holds_to_store() if topology else None
        if stored is not None:
            partition.group.propose(of_control(stored))
        return held if relays else LIMIT_MAX

    def reported(self, session: Session, caller: Caller, request: ReportDone) -> None:
        """Take from the leader of partition 0 how far clusters are in another partition."""
        self._outbox.answered(session.id)  # there is no reply: it is told again
        if (partition := self._topics.find(request.address.group)) is not None:
            partition.cursors_done = dict(request.done)

    def _report(self, topic: Topic, first: Retained) -> None:
        """Tell the other partitions of a topic, if `first` is its partition 0 and is led here."""
        if partition_of(first.group.id) or not first.leads:
            return
        for group in topic.groups()[1:]:
            done = first.state.cursors.done_in(partition_of(group))
            here = self._topics.find(group)
            if here is not None and here.leads:
                here.cursors_done = done
                continue
            with suppress(Refused):  # it is told again with the next sweep
                place = self._forwarder.routes.toward(group)
                if place != self._forwarder.shard:
                    request = ReportDone(Address(0, 0, group), tuple(done.items()))
                    self._forwarder.ask_own(place, request, NO_REPLY)
