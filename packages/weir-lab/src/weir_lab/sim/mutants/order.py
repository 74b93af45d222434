"""Rules of the one order, and of wall clocks, that can be taken away: stamps, promises, barriers,
rosters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import cast

import weir_raft as raft
from weir.broker.api.events import TICK_MS
from weir.broker.barriers.barriers import BarrierAnswers
from weir.broker.barriers.streams import Subscriptions
from weir.broker.barriers.topic_order import (
    Fences,
    Growth,
    LedPartition,
    OrderPlan,
    OrderPlanner,
    Scope,
    TopicOrder,
)
from weir.broker.partition.partition import Partition, PartitionLeader
from weir.broker.produce.appender import VisibleConfirm
from weir.broker.replica.node_state import Clocks
from weir.broker.replica.raft_storage import RaftStorage
from weir.broker.runtime.reads import PublishedReading
from weir.broker.state.state import PartitionState
from weir.model.ids import group_of
from weir.model.topic import Topic
from weir.order.barrier import NO_BARRIER, Barrier, Merge, Roster, barrier_at
from weir.order.clock import HybridClock, stamp_at
from weir.protocol.client.messages import Barriers
from weir.protocol.client.order import ReportJoined
from weir.testing.simulator.world import MS, SECOND
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.mutants.replication import ALL
from weir_lab.sim.programs.subscribers.cutters import Cutter
from weir_lab.sim.shape import NODE_SINKS, UNORDERED
from weir_raft.config import Promise
from weir_raft.groups import multi

_CUTS = "weir.broker.barriers.cuts"
_MERGE = "weir.order.barrier"
_OFFSETS = "weir.broker.barriers.offsets"
_STREAMS = "weir.broker.barriers.streams"
_TOPIC_ORDER = "weir.broker.barriers.topic_order"
_BARRIER = {"BarrierHolds", "OneOrder"}
#: Leaders die soon and others follow at once, whose clocks are a little behind or ahead.
ORDER = replace(
    ALL,
    kinds=("kill", "part", "drift"),
    fault_every=(50 * MS, 600 * MS),
    down=(0, 300 * MS),
    faults_until=12 * SECOND,
    at_least=0,
    beats=((30, 120),),
    ticks=(TICK_MS,),
    pace=(5, 60),
    batches=40,
    hasty=0,
    hubs=0,
    receivers=0,
    consumers=0,
    keepers=0,
    authors=0,
    onlookers=0,
    stewards=0,
    operators=(False,),
    retentions=(0,),
    ordered=(2,),
    grows=(False,),
)
#: Readers are far from leaders, which change: marks go between shards.
STREAMED = replace(ORDER, ordered=(3,), kinds=("kill", "part", "pause"))
#: Many read what is there, while others publish without a pause.
CUT = replace(ORDER, ordered=(1,), cutters=4, producers=4, pace=(1, 10), batches=80)
#: Queries read portion after portion, each up to a cut that is resolved for them.
PLANNED = replace(ORDER, ordered=(1,), planners=3, producers=4, pace=(1, 10), batches=60)
#: One execution again and again, which harms nobody who keeps to the rule.
PLOTTED = replace(ORDER, kinds=(), faults_until=10 * SECOND, batches=80)
JOINED = replace(PLOTTED, plot="latecomer", grows=(True,), faults_until=5 * SECOND)
EVICTED = replace(PLOTTED, plot="eviction", nodes=4, stewards=3, faults_until=20 * SECOND)
#: One clock at a time is wrong, for so long that all hear of it; nobody dies.
ASTRAY = replace(
    UNORDERED, kinds=("astray",), fault_every=(3 * SECOND, 6 * SECOND),
    hubs=0, receivers=0, authors=0,
)  # fmt: skip


@mutant(seed=4, breaks=_BARRIER, shape=replace(PLOTTED, plot="unsettled"))
def a_promise_before_an_entry_of_its_own_term(patch: Patch) -> None:
    """Who has inherited entries promises nothing until one of its own is committed
    (counterexample 1).
    """
    honest = OrderPlanner.plan

    def plan(
        self: OrderPlanner, topic: Topic, scope: Scope, joined: int, avoided: Collection[int] = ()
    ) -> OrderPlan:
        found = honest(self, topic, scope, joined, avoided)
        for partition in list(found.others):
            here = self._topics.find(group_of(topic.id, partition))
            if here is not None and here.group.node.role is raft.Role.LEADER:
                found.others.remove(partition)
                early = cast(PartitionLeader, _Hasty(here.state))
                found.led.append(LedPartition(partition, here.group.id, early, here.state))
        return found

    patch.setattr(OrderPlanner, "plan", plan)
    patch.setattr(multi, "_is_established", lambda node_state, leader: True)


class _Hasty:
    """What stands for a leadership before it has begun."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def barrier(self, fenced: int) -> Barrier:
        return barrier_at(fenced, self._state.last_stamp, 0, self._state.decided_offset)


