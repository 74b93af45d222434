"""A shard's part in the total order of each topic: callers that ask how far it is complete, their
answers, and the promises of the leaders here (DESIGN §5).

The shard that is asked looks at what it leads, and subscribes to marks of each other shard that
leads some: see `streams`. A request for news has those asked, in one query that is answered once
all are there, or when its time is up.

A promise says what no leader here stamps any more. It is one number for all groups that are led
over a link. Many who ask share a question, and the next one goes out once all have answered the
last, or after `PROMISE_EVERY_MS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

import weir_raft as raft
from weir.broker.api.settings import Layout
from weir.broker.barriers.streams import MarkStream, MarkStreams, Subscriptions
from weir.broker.barriers.topic_order import (
    ANYTIME,
    BarrierWaiter,
    BarrierWaiters,
    OrderPlanner,
    Scope,
    TopicOrder,
)
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.partition.partition import PartitionContext
from weir.broker.partition.topics import Topics
from weir.broker.produce.appender import VisibleConfirm
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import BadRequest, Refused, Unavailable, UnknownTopic
from weir.model.ids import topic_of
from weir.model.limits import MAX_AHEAD_MS, PROMISE_EVERY_MS, WAIT_MS_MAX
from weir.model.topic import Topic
from weir.order.barrier import Bound
from weir.order.clock import HighestStamp, Time, stamp_at
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.order import AskBarriers, AwaitMark, Barriers, OrderMark, SubscribeMarks
from weir.protocol.frame import ClientFrame

_AHEAD = stamp_at(MAX_AHEAD_MS)
#: A shard that stamps nothing promises so far ahead of its clock where it was asked of late: those
#: who ask next have that promise already.
IDLE_AHEAD_MS = 250
#: Without a stamp for so long it stamps nothing; and what was asked within as long was of late.
IDLE_AFTER_MS = 1_000
#: How long other shards wait at most before they answer: the leader may change meanwhile.
_WAIT_MS_MAX = 1_000
#: An answer that has not come so long after it was due is lost.
_LATE_MS = 1_000
#: What was known of a topic is forgotten when nobody has asked for so long.
_FORGET_MS = 60_000
_SUBSCRIBE = opcode_of(SubscribeMarks)
#: A caller that waits until a batch is visible is told by then that it is not.
VISIBLE_MS_MAX = 10_000


class Bounded(Protocol):
    """A log of this shard: promises of its voters are bounded by what lies in it."""

    @property
    def bound(self) -> Bound:
        """How far they may go."""

    def extend_bound(self) -> None:
        """Write how far promises may go, unless there is enough in hand."""


class Promises:
    """Lets all clocks of this shard go above a stamp, and asks the voters to remember that."""

    __slots__ = ("_asked_ms", "_highest", "_logs", "_multi", "_next", "_time", "is_pending",
                 "rounds", "wanted")  # fmt: skip

    def __init__(
        self, multi: raft.Multi, highest: HighestStamp, logs: Sequence[Bounded], time: Time
    ) -> None:
        """Begin without requests; promises made before this start hold."""
        self._multi = multi
        #: How often the voters of all groups that are led here were asked for a promise.
        self.rounds = 0
        self._highest = highest
        self._logs = logs
        self._time = time
        #: What is to be promised next, and when the last question went out.
        self._next = 0
        self._asked_ms = -IDLE_AFTER_MS
        #: The highest fence that anybody asked for, when bounds were last looked at; and whether
        #: something waits for answers, or for a bound.
        self.wanted = 0
        self.is_pending = False
        multi.raise_bound(self._bound())

    def ask(self, stamp: int) -> None:
        """Promise that nothing is stamped at or below `stamp`, or the time if that is later, by any
        leader here from now on. What lies too far ahead is promised as far as a client may see.
        Where nothing is stamped, and promises were asked for of late, the time is that of
        `IDLE_AHEAD_MS` later, unless so much as was asked for is promised already.
        """
        wall_ms = self._time.wall_ms()
        now = stamp_at(wall_ms)
        wanted = max(now, min(stamp, now + _AHEAD))
        if wanted > self._multi.fence_asked and self._is_idle(wall_ms):
            wanted = max(wanted, stamp_at(wall_ms + IDLE_AHEAD_MS))
        self._next = max(wanted, self._next)
        self._ask_next(now)

    @property
    def unheard(self) -> int:
        """The lowest stamp that no clock here gave, and that nobody was asked for."""
        return max(self._highest.stamp, self._multi.fence_asked) + 1

    def ask_again(self) -> None:
        """Somebody waits for what was asked: the answers may have been less than that, or lost."""
        now = stamp_at(self._time.wall_ms())
        self._next = max(self._next, now, self._multi.fence_asked + 1)
        self._ask_next(now)

    def pursue(self) -> None:
        """Ask what waited for answers to the last question, and extend bounds that are needed."""
        multi = self._multi
        if self._next > multi.fence_asked:
            self._ask_next(stamp_at(self._time.wall_ms()))
        wanted = multi.fence_wanted
        # A bound follows this clock, so it may take several to come to what a clock that is ahead
        # asked for; later questions may ask for less than that, and for more than the bound.
        if wanted > self.wanted or wanted > multi.fence_bound:
            self.wanted = wanted
            for log in self._logs:
                log.extend_bound()
        if multi.fence_bound < self.wanted:
            self._raise_bound()
        self.is_pending = self._next > multi.fence_asked or wanted > multi.fence_bound

    def _is_idle(self, wall_ms: int) -> bool:
        """Return whether nobody here stamps, but is asked for promises again."""
        if self._time.monotonic_ms() - self._asked_ms >= IDLE_AFTER_MS:
            return False
        return self._highest.stamp <= stamp_at(wall_ms - IDLE_AFTER_MS)

    def _raise_bound(self) -> None:
        bound = self._bound()
        if bound > self._multi.fence_bound:
            self._multi.raise_bound(bound)

    def _bound(self) -> int:
        return min((log.bound.durable for log in self._logs), default=0)

    def _ask_next(self, now: int) -> None:
        """Ask for what is to be promised next, or the stamp of `now` if that is higher."""
        now_ms, multi = self._time.monotonic_ms(), self._multi
        if self._next <= multi.fence_asked:
            return
        self.is_pending = True
        if now_ms - self._asked_ms < PROMISE_EVERY_MS and not multi.all_answered:
            return
        self._next = max(self._next, now)
        self._asked_ms = now_ms
        self._highest.promised = max(self._highest.promised, self._next)
        self.rounds += 1
        multi.ask(self._next)


class BarrierQuery(msgspec.Struct, frozen=True):
    """What was asked of the shard at `place`, until monotonic time `until_ms` at most."""

    topic: int
    scope: Scope
    place: int
    number: int
    stamp: int
    until_ms: int

    @property
    def key(self) -> tuple[int, Scope, int]:
        """Only one of these is under way."""
        return self.topic, self.scope, self.place


class BarrierQueries:
    """Asks the shards at other places how far topics' partitions are that they lead."""

    __slots__ = ("_forwarder", "_numbered", "_time", "_under_way", "newest")

    def __init__(self, forwarder: Forwarder, time: Time) -> None:
        """Ask nobody yet."""
        self._forwarder = forwarder
        self._time = time
        #: The number of the last query.
        self.newest = 0
        self._under_way: dict[tuple[int, Scope, int], BarrierQuery] = {}
        self._numbered: dict[int, BarrierQuery] = {}

    def ask(self, waiter: BarrierWaiter, place: int) -> None:
        """Ask a place for what somebody waits for, unless a query is under way there that will do,
        and is answered no later.
        """
        topic, scope, stamp = waiter.topic, waiter.scope, waiter.stamp
        asked = self._under_way.get((topic, scope, place))
        if asked is not None:
            if asked.stamp <= stamp and asked.number > waiter.after:
                return
            self._forget(asked)
        self.newest += 1
        now = self._time.monotonic_ms()
        wait_ms = min(max(waiter.deadline_ms - now, 1), _WAIT_MS_MAX)
        query = BarrierQuery(topic, scope, place, self.newest, stamp, now + wait_ms + _LATE_MS)
        request = AskBarriers(topic, stamp, wait_ms, waiter.after != ANYTIME)
        with suppress(Refused):  # it is asked again with the next tick
            self._forwarder.ask_own(place, request, query.number)
            self._under_way[query.key] = self._numbered[query.number] = query

    def answered(self, number: int) -> BarrierQuery | None:
        """A query is answered, or refused; return it unless nobody waits for that any more."""
        query = self._numbered.get(number)
        if query is not None:
            self._forget(query)
        return query

    def trunk_closed(self, place: int) -> None:
        """What was asked of a place has no answer any more."""
        for query in [one for one in self._numbered.values() if one.place == place]:
            self._forget(query)

    def drop_late(self) -> None:
        """Wait no longer for what does not come."""
        if not self._numbered:
            return
        now = self._time.monotonic_ms()
        for query in [one for one in self._numbered.values() if one.until_ms <= now]:
            self._forget(query)

    def _forget(self, query: BarrierQuery) -> None:
        del self._under_way[query.key], self._numbered[query.number]


