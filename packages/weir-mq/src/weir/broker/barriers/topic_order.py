"""One topic's order as one shard sees it: its partitions, their leaders, how far each is, and the
waiters.

What is known of partitions is soft state: its loss costs time, never order. Those who wait until an
order is further are known by session and by deadline.

The leader of partition 0 says above which stamp another belongs to the order, by an entry; once
that is committed it tells the registry, which lets the partition take messages above that stamp. So
a reader that got a barrier before has all messages that will ever lie below it (counterexample 6).

The leader of a partition that is to end seals it, by an entry: nothing comes behind that. Once all
in front of it is decided, the registry is told stamp and offset, and the leader of partition 0
enters them in the order's roster. Each step is found from entries alone, so that any later leader
can continue (DESIGN §5 Aggregation).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum, auto
from operator import attrgetter
from typing import NamedTuple

import msgspec

from weir.broker.api.settings import Layout
from weir.broker.forwarding.forwarder import NO_REPLY, Forwarder
from weir.broker.metadata.registry import Registry
from weir.broker.partition.partition import Partition, PartitionLeader
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.broker.state.state import PartitionState
from weir.errors import NotLeader, Overloaded, Refused
from weir.model.ids import group_of
from weir.model.limits import CONNECTIONS_MAX, RETRY_AFTER_MS
from weir.model.topic import End, Topic
from weir.order.barrier import NO_BARRIER, NO_BOUND, Barrier
from weir.order.clock import Time
from weir.protocol.client.messages import Confirm, Request
from weir.protocol.client.order import ReportEnded, ReportJoined

#: Deadlines of those who were told may stay in the heap, up to so many beyond the live ones.
_SLACK = 64


#: For callers to which the time of the last query does not matter.
ANYTIME = -1
_NEVER = (0, 0, 0)
#: How often the registry is told again what it does not know yet.
_REPORT_EVERY_MS = 1_000
#: What a majority has promised for each of some groups that are led here.
Fences = Callable[[Iterable[int]], Iterable[int]]
_group_of = attrgetter("group")


class Scope(IntEnum):
    """Of which partitions of a topic somebody is to be told."""

    #: Of all, wherever they are led: peers.
    ALL = auto()
    #: Of those in this shard's logs, wherever they are led: the other shards of this node.
    OWN = auto()
    #: Of those that are led by this shard: shards of other nodes.
    LED = auto()


class BarrierWaiter(msgspec.Struct, eq=False):
    """A caller that is answered once all partitions are at `stamp`, or at its deadline."""

    topic: int
    scope: Scope
    stamp: int
    deadline_ms: int
    #: Gets `Barriers`, or the `confirm` of a batch that is visible then.
    caller: Caller
    confirm: Confirm | None = None
    #: The number of a query: answers to it, or to earlier ones, will not do.
    after: int = ANYTIME
    #: The number of the cut that waits for this; 0: none does, and `caller` is told itself.
    cut: int = 0
    number: int = 0
    #: Whether it was told, or is gone.
    is_over: bool = False
    #: It gets the mark above this stamp instead of `Barriers`; ANYTIME: it does not. With `stamp` 0
    #: it waits for a stamp that somebody waits for.
    above: int = ANYTIME
    #: Whether a stream of marks gets one then, instead of an answer.
    is_demand: bool = False
    #: If partitions led here may have confirmed what is stamped above `stamp`, for their clock was
    #: set back since: how high each had stamped, as of the first look at it. It has to be there.
    given: dict[int, int] | None = None

    @property
    def is_parked(self) -> bool:
        """Whether it is not known yet which stamp it waits for."""
        return self.above != ANYTIME and not self.stamp


class BarrierWaiters:
    """All who wait at one shard, by session and by deadline."""

    __slots__ = ("_due", "_next", "_of", "waiting")

    def __init__(self) -> None:
        """Nobody waits."""
        #: By number.
        self.waiting: dict[int, BarrierWaiter] = {}
        self._of: dict[int, dict[int, None]] = {}
        self._due: list[tuple[int, int]] = []
        self._next = 0

    @property
    def due_ms(self) -> int | None:
        """The monotonic time in ms of the first deadline; None if nobody waits."""
        return self._due[0][0] if self.waiting else None

    def check_room(self) -> None:
        """Raise `Overloaded` if as many wait as peers may be connected."""
        if len(self.waiting) >= CONNECTIONS_MAX:
            raise Overloaded(
                f"{CONNECTIONS_MAX:,} wait for barriers here already: ask again shortly",
                RETRY_AFTER_MS,
            )

    def add(self, waiter: BarrierWaiter) -> None:
        """Let somebody wait, and give it a number."""
        number, self._next = self._next, self._next + 1
        waiter.number = number
        self.waiting[number] = waiter
        self._of.setdefault(waiter.caller.session, {})[number] = None
        if len(self._due) >= 2 * len(self.waiting) + _SLACK:
            self._due = [(one.deadline_ms, n) for n, one in self.waiting.items() if n != number]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (waiter.deadline_ms, number))

    def take(self, number: int) -> BarrierWaiter | None:
        """Let somebody wait no more; None if it does not."""
        waiter = self.waiting.pop(number, None)
        if waiter is not None:
            waiter.is_over = True
            session = waiter.caller.session
            numbers = self._of[session]
            del numbers[number]
            if not numbers:
                del self._of[session]
        return waiter

    def ended(self, now_ms: int) -> list[BarrierWaiter]:
        """Take out those whose time is up, the earliest deadline first."""
        found = []
        while self._due and self._due[0][0] <= now_ms:
            if (waiter := self.take(heapq.heappop(self._due)[1])) is not None:
                found.append(waiter)
        return found

    def session_closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        for number in list(self._of.get(session, ())):
            self.take(number)


class LedPartition(NamedTuple):
    """A partition that this shard leads."""

    partition: int
    group: int
    leading: PartitionLeader
    state: PartitionState

    @property
    def given(self) -> int:
        """The highest stamp of all messages that it has taken: its barrier gets there without any
        promise, once they are committed and decided.
        """
        return self.leading.appender.highest_under_way or self.state.last_stamp


class OrderPlan(NamedTuple):
    """All partitions of a scope: those led here, those that others lead, and where to ask."""

    partitions: list[int]
    led: list[LedPartition]
    others: list[int]
    #: By partition, the place that leads it as far as is known, for some of the others.
    places: dict[int, int]


class OrderPlanner:
    """Finds out where partitions are led."""

    __slots__ = ("_forwarder", "_layout", "_topics")

    def __init__(self, topics: Topics, forwarder: Forwarder, layout: Layout) -> None:
        """Look at what is served here, and ask the `forwarder` about the rest."""
        self._topics = topics
        self._forwarder = forwarder
        self._layout = layout

    def plan(
        self, topic: Topic, scope: Scope, joined: int, avoided: Collection[int] = ()
    ) -> OrderPlan:
        """Return where partitions of a topic are led, of which so many have `joined` for sure.
        Places that are `avoided` are not asked where another node has a replica.
        """
        count = max(topic.partitions, topic.founded_with + joined)
        led: list[LedPartition] = []
        others: list[int] = []
        places: dict[int, int] = {}
        for partition in self._of(topic.id, range(count), scope):
            group = group_of(topic.id, partition)
            here = self._topics.find(group)
            if here is not None and here.leading is not None:
                led.append(LedPartition(partition, group, here.leading, here.state))
            elif scope is not Scope.LED:
                others.append(partition)
                with suppress(NotLeader):  # the caller finds the leader by itself
                    place = self._forwarder.routes.toward(group)
                    if avoided and place in avoided:
                        place = self._elsewhere(group, avoided, place)
                    if place != self._forwarder.shard:
                        places[partition] = place
        partitions = sorted([one.partition for one in led] + others)
        return OrderPlan(partitions, led, others, places)

    def _elsewhere(self, group: int, avoided: Collection[int], place: int) -> int:
        """Return another place that may lead a group by now, or know its leader."""
        others = self._forwarder.routes.replicas(group)
        reached = self._forwarder.reaches
        return next((one for one in others if one not in avoided and reached(one)), place)

    def _of(self, topic: int, partitions: range, scope: Scope) -> Iterable[int]:
        if scope is not Scope.OWN:
            return partitions
        shard, shard_of = self._forwarder.shard, self._layout.shard_of
        return [p for p in partitions if shard_of(group_of(topic, p)) == shard]


class OrderQueue:
    """Waiters for one order: the lowest stamp first, and those parked until a stamp is demanded."""

    __slots__ = ("_highest", "_parked", "_parked_max", "_waiting", "first")

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: list[tuple[int, int, BarrierWaiter]] = []
        #: The same, the highest stamp first; some may be over.
        self._highest: list[tuple[int, int, BarrierWaiter]] = []
        #: Those who wait for a stamp that somebody waits for; some may be over.
        self._parked: deque[BarrierWaiter] = deque()
        #: If there are more, those who are over are taken out.
        self._parked_max = _SLACK
        #: The waiter for the lowest stamp: no other is told before it. It may be over since.
        self.first: BarrierWaiter | None = None

    def park(self, waiter: BarrierWaiter) -> None:
        """Let somebody wait for a stamp that somebody waits for."""
        self._parked.append(waiter)
        if len(self._parked) > self._parked_max:
            self._parked = deque(one for one in self._parked if not one.is_over)
            self._parked_max = 2 * len(self._parked) + _SLACK

    @property
    def has_parked(self) -> bool:
        """Whether somebody is parked. Each who was told, or is gone, is looked at once for that."""
        parked = self._parked
        while parked and parked[0].is_over:
            parked.popleft()
        return bool(parked)

    def demand(self, stamp: int) -> None:
        """Somebody waits for `stamp`: so do those who are parked and have no mark at it yet."""
        if not self._parked:
            return
        parked, self._parked = self._parked, deque()
        for waiter in parked:
            if waiter.is_over:
                continue
            if waiter.above < stamp:
                waiter.stamp = stamp
                self.add(waiter)
            else:
                self._parked.append(waiter)

    def add(self, waiter: BarrierWaiter) -> None:
        """Let somebody wait."""
        heapq.heappush(self._waiting, (waiter.stamp, waiter.number, waiter))
        heapq.heappush(self._highest, (-waiter.stamp, waiter.number, waiter))
        self.first = self._waiting[0][2]

    def next(self) -> BarrierWaiter | None:
        """Forget waiters that were answered, or are gone; return the `first` of the others."""
        waiting = self._waiting
        while waiting and waiting[0][2].is_over:
            heapq.heappop(waiting)
        self.first = waiting[0][2] if waiting else None
        if not waiting:
            self._highest.clear()
        return self.first

    @property
    def highest(self) -> int:
        """The highest stamp that somebody waits for; 0 if nobody waits."""
        highest = self._highest
        while highest and highest[0][2].is_over:
            heapq.heappop(highest)
        return highest[0][2].stamp if highest else 0


class TopicOrder:
    """The order of one topic: the known state of its partitions, and the waiters for progress."""

    __slots__ = ("_behind", "_heard", "_looked_for", "asked_ms", "behind_here", "ends", "lasts",
                 "looked_at", "plan", "planned_at", "queue", "registers", "roster", "scope",
                 "topic")  # fmt: skip

    def __init__(self, topic: int, scope: Scope) -> None:
        """Nothing is known of a topic, by its id."""
        self.topic = topic
        self.scope = scope
        self.asked_ms = 0
        self.registers: dict[int, Barrier] = {}
        self.roster: tuple[tuple[int, int], ...] = ()
        #: Those that have ended: nothing of them is above that stamp, or behind that offset.
        self.ends: dict[int, Barrier] = {}
        #: Where its partitions are led, as of a number of changes of leaders and of the roster.
        self.plan = OrderPlan([], [], [], {})
        self.planned_at = (-1, -1)
        #: By partition, the highest stamp of all that lies below the offset of its register, or a
        #: higher one. It is not known of registers that others told.
        self.lasts: dict[int, int] = {}
        #: By partition, the newest query in whose answer it was told.
        self._heard: dict[int, int] = {}
        self.queue = OrderQueue()
        #: How much had happened here when those led here were looked at last.
        self.looked_at = -1
        #: Of whom waits for the lowest stamp: those not known to be there, here and elsewhere.
        self.behind_here: list[LedPartition] = []
        self._behind: list[int] = []
        self._looked_for = _NEVER

    def take(self, registers: Iterable[tuple[int, int, int]], query: int = 0) -> None:
        """Keep what somebody who leads, or led, said of partitions, as far as it is news: of each
        its number, a stamp, and the offset behind all that is stamped at or below that.
        """
        known, heard = self.registers, self._heard
        for partition, stamp, through in registers:
            if stamp > known.get(partition, NO_BARRIER).stamp:
                known[partition] = tuple.__new__(Barrier, (stamp, through))  # in C: there are many
                self.lasts.pop(partition, None)
            if query and query > heard.get(partition, 0):
                heard[partition] = query

    def take_mark(self, stamp: int, throughs: Mapping[int, tuple[int, int]]) -> None:
        """Keep a mark of a set of partitions, as far as it is news: all stamped at or below `stamp`
        of each lies below an offset, and nothing below that above another stamp.
        """
        known, lasts = self.registers, self.lasts
        for partition, (through, highest) in throughs.items():
            if stamp > known.get(partition, NO_BARRIER).stamp:
                known[partition] = tuple.__new__(Barrier, (stamp, through))
                lasts[partition] = highest

    def learn(self, roster: Iterable[tuple[int, int]]) -> None:
        """Keep the longest roster: it only grows."""
        self.roster = max(self.roster, tuple(roster), key=len)

    def learn_end(self, partition: int, stamp: int, offset: int) -> None:
        """Keep that a partition has ended: nobody waits for it any more."""
        self.ends[partition] = Barrier(stamp, offset)

    def known(self, stamp: int) -> list[tuple[int, int, int]]:
        """Return what is known of all partitions to tell who asked for `stamp`: as in `take`."""
        registers, ends = self.registers, self.ends
        told = [(p, *registers.get(p, NO_BARRIER)) for p in self.plan.partitions]
        if not ends:
            return told
        # All of one that ended lies there, whatever stamp it is compared with.
        return [(p, max(ends[p].stamp, stamp), ends[p].through) if p in ends else (p, at, through)
                for p, at, through in told]  # fmt: skip

    def mark(self, above: int) -> tuple[int, list[tuple[int, int]]]:
        """Return up to which stamp the order is complete, and of each partition that may have
        messages stamped above `above`, the offset behind those.
        """
        registers, ends, lasts = self.registers, self.ends, self.lasts
        stamps: list[int] = []
        throughs: list[tuple[int, int]] = []
        for partition in self.plan.partitions:
            if (end := ends.get(partition)) is not None:
                last, through = end
            else:
                stamp, through = registers.get(partition, NO_BARRIER)
                last = lasts.get(partition, NO_BOUND)
                stamps.append(stamp)
            if last > above:
                throughs.append((partition, through))
        if not stamps:  # all have ended
            return max((end.stamp for end in ends.values()), default=0), throughs
        return min(stamps), throughs

    def take_plan(self, plan: OrderPlan, at: tuple[int, int]) -> None:
        """Go by where partitions are led now."""
        self.plan, self.planned_at = plan, at
        self._looked_for = _NEVER

    def is_behind(self, waiter: BarrierWaiter, fences: Fences) -> bool:
        """Return whether some partition is not where somebody waits for it. Each is looked at until
        it is there once; `fences` says what was promised for those that are led here.
        """
        given = waiter.given
        wanted = waiter.stamp, waiter.after, ANYTIME if given is None else waiter.number
        if self._looked_for != wanted:
            self._looked_for = wanted
            self.behind_here = list(self.plan.led)
            if given is not None:
                for one in self.plan.led:
                    given.setdefault(one.partition, one.given)
            self._behind = self._not_at(self.plan.others, waiter)
        here, others = self.behind_here, self._behind
        if here:
            del here[self.see(here, fences, waiter.stamp, given) :]
        if others and not here and not self._not_at(others[-1:], waiter):
            others[:] = self._not_at(others, waiter)
        return bool(here or others)

    def see(
        self, led: Sequence[LedPartition], fences: Fences, stamp: int,
        given: Mapping[int, int] | None = None,
    ) -> int:  # fmt: skip
        """Take what partitions say that are led here, from the last one on, until one is behind
        `stamp`, or behind what it had `given` if that is higher. Return how many are left; that
        one is the last of them.
        """
        registers, ends, lasts, left = self.registers, self.ends, self.lasts, len(led)
        promised = fences(map(_group_of, reversed(led)))
        for (partition, _, leading, state), fence in zip(reversed(led), promised, strict=False):
            barrier = leading.barrier(fence)
            at = barrier.stamp
            if at > registers.get(partition, NO_BARRIER).stamp:
                registers[partition] = barrier
                lasts[partition] = state.last_stamp
            membership = state.membership
            if membership.joined:  # at once: with a barrier above it, a floor must be known
                self.learn(membership.joined)
            if membership.ends:
                for ended, end in membership.ends.items():
                    self.learn_end(ended, *end)
            wanted = stamp if given is None else max(stamp, given[partition])
            if at < wanted and partition not in ends:
                break
            left -= 1
        return left

    def to_ask(self) -> tuple[bool, set[int]]:
        """Return whether leaders here have to promise, and the places of others that have to, for
        those that the last look found behind.
        """
        places, ends = self.plan.places, self.ends
        asked = {places[p] for p in self._behind if p in places and p not in ends}
        return any(led.partition not in ends for led in self.behind_here), asked

    def _not_at(self, partitions: Sequence[int], waiter: BarrierWaiter) -> list[int]:
        """Return those of these partitions, led elsewhere, that are not where somebody waits."""
        registers, ends, heard = self.registers, self.ends, self._heard
        stamp, after = waiter.stamp, waiter.after  # nothing is heard before ANYTIME
        return [p for p in partitions
                if (registers.get(p, NO_BARRIER).stamp < stamp or heard.get(p, 0) <= after)
                and p not in ends]  # fmt: skip


class Reports:
    """Tells the registry the same no more than once a second."""

    __slots__ = ("_forwarder", "_report_ms", "_time", "_told")

    def __init__(self, forwarder: Forwarder, time: Time) -> None:
        """Nothing was told yet."""
        self._forwarder = forwarder
        self._time = time
        #: What the registry was told of late, and until when that will do.
        self._told: set[Request] = set()
        self._report_ms = 0

    def forget_old(self) -> None:
        """Let all be told again that is still news, if it is time."""
        if (now := self._time.monotonic_ms()) >= self._report_ms:
            self._told.clear()
            self._report_ms = now + _REPORT_EVERY_MS

    def is_due_here(self, report: Request) -> bool:
        """Tell the registry, unless it was told of late; True if this shard leads it, so that the
        reporting component does so by itself.
        """
        if report in self._told:
            return False
        self._told.add(report)
        place = self._forwarder.routes.registry
        if place == self._forwarder.shard:
            return True
        with suppress(Refused):  # it is told again as long as it is news
            self._forwarder.ask_own(place, report, NO_REPLY)
        return False


class Steps:
    """What leaders of partitions do step by step, each found from entries, and each told."""

    __slots__ = ("_outbox", "_registry", "_reports", "_time", "_topics")

    def __init__(
        self, topics: Topics, registry: Registry, forwarder: Forwarder, outbox: Outbox, time: Time
    ) -> None:
        """Nothing is to be done yet."""
        self._topics = topics
        self._registry = registry
        self._outbox = outbox
        self._time = time
        self._reports = Reports(forwarder, time)

    def _has_no_reply(self, session: Session) -> None:
        """Another shard reports something: what that did, the registry shows."""
        self._outbox.answered(session.id)


class Growth(Steps):
    """Lets partitions join of topics whose partition 0 is led here."""

    __slots__ = ()

    def join_partitions(self) -> None:
        """Take the next step with each topic that grows."""
        growing = self._topics.catalog.growing
        if not growing:
            return
        self._reports.forget_old()
        for number in list(growing):
            topic = self._topics.catalog.by_id(number)
            first = self._topics.find(group_of(number, 0))
            if topic is not None and first is not None and first.leading is not None:
                self._grow(topic, first)

    def reported(self, session: Session, caller: Caller, request: ReportJoined) -> None:
        """Another shard says that a partition has joined."""
        self._has_no_reply(session)
        self._registry.administration.joined(request)

    def _grow(self, topic: Topic, first: Partition) -> None:
        joined = dict(first.state.membership.joined)
        for partition in range(topic.partitions, topic.joining):
            if partition not in joined:
                assert first.leading is not None  # it was asked for
                first.leading.membership.join(partition, self._time.wall_ms())
            else:
                self._tell(ReportJoined(topic.id, partition, joined[partition]))

    def _tell(self, report: ReportJoined) -> None:
        if self._reports.is_due_here(report):
            with suppress(Refused):  # it is told again as long as it is news
                self._registry.administration.joined(report)


class Ends(Steps):
    """Ends partitions that are led here, and enters the ends of others in partition 0."""

    __slots__ = ()

    def end_partitions(self) -> None:
        """Take the next step with each partition that is to end."""
        catalog = self._topics.catalog
        if not catalog.ending:
            return
        self._reports.forget_old()
        for number in list(catalog.ending):
            topic = catalog.by_id(number)
            for end in topic.ends if topic is not None else ():
                if not end.done:
                    assert topic is not None  # it has ends
                    self._go_on(topic, end)

    def reported(self, session: Session, caller: Caller, request: ReportEnded) -> None:
        """Another shard says how far a partition is."""
        self._has_no_reply(session)
        self._registry.endings.reported(request)

    def _go_on(self, topic: Topic, end: End) -> None:
        partition = 0 if end.stamp else end.partition
        found = self._topics.find(group_of(topic.id, partition))
        if found is None or found.leading is None:
            return
        if end.stamp:
            self._enter(found, topic, end)
        else:
            self._seal(found, topic, end.partition)

    def _seal(self, found: Partition, topic: Topic, partition: int) -> None:
        state = found.state
        if not state.membership.sealed:
            assert found.leading is not None  # it was asked for
            with suppress(Refused):  # it is tried again with the next event
                found.leading.seal(self._time.wall_ms())
        elif state.decided_offset == state.next_offset:
            self._tell(ReportEnded(topic.id, partition, state.membership.sealed, state.next_offset))

    def _enter(self, first: Partition, topic: Topic, end: End) -> None:
        if end.partition in first.state.membership.ends:
            self._tell(ReportEnded(topic.id, *end[:3], done=True))
            return
        assert first.leading is not None  # it was asked for
        with suppress(Refused):
            first.leading.membership.end(*end[:3])

    def _tell(self, report: ReportEnded) -> None:
        if self._reports.is_due_here(report):
            with suppress(Refused):
                self._registry.endings.reported(report)