@mutant(seed=0, breaks=_BARRIER, shape=replace(PLOTTED, plot="forgetful"))
def a_promise_is_forgotten_at_a_restart(patch: Patch) -> None:
    """Who starts again stands by all that it may have promised before (counterexample 2)."""
    patch.setattr(RaftStorage, "promised", property(lambda self: 0))


@mutant(
    seed=3,
    breaks=_BARRIER,
    shape=EVICTED,
)
def members_change_without_a_stamp(patch: Patch) -> None:
    """In front of a change of members lies an entry above all promises (counterexample 3)."""
    patch.setattr(Partition, "changing", lambda self: None)


@mutant(seed=3, breaks=_BARRIER, shape=JOINED)
def a_partition_takes_messages_before_it_has_joined(patch: Patch) -> None:
    """Who joins takes messages once partition 0 has an entry of that, and above that entry's stamp
    (counterexample 6).
    """

    def join_partitions(self: Growth) -> None:
        for topic in map(self._topics.catalog.by_id, list(self._topics.catalog.growing)):
            assert topic is not None  # it grows
            for partition in range(topic.partitions, topic.joining):
                self._tell(ReportJoined(topic.id, partition, 0))

    patch.setattr(Growth, "join_partitions", join_partitions)


@mutant(seed=7, breaks=_BARRIER, shape=ORDER)
def a_vote_says_nothing_of_promises(patch: Patch) -> None:
    """A vote carries the highest promise that was ever given (DESIGN §5 Barrier safety)."""
    patch.setattr(Promise, "raise_to", lambda self, fence: None)


@mutant(seed=7, breaks=_BARRIER, shape=ORDER)
def a_leader_does_not_heed_its_votes(patch: Patch) -> None:
    """A new leader stamps above all that its votes carry (DESIGN §5 Barrier safety)."""
    honest = Partition._lead_now

    def lead_now(self: Partition) -> None:
        self._fence = 0
        honest(self)

    patch.setattr(Partition, "_lead_now", lead_now)


@mutant(seed=1, breaks=_BARRIER, shape=ORDER)
def a_leader_stamps_where_it_promised_not_to(patch: Patch) -> None:
    """From the question on, no clock of the shard stamps at or below what was asked."""

    def stamp(self: HybridClock, wall_ms: int, seen: int = 0) -> int:
        self.raise_to(max(stamp_at(wall_ms), self._last + 1, seen + 1))
        return self._last

    patch.setattr(HybridClock, "stamp", stamp)


@mutant(seed=0, breaks={"Causal"}, shape=ORDER)
def what_its_client_has_seen_does_not_count(patch: Patch) -> None:
    """A message is stamped above all that its client had seen (DESIGN §5 Produce)."""
    honest = HybridClock.stamp
    patch.setattr(HybridClock, "stamp", lambda self, wall_ms, seen=0: honest(self, wall_ms))


@mutant(seed=0, breaks=_BARRIER, shape=ORDER)
def what_is_under_way_does_not_count(patch: Patch) -> None:
    """A barrier stays below what is stamped and not committed (DESIGN §5 Barrier safety)."""

    def barrier(self: PartitionLeader, fenced: int) -> Barrier:
        return barrier_at(fenced, self._state.last_stamp, 0, self._state.decided_offset)

    patch.setattr(PartitionLeader, "barrier", barrier)


@mutant(seed=0, breaks=_BARRIER, shape=ORDER)
def a_barrier_without_its_offset(patch: Patch) -> None:
    """A barrier counts once all below its offset is here: a replica may lag (counterexample 5)."""

    def barrier(self: Merge[object], partition: int, barrier: Barrier) -> None:
        self.roster.report(partition, barrier.stamp)

    patch.setattr(Merge, "barrier", barrier)


@mutant(seed=3, breaks=_BARRIER, shape=ORDER)
def a_register_a_node(patch: Patch) -> None:
    """There is a register a partition, and never one a node (counterexample 4)."""

    def see(self: TopicOrder, led: Sequence[LedPartition], fences: Fences, stamp: int) -> int:
        groups = [one.group for one in self.plan.led]
        promised = zip(self.plan.led, fences(groups), strict=True)
        barriers = {one: one.leading.barrier(fence) for one, fence in promised}
        highest = max((barrier.stamp for barrier in barriers.values()), default=0)
        self.take((one.partition, highest, barriers[one].through) for one in led)
        for one in led:
            self.learn(one.state.membership.joined)
        return 0 if highest >= stamp else len(led)

    patch.setattr(TopicOrder, "see", see)