class OrderReached(NamedTuple):
    """What a cut waited for: a topic's barriers, None if the topic is gone."""

    cut: int
    topic: int
    barriers: Barriers | None


class BarrierAnswers:
    """Answers those who ask for the barriers of topics, and confirms what is visible."""

    __slots__ = ("_events", "_multi", "_orders", "_outbox", "_planner", "_promises", "_queries",
                 "_subscriptions", "_time", "_topics", "reached", "streams", "waiters")  # fmt: skip

    def __init__(
        self, topics: Topics, promises: Promises, multi: raft.Multi, forwarder: Forwarder,
        layout: Layout, context: PartitionContext,
    ) -> None:  # fmt: skip
        """Begin without requests; `multi` says what was promised to the groups led here."""
        self._topics = topics
        self._promises = promises
        self._multi = multi
        self._planner = OrderPlanner(topics, forwarder, layout)
        self._events = context.events
        self._outbox = context.outbox
        self._time = time = context.time
        #: The waiters; and events for waiting cuts, until those are looked at.
        self.waiters = BarrierWaiters()
        self.reached: deque[OrderReached] = deque()
        self._queries = BarrierQueries(forwarder, time)
        self._orders: dict[tuple[int, Scope], TopicOrder] = {}
        #: What goes to other shards that have subscribed here, and comes from others.
        self.streams = MarkStreams(context.outbox, time)
        self._subscriptions = Subscriptions(forwarder, time)
        forwarder.listen(self, AskBarriers, SubscribeMarks)

    @property
    def due_ms(self) -> int | None:
        """The monotonic time before which time brings nothing to those who wait; None if nobody
        waits. It is 0 where a stamp is waited for that not all are at, for others are asked again
        with each tick, and where a mark was left to the next one.
        """
        firsts = [order.queue.first for order in self._orders.values()]
        if self.streams.has_late or any(one is not None and not one.is_over for one in firsts):
            return 0
        return self.waiters.due_ms

    def ask(self, session: Session, caller: Caller, request: AskBarriers) -> None:
        """Answer now or later. Raises `UnknownTopic` or `Overloaded`."""
        topic = self._topics.catalog.by_id(request.topic)
        if topic is None:
            raise gone(request.topic)
        self.waiters.check_room()
        scope = Scope.ALL
        if session.is_shard:
            scope = Scope.LED if session.foreign else Scope.OWN
        stamp, after, given = self._asked(request.stamp, request.anew)
        deadline_ms = self._time.monotonic_ms() + min(request.wait_ms, WAIT_MS_MAX)
        waiter = BarrierWaiter(
            topic.id, scope, stamp, deadline_ms, caller, after=after, given=given
        )
        self._wait(waiter)

    def await_mark(self, session: Session, caller: Caller, request: AwaitMark) -> None:
        """Answer with a mark, now or later. Raises `UnknownTopic`, `BadRequest` or `Overloaded`."""
        topic = self._topics.catalog.by_id(request.topic)
        if topic is None:
            raise gone(request.topic)
        if session.is_shard:
            raise BadRequest("a mark is of all partitions: ask another shard with AskBarriers")
        self.waiters.check_room()
        deadline_ms = self._time.monotonic_ms() + min(request.wait_ms, WAIT_MS_MAX)
        waiter = BarrierWaiter(
            topic.id, Scope.ALL, request.stamp, deadline_ms, caller, above=request.above
        )
        self._wait(waiter)

    def subscribe(self, session: Session, caller: Caller, request: SubscribeMarks) -> None:
        """Send another shard marks, and one as soon as all are at what it demands. Raises
        `UnknownTopic` or `Overloaded`.
        """
        if self._topics.catalog.by_id(request.topic) is None:
            raise gone(request.topic)
        if request.is_over:
            self._outbox.answered(session.id)
            self.streams.end(session.id, request.topic)
            return
        self.waiters.check_room()
        self._outbox.answered(session.id)
        scope = Scope.LED if session.foreign else Scope.OWN
        stream = self.streams.open(caller, request.topic, scope)
        if request.stamp:
            before = stream.demands.get(request.stamp)
            waiter = self.streams.demand(stream, request.stamp)
            if before is not None:  # it is repeated
                self.waiters.take(before.number)
            if waiter is not None:
                self._wait(waiter)
        if not stream.number and not stream.is_due:
            self._send_mark(stream)  # so that the set is announced, and the way measured

    def await_order(
        self, topic: int, stamp: int, deadline_ms: int, caller: Caller, cut: int
    ) -> None:
        """Let `reached` tell the barriers of a topic's partitions once all are at `stamp`, or with
        0 once all are asked anew; or at a deadline, as they are. Raises `Overloaded`.
        """
        self.waiters.check_room()
        at, after, given = self._asked(stamp, False)
        waiter = BarrierWaiter(
            topic, Scope.ALL, at, deadline_ms, caller, after=after, cut=cut, given=given
        )
        self._wait(waiter)

    def _asked(self, stamp: int, anew: bool) -> tuple[int, int, dict[int, int] | None]:
        """Return, for a request of `stamp`, the stamp that all partitions must reach, the query
        after which they must be asked, and the value of `BarrierWaiter.given`.
        """
        if stamp and not anew:
            return stamp, ANYTIME, None
        # So that only a promise that is asked for now can get there, or a commit.
        now, unheard = stamp_at(self._time.wall_ms()), self._promises.unheard
        promised = min(unheard, now + _AHEAD)
        # What is undecided may hold a partition between that and what it has confirmed.
        given: dict[int, int] | None = None if promised == unheard else {}
        return max(stamp or now, promised), self._queries.newest, given

    def confirm_visible(self, one: VisibleConfirm) -> None:
        """Confirm a batch once nothing can come at or below its stamp any more in any partition of
        its topic, or say that this takes too long.
        """
        topic, stamp = topic_of(one.group), one.confirm.stamp
        try:
            if self._topics.catalog.by_id(topic) is None:
                raise gone(topic)
            self.waiters.check_room()
        except Refused as error:
            self._outbox.refuse(one.caller, error)
            return
        deadline_ms = self._time.monotonic_ms() + VISIBLE_MS_MAX
        self._wait(BarrierWaiter(topic, Scope.ALL, stamp, deadline_ms, one.caller, one.confirm))

    def answer_reached(self) -> None:
        """Tell those whose stamp is reached by all partitions, where that may have changed here."""
        happened, leads = self._happened, self._events.leads_changed
        for order in self._orders.values():
            first = order.queue.first
            if first is None:
                continue
            is_news = order.looked_at != happened and bool(order.behind_here)
            if is_news or order.planned_at[0] != leads or first.is_over:
                self._look(order)
                if order.queue.first is not None and order.queue.first is not first:
                    self._pursue(order)  # who waited for less was in front of it

    def demand_proposed(self) -> None:
        """Let those who follow a topic wait for what its leaders here have proposed: promises are
        sought while it is committed.
        """
        proposed, followed = self._events.proposed, self._events.followed
        for topic, stamp in list(proposed.items()):
            order = self._orders.get((topic, Scope.ALL))
            if order is None or not order.queue.has_parked:
                followed.discard(topic)
                continue
            before = order.queue.first
            order.queue.demand(stamp)
            if order.queue.first is not before:
                self._look(order)
                self._pursue(order)
            if not order.queue.has_parked:
                followed.discard(topic)
        proposed.clear()

    def check_deadlines(self) -> None:
        """Tell those whose time is up what is known, and ask again for others."""
        now = self._time.monotonic_ms()
        self._queries.drop_late()
        self._subscriptions.tick()
        for waiter in self.waiters.ended(now):
            self._tell(waiter, False)
        for stream in self.streams.all():
            if self.streams.tick(stream):
                self._send_mark(stream)
        for key, order in list(self._orders.items()):
            if order.queue.next() is not None:
                order.planned_at = (-1, -1)  # others may lead, of which nothing is heard
                self._look(order)
                self._pursue(order, again=True)
            elif not order.queue.has_parked and now - order.asked_ms >= _FORGET_MS:
                del self._orders[key]
                if not any(topic == key[0] for topic, _ in self._orders):
                    self._subscriptions.end(key[0])

    def trunk_closed(self, place: int) -> None:
        """The trunk to another shard broke."""
        self._queries.trunk_closed(place)
        self._subscriptions.trunk_closed(place)

    def session_closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self.waiters.session_closed(session)
        self.streams.session_closed(session)

    def send_due(self) -> None:
        """Send the marks that have come due."""
        for stream in list(self.streams.due):
            self._send_mark(stream)

    # -- those who wait ----------------------------------------------------------------------

    def _wait(self, waiter: BarrierWaiter) -> None:
        order = self._order(waiter.topic, waiter.scope)
        now = order.asked_ms
        self.waiters.add(waiter)
        if waiter.is_parked:
            if waiter.deadline_ms <= now:
                self._tell(waiter, False)
                return
            order.queue.park(waiter)
            self._events.followed.add(waiter.topic)
            return
        order.queue.add(waiter)
        if waiter.scope is Scope.ALL:
            order.queue.demand(waiter.stamp)
        self._look(order)
        if waiter.is_over:
            return
        self._pursue(order)  # what comes of it at once, `answer_reached` finds behind this event
        if waiter.deadline_ms <= now:
            self._look(order)
            if not waiter.is_over:
                self._tell(waiter, False)

    def _order(self, topic: int, scope: Scope) -> TopicOrder:
        """Return the order that somebody asks for."""
        key = topic, scope
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = TopicOrder(*key)
        order.asked_ms = self._time.monotonic_ms()
        return order

    def _send_mark(self, stream: MarkStream) -> None:
        """Send another shard a mark of what is known now."""
        topic = self._topics.catalog.by_id(stream.topic)
        if topic is None:
            self.streams.end(stream.caller.session, stream.topic)
            return
        order = self._order(stream.topic, stream.scope)
        plan = order.plan
        self._take_plan(order, topic)
        # When a demand is met, all were looked at just now: nothing is known better since.
        was_looked_at = order.queue.first is None and order.looked_at == self._happened
        if not was_looked_at or order.plan is not plan:
            self._refresh(order, topic)
        stream.leave_out(order, order.asked_ms)
        self.streams.send(stream, order)

    @property
    def _happened(self) -> int:
        """A number that rises whenever something may be known better of partitions led here."""
        return self._multi.fence_changes + self._events.entries_applied

    def _refresh(self, order: TopicOrder, topic: Topic) -> None:
        """Take what all partitions say that are led here."""
        self._take_plan(order, topic)
        order.see(order.plan.led, self._multi.fences, 0)
        self._take_plan(order, topic)

    def _look(self, order: TopicOrder) -> None:
        """Tell those whose stamp is reached."""
        multi = self._multi
        topic = self._topics.catalog.by_id(order.topic)
        order.looked_at = self._happened
        while (waiter := order.queue.first) is not None:
            if waiter.is_over:
                order.queue.next()
                continue
            while topic is not None:
                joined = len(order.roster)
                self._take_plan(order, topic)
                if order.is_behind(waiter, multi.fences):
                    return
                if joined == len(order.roster):
                    break  # else there is one more to look at
            self._tell(waiter, True)

    def _tell(self, waiter: BarrierWaiter, reached: bool) -> None:
        self.waiters.take(waiter.number)
        topic = self._topics.catalog.by_id(waiter.topic)
        caller, confirm = waiter.caller, waiter.confirm
        if waiter.is_demand:
            self.streams.told(waiter, reached)
            return
        if confirm is not None:
            if reached and topic is not None:
                self._outbox.reply(caller, confirm)
            else:
                self._outbox.refuse(caller, _not_visible())
            return
        if topic is None:
            if waiter.cut:
                self.reached.append(OrderReached(waiter.cut, waiter.topic, None))
            else:
                self._outbox.refuse(caller, gone(waiter.topic))
            return
        order = self._orders[waiter.topic, waiter.scope]
        if not reached:  # else all was looked at of late
            self._refresh(order, topic)
        if waiter.above != ANYTIME:
            mark, throughs = order.mark(waiter.above)
            partitions, ended = len(order.plan.partitions), len(order.ends)
            self._outbox.reply(
                caller, OrderMark(topic.id, mark, partitions, throughs, ended, reached)
            )
            return
        ends = tuple((partition, *end) for partition, end in sorted(order.ends.items()))
        known = Barriers(topic.id, order.known(waiter.stamp), order.roster, reached, ends)
        if waiter.cut:
            self.reached.append(OrderReached(waiter.cut, waiter.topic, known))
        else:
            self._outbox.reply(caller, known)

    def _take_plan(self, order: TopicOrder, topic: Topic) -> None:
        joined = len(order.roster)
        at = self._events.leads_changed, max(topic.partitions, topic.founded_with + joined)
        if order.planned_at != at:
            avoided = self._subscriptions.avoided
            order.take_plan(self._planner.plan(topic, order.scope, joined, avoided), at)

    def _pursue(self, order: TopicOrder, again: bool = False) -> None:
        """Have all partitions that are behind what is waited for promise that they get there."""
        waiter = order.queue.first
        if waiter is None:
            return
        here, places = order.to_ask()
        if here and again:
            self._promises.ask_again()
        elif here:
            self._promises.ask(waiter.stamp)
        if waiter.after != ANYTIME:  # what was heard before will not do
            for place in sorted(places):
                self._queries.ask(waiter, place)
            return
        stamps = {waiter.stamp, max(order.queue.highest, waiter.stamp)}
        for place in sorted(places):
            if not self._subscriptions.demand(order.topic, place, stamps):
                self._queries.ask(waiter, place)

    # -- answers -----------------------------------------------------------------------------

    def answered(self, frame: ClientFrame) -> None:
        """Another shard says how far what it leads is."""
        if frame.opcode == _SUBSCRIBE:
            self._marked(frame)
            return
        query, reply = self._queries.answered(frame.correlation), decode_reply(frame)
        if query is None or not isinstance(reply, Barriers):
            return
        order = self._orders.get((query.topic, query.scope))
        if order is None:
            return
        # One that was not asked anew, for its time was up, says nothing of now.
        order.take(reply.registers, query.number * reply.reached)
        order.learn(reply.roster)
        for end in reply.ends:
            order.learn_end(*end)
        self._look(order)
        waiter = order.queue.first
        if waiter is not None and (waiter.stamp > query.stamp or waiter.after >= query.number):
            self._pursue(order)

    def _marked(self, frame: ClientFrame) -> None:
        """A mark came from another shard; of whatever scope a reader here is, it holds."""
        taken = self._subscriptions.take(frame)
        if taken is None:
            return
        subscription, mark = taken
        for scope in (Scope.ALL, Scope.OWN):
            order = self._orders.get((mark.topic, scope))
            if order is None:
                continue
            order.learn(mark.roster)
            for end in mark.ends:
                order.learn_end(*end)
            order.take_mark(mark.stamp, subscription.throughs)
            first = order.queue.first
            if first is None:
                continue
            self._look(order)
            if order.queue.first is not None and order.queue.first is not first:
                self._pursue(order)


def gone(topic: int) -> UnknownTopic:
    """Return what is said of a topic that is not there."""
    return UnknownTopic(f"no topic has id {topic}: it was deleted, or there never was one", topic)


def _not_visible() -> Unavailable:
    return Unavailable(
        "it is committed, but not all of the topic's partitions have got so far, or can: send it "
        "again to wait on"
    )