@mutant(seed=0, breaks=_BARRIER, shape=ORDER)
def a_mark_without_what_is_new(patch: Patch) -> None:
    """A mark tells the offset of each partition with messages above the last one (ADR 0098)."""
    patch.source(_TOPIC_ORDER, "            if last > above:\n", "            if not above:\n")


@mutant(seed=0, breaks=_BARRIER, shape=ORDER)
def a_mark_at_the_highest_register(patch: Patch) -> None:
    """A mark is no higher than the least register: that of a partition without a leader stands."""
    patch.source(_TOPIC_ORDER, "return min(stamps), throughs", "return max(stamps), throughs")


@mutant(seed=5, breaks=_BARRIER, shape=ORDER)
def what_another_leader_tells_counts_as_known(patch: Patch) -> None:
    """Who told a register, and not what is stamped how below it, lets nothing be left out."""
    patch.source(_TOPIC_ORDER, "                self.lasts.pop(partition, None)\n",
                 "                pass\n")  # fmt: skip


@mutant(seed=0, breaks=_BARRIER, shape=ORDER)
def a_mark_for_what_is_demanded(patch: Patch) -> None:
    """Who is parked gets the mark once all are at the stamp that is demanded, and not before."""
    honest = TopicOrder.mark

    def mark(self: TopicOrder, above: int) -> tuple[int, list[tuple[int, int]]]:
        stamp, throughs = honest(self, above)
        first = self.queue.first
        demanded = first.stamp if first is not None else 0
        return max(stamp, demanded), throughs

    patch.setattr(TopicOrder, "mark", mark)


@mutant(seed=0, breaks=_BARRIER, shape=STREAMED)
def a_mark_before_its_data(patch: Patch) -> None:
    """A mark between shards tells each offset that has changed since the last one (ADR 0101)."""
    patch.source(_STREAMS, "            if told.get(partition) != (through, highest):\n",
                 "            if partition not in told:\n")  # fmt: skip


@mutant(seed=5, breaks=_BARRIER, shape=STREAMED)
def a_mark_of_a_changed_set(patch: Patch) -> None:
    """A partition that moves away keeps its last register: the next marks are of another set
    (counterexample 4).
    """
    patch.source(
        _STREAMS,
        "            self.throughs = dict.fromkeys(mark.partitions, _UNTOLD)\n",
        "            self.throughs = self.throughs | dict.fromkeys(mark.partitions, _UNTOLD)\n",
    )


@mutant(seed=7, breaks=_BARRIER, shape=STREAMED)
def a_register_whose_offset_goes_backwards(patch: Patch) -> None:
    """What an upper shard tells after a reconnect counts only where it is news."""

    def take_mark(self: TopicOrder, stamp: int, throughs: Mapping[int, tuple[int, int]]) -> None:
        for partition, (through, highest) in throughs.items():
            at = self.registers.get(partition, NO_BARRIER).stamp
            self.registers[partition] = Barrier(max(at, stamp), through)
            self.lasts[partition] = highest

    patch.setattr(TopicOrder, "take_mark", take_mark)


@mutant(seed=0, breaks=_BARRIER, shape=STREAMED)
def a_dead_input_leaves_the_roster(patch: Patch) -> None:
    """No timer removes a partition from a total order: its register stands."""
    patch.source(
        _TOPIC_ORDER,
        "return min(stamps), throughs",
        "return min(s for s in stamps if s + (500 << 16) >= max(stamps)), throughs",
    )


@mutant(seed=75, breaks={"Live"}, shape=STREAMED)
def a_demand_is_forgotten_when_the_leader_changes(patch: Patch) -> None:
    """What is waited for is demanded again of the next leader, no matter what the place was told
    before.
    """
    honest, demanded = Subscriptions.demand, dict[tuple[int, int, int], int]()

    def demand(self: Subscriptions, topic: int, place: int, stamps: Collection[int]) -> bool:
        before = demanded.get((id(self), topic, place), 0)
        new = [stamp for stamp in stamps if stamp > before]
        demanded[id(self), topic, place] = max(before, *stamps)
        return honest(self, topic, place, new)

    patch.setattr(Subscriptions, "demand", demand)


@mutant(seed=0, breaks={"BarrierHolds"}, shape=ORDER)
def visible_once_it_is_committed(patch: Patch) -> None:
    """Visible is what nothing can come before any more, in no partition (DESIGN §5 Produce)."""

    def confirm_visible(self: BarrierAnswers, one: VisibleConfirm) -> None:
        self._outbox.reply(one.caller, one.confirm)

    patch.setattr(BarrierAnswers, "confirm_visible", confirm_visible)


@mutant(seed=0, breaks=_BARRIER, shape=ORDER)
def a_reader_waits_for_nobody(patch: Patch) -> None:
    """The order is complete through the least of all partitions (DESIGN §5 Aggregation)."""

    def furthest(self: Roster) -> tuple[int, int]:
        return max((m.bound for m in self._members.values()), default=0) + 1, -1

    patch.setattr(Roster, "frontier", property(furthest))


@mutant(seed=0, breaks=_BARRIER, shape=NODE_SINKS)
def the_register_is_raised_at_the_first_batch(patch: Patch) -> None:
    """A batch says that all below its stamp is here; others of its partition may have the same."""
    patch.source(_MERGE, "self.roster.report(partition, stamp - 1)",
                 "self.roster.report(partition, stamp)")  # fmt: skip


@mutant(seed=0, breaks=_BARRIER, shape=NODE_SINKS)
def an_answer_does_not_say_that_it_is_cut(patch: Patch) -> None:
    """A fetch that ends within what was published at once says so."""
    patch.setattr(PublishedReading, "is_cut", lambda self, payloads: False)


@mutant(seed=2, breaks={"Live"}, shape=NODE_SINKS)
def a_full_room_waits_for_its_own_stamp(patch: Patch) -> None:
    """What nothing can come in front of goes, though more of its stamp may come behind it."""
    patch.source(_MERGE, "heap[0][:2] <= frontier:", "heap[0][0] < frontier[0]:")


@mutant(seed=2, breaks={"OneOrder"}, shape=NODE_SINKS)
def a_full_room_waits_for_nobody_in_front(patch: Patch) -> None:
    """Partitions in front have given all of a stamp before one behind them gives any of it."""
    patch.source(_MERGE, "heap[0][:2] <= frontier:", "heap[0][0] <= frontier[0]:")


@mutant(seed=3, breaks={"OneOrder"}, shape=CUT)
def a_cut_at_what_was_said_first(patch: Patch) -> None:
    """Partitions are asked again at the highest stamp of all answers: until then what one of them
    has below it may be missing (DESIGN §5 Aggregation).
    """

    def first_told(self: Cutter, cut: int, reply: Barriers) -> None:
        self._read(cut, max(stamp for _, stamp, _ in reply.registers), reply)

    patch.setattr(Cutter, "first_told", first_told)


@mutant(seed=0, breaks={"OneOrder"}, shape=CUT)
def latest_begins_where_others_were_by_then(patch: Patch) -> None:
    """A reader of all behind a cut begins where partitions were when they were asked first: by the
    second answers they may have messages above the cut (DESIGN §5 Aggregation).
    """

    def again_told(self: Cutter, reply: Barriers) -> None:
        self.begins = {partition: through for partition, _, through in reply.registers}

    patch.setattr(Cutter, "again_told", again_told)


@mutant(seed=0, breaks={"OneOrder"}, shape=PLANNED)
def a_cut_at_the_highest_barrier(patch: Patch) -> None:
    """A cut lies at the least barrier of all partitions (DESIGN §5 Spark)."""
    patch.source(_CUTS, "least = max(stamps), min(stamps)", "least = max(stamps), max(stamps)")


@mutant(seed=4, breaks={"OneOrder"}, shape=PLANNED)
def a_cut_between_entries(patch: Patch) -> None:
    """A cut lies between the batches of an entry where they are stamped on both sides of it."""
    patch.source(
        _OFFSETS,
        "            behind = _cut_within(cached, location.stamp, state.next_offset)\n",
        "            behind = first\n",
    )


@mutant(seed=0, breaks={"OneOrder"}, shape=PLANNED)
def an_earlier_cut_has_the_stamp_of_the_later(patch: Patch) -> None:
    """A cut that is taken for a limit has its own stamp (counterexample 28)."""
    patch.source(_CUTS, "one.stamp, one.places, one.is_placed = stamp, places, True",
                 "one.places, one.is_placed = places, True")  # fmt: skip


@mutant(seed=0, breaks={"ReadWhole"}, shape=PLANNED)
def the_latest_cut_is_asked_for_once(patch: Patch) -> None:
    """What was confirmed before may be stamped as high as the partition that is furthest."""
    patch.source(_CUTS, "if one.request.latest and not one.again and", "if one.again and")


@mutant(seed=14, breaks={"Timely"}, shape=ASTRAY)
def a_wrong_clock_is_gone_by(patch: Patch) -> None:
    """A node whose clock is far from the others' uses the median and stops leading (ADR 0019)."""
    patch.setattr(Clocks, "wall_ms", lambda self: self.own_ms())
    patch.setattr(Clocks, "is_astray", lambda self, group: False)
