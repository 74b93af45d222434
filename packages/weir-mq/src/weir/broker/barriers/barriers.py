"""A shard's part in the one order of each topic: who asks how far it is complete, what they are
told.

The shard that is asked looks at what it leads, and asks each other shard that leads some, in one
question that is answered once all are there, or when its time is up. So nothing flows but between
those who ask and those who lead (DESIGN §5 Aggregation).

What this shard's leaders promise, and what its voters do, is one number for all groups that are led
over a link, and nothing flows but while somebody asks (DESIGN §5 Barrier safety). Many who ask
share a question: the next one goes out once all have answered the last, or after
`PROMISE_EVERY_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import weir_raft as raft
from weir.broker.api.settings import Layout
from weir.broker.barriers.membership import Ends, Growth
from weir.broker.barriers.topic_order import (
    ANYTIME,
    BarrierWaiter,
    BarrierWaiters,
    Domain,
    Planner,
    Scope,
)
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.registry import Registry
from weir.broker.partition.context import Surroundings
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import Refused, UnknownTopic
from weir.model.ids import topic_of
from weir.model.limits import MAX_AHEAD_MS, PROMISE_EVERY_MS, WAIT_MS_MAX
from weir.model.stamp import stamp_at
from weir.model.topic import Topic
from weir.order.barrier import Bound
from weir.order.clock import Highest, Time
from weir.protocol.client.barriers import AskBarriers, Barriers, ReportEnded, ReportJoined
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import ClientFrame

#: How long others wait at most before they tell what they know: who leads may change meanwhile.
_WAIT_MS_MAX = 1_000
#: An answer that has not come so long after it was due is lost.
_LATE_MS = 1_000
#: What was known of a topic is forgotten when nobody has asked for so long.
_FORGET_MS = 60_000
#: Who is to be told when a batch is visible is told by then that it is not.
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

    __slots__ = ("_asked_ms", "_highest", "_logs", "_multi", "_next", "_time", "_wanted", "fenced")

    def __init__(
        self, multi: raft.Multi, highest: Highest, logs: Sequence[Bounded], time: Time
    ) -> None:
        """Nobody asks for anything yet; what was promised before this start holds."""
        self._multi = multi
        #: Returns the highest stamp that the voters of a group led here promised to stand by.
        self.fenced: Callable[[int], int] = multi.fenced
        self._highest = highest
        self._logs = logs
        self._time = time
        #: What is to be promised next, and when the last question went out.
        self._next = 0
        self._asked_ms = -PROMISE_EVERY_MS
        #: The highest fence that anybody asked for, when bounds were last looked at.
        self._wanted = 0
        multi.raise_bound(self._bound())

    def ask(self, stamp: int) -> None:
        """Promise that nothing is stamped at or below `stamp`, or the time if that is later, by any
        leader here from now on. What lies too far ahead is promised as far as a client may see.
        """
        wall = self._time.wall_ms()
        self._next = max(stamp_at(wall), min(stamp, stamp_at(wall + MAX_AHEAD_MS)), self._next)
        self._go_on()

    @property
    def unheard(self) -> int:
        """The lowest stamp that no clock here gave, and that nobody was asked for."""
        return max(self._highest.stamp, self._multi.fence_asked) + 1

    def ask_again(self) -> None:
        """Somebody waits for what was asked: the answers may have been less than that, or lost."""
        self._next = max(self._next, stamp_at(self._time.wall_ms()), self._multi.fence_asked + 1)
        self._go_on()

    @property
    def is_due(self) -> bool:
        """Whether `advance` has something to look at."""
        multi = self._multi
        wanted = multi.fence_wanted
        return wanted > self._wanted or wanted > multi.fence_bound or self._next > multi.fence_asked

    def advance(self) -> None:
        """Ask what waited for answers to the last question, and extend bounds that are needed."""
        self._go_on()
        wanted = self._multi.fence_wanted
        # A bound follows this clock, so it may take several to come to what a clock that is ahead
        # asked for; later questions may ask for less than that, and for more than the bound.
        if wanted > self._wanted or wanted > self._multi.fence_bound:
            self._wanted = wanted
            for log in self._logs:
                log.extend_bound()
        if self._multi.fence_bound < self._wanted:
            self._raise_bound()

    def _raise_bound(self) -> None:
        bound = self._bound()
        if bound > self._multi.fence_bound:
            self._multi.raise_bound(bound)

    def _bound(self) -> int:
        return min((log.bound.durable for log in self._logs), default=0)

    def _go_on(self) -> None:
        now = self._time.monotonic_ms()
        multi = self._multi
        if self._next <= multi.fence_asked:
            return
        if now - self._asked_ms < PROMISE_EVERY_MS and not multi.all_answered:
            return
        self._next = max(self._next, stamp_at(self._time.wall_ms()))
        self._asked_ms = now
        self._highest.promised = max(self._highest.promised, self._next)
        multi.ask(self._next)


@dataclass(frozen=True, slots=True)
class BarrierQuery:
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

    __slots__ = ("_count", "_numbered", "_passing", "_time", "_under_way")

    def __init__(self, passing: Forwarder, time: Time) -> None:
        """Ask nobody yet."""
        self._passing = passing
        self._time = time
        self._count = 0
        self._under_way: dict[tuple[int, Scope, int], BarrierQuery] = {}
        self._numbered: dict[int, BarrierQuery] = {}

    @property
    def newest(self) -> int:
        """The number of the last question."""
        return self._count

    def ask(self, asker: BarrierWaiter, place: int) -> None:
        """Ask a place for what somebody waits for, unless a question is under way there that will
        do, and is answered no later.
        """
        topic, scope, stamp = asker.topic, asker.scope, asker.stamp
        asked = self._under_way.get((topic, scope, place))
        if asked is not None:
            if asked.stamp <= stamp and asked.number > asker.after:
                return
            self._forget(asked)
        self._count += 1
        now = self._time.monotonic_ms()
        wait_ms = min(max(asker.deadline_ms - now, 1), _WAIT_MS_MAX)
        question = BarrierQuery(topic, scope, place, self._count, stamp, now + wait_ms + _LATE_MS)
        request = AskBarriers(topic, stamp, wait_ms, asker.after != ANYTIME)
        with suppress(Refused):  # it is asked again with the next tick
            self._passing.ask_own(place, request, question.number)
            self._under_way[question.key] = self._numbered[question.number] = question

    def answered(self, number: int) -> BarrierQuery | None:
        """A question is answered, or refused; return it unless nobody waits for that any more."""
        question = self._numbered.get(number)
        if question is not None:
            self._forget(question)
        return question

    def lost(self, place: int) -> None:
        """What was asked of a place has no answer any more."""
        for question in [one for one in self._numbered.values() if one.place == place]:
            self._forget(question)

    def tick(self) -> None:
        """Wait no longer for what does not come."""
        if not self._numbered:
            return
        now = self._time.monotonic_ms()
        for question in [one for one in self._numbered.values() if one.until_ms <= now]:
            self._forget(question)

    def _forget(self, question: BarrierQuery) -> None:
        del self._under_way[question.key], self._numbered[question.number]


class Domains:
    """Answers those who ask for the barriers of topics."""

    __slots__ = ("_domains", "_outbox", "_planner", "_promises",
                 "_questions", "_shared", "_time", "_topics", "askers")  # fmt: skip

    def __init__(
        self, topics: Topics, promises: Promises, passing: Forwarder, layout: Layout,
        shared: Surroundings,
    ) -> None:  # fmt: skip
        """Nobody asks yet."""
        self._topics = topics
        self._promises = promises
        self._planner = Planner(topics, passing, layout)
        self._shared = shared
        self._outbox = shared.outbox
        self._time = time = shared.time
        #: Who waits.
        self.askers = BarrierWaiters()
        self._questions = BarrierQueries(passing, time)
        self._domains: dict[tuple[int, Scope], Domain] = {}
        passing.listen(self._answered, opcode_of(AskBarriers))

    def ask(self, session: Session, caller: Caller, request: AskBarriers) -> None:
        """Answer now or later. Raises `UnknownTopic` or `Overloaded`."""
        topic = self._topics.catalog.by_id(request.topic)
        if topic is None:
            raise _gone(request.topic)
        self.askers.check_room()
        scope = Scope.ALL
        if session.is_shard:
            scope = Scope.LED if session.foreign else Scope.OWN

        def tell(known: Barriers | None) -> None:
            if known is None:
                self._outbox.refuse(caller, _gone(topic.id))
            else:
                self._outbox.reply(caller, known)

        anew = request.anew or not request.stamp
        asker = self._asker(topic, scope, request.stamp, request.wait_ms, anew, tell)
        asker.session = caller.session
        self._wait(asker, topic)

    def when_visible(
        self, group: int, stamp: int, session: int, then: Callable[[bool], None]
    ) -> None:
        """Tell `then` once nothing can come at or below `stamp` any more in any partition of a
        group's topic; or False when that takes too long. Raises `UnknownTopic` or `Overloaded`.
        """
        topic = self._topics.catalog.by_id(topic_of(group))
        if topic is None:
            raise _gone(topic_of(group))

        def tell(known: Barriers | None) -> None:
            then(known is not None and known.reached)

        self.askers.check_room()
        asker = self._asker(topic, Scope.ALL, stamp, VISIBLE_MS_MAX, False, tell)
        asker.session = session
        self._wait(asker, topic)

    def advance(self) -> None:
        """Tell those whose stamp is reached by all partitions."""
        for domain in self._domains.values():
            if domain.first is not None:
                self._look(domain)

    def tick(self) -> None:
        """Tell those whose time is up what is known, and ask again for others."""
        now = self._time.monotonic_ms()
        self._questions.tick()
        for asker in self.askers.ended(now):
            self._tell(asker, False)
        for key, domain in list(self._domains.items()):
            if domain.first is not None:
                domain.planned_at = (-1, -1)  # others may lead, of which nothing is heard
                self._look(domain)
                self._pursue(domain, again=True)
            elif now - domain.asked_ms >= _FORGET_MS:
                del self._domains[key]

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self.askers.closed(session)

    def cut(self, place: int) -> None:
        """The trunk to another shard broke."""
        self._questions.lost(place)

    # -- those who wait ----------------------------------------------------------------------

    def _asker(
        self, topic: Topic, scope: Scope, stamp: int, wait_ms: int, anew: bool,
        tell: Callable[[Barriers | None], None],
    ) -> BarrierWaiter:  # fmt: skip
        wall = self._time.wall_ms()
        stamp = stamp or stamp_at(wall)
        after = ANYTIME
        if anew:
            # So that only a promise that is asked for now can get there, or a commit.
            stamp = max(stamp, min(self._promises.unheard, stamp_at(wall + MAX_AHEAD_MS)))
            after = self._questions.newest
        deadline = self._time.monotonic_ms() + min(wait_ms, WAIT_MS_MAX)
        return BarrierWaiter(topic.id, scope, stamp, deadline, 0, tell, after)

    def _wait(self, asker: BarrierWaiter, topic: Topic) -> None:
        key = topic.id, asker.scope
        domain = self._domains.get(key)
        if domain is None:
            domain = self._domains[key] = Domain(*key)
        domain.asked_ms = now = self._time.monotonic_ms()
        self.askers.add(asker)
        domain.add(asker)
        self._look(domain)
        if not asker.is_over:
            self._pursue(domain)
            self._look(domain)
        if not asker.is_over and asker.deadline_ms <= now:
            self._tell(asker, False)

    def _look(self, domain: Domain) -> None:
        """Tell those whose stamp is reached."""
        while (asker := domain.first) is not None:
            topic = self._topics.catalog.by_id(domain.topic)
            if topic is not None and self._is_behind(domain, topic, asker):
                return
            self._tell(asker, True)

    def _is_behind(self, domain: Domain, topic: Topic, asker: BarrierWaiter) -> bool:
        while True:
            self._plan(domain, topic)
            joined = len(domain.roster)
            if domain.is_behind(asker, self._promises.fenced):
                return True
            if joined == len(domain.roster):
                return False  # else there is one more to look at

    def _plan(self, domain: Domain, topic: Topic) -> None:
        joined = len(domain.roster)
        at = self._shared.leads_changed, max(topic.partitions, topic.founded_with + joined)
        if domain.planned_at != at:
            domain.take_plan(self._planner.plan(topic, domain.scope, joined), at)

    def _tell(self, asker: BarrierWaiter, reached: bool) -> None:
        self.askers.take(asker.number)
        topic = self._topics.catalog.by_id(asker.topic)
        if topic is None:
            asker.tell(None)
            return
        domain = self._domains[asker.topic, asker.scope]
        if not reached:  # else all was looked at of late
            self._plan(domain, topic)
            domain.see(domain.plan.led, self._promises.fenced, 0)
            self._plan(domain, topic)
        ends = tuple((partition, *end) for partition, end in sorted(domain.ends.items()))
        asker.tell(Barriers(topic.id, domain.known(asker.stamp), domain.roster, reached, ends))

    def _pursue(self, domain: Domain, again: bool = False) -> None:
        """Have all partitions that are behind what is waited for promise that they get there."""
        asker = domain.first
        if asker is None:
            return
        here, places = domain.to_ask()
        if here and again:
            self._promises.ask_again()
        elif here:
            self._promises.ask(asker.stamp)
        for place in sorted(places):
            self._questions.ask(asker, place)

    # -- answers -----------------------------------------------------------------------------

    def _answered(self, frame: ClientFrame) -> None:
        """Another shard says how far what it leads is."""
        question, reply = self._questions.answered(frame.correlation), decode_reply(frame)
        if question is None or not isinstance(reply, Barriers):
            return
        domain = self._domains.get((question.topic, question.scope))
        if domain is None:
            return
        # One that was not asked anew, for its time was up, says nothing of now.
        domain.take(reply.registers, question.number * reply.reached)
        domain.learn(reply.roster)
        for end in reply.ends:
            domain.learn_end(*end)
        self._look(domain)
        asker = domain.first
        if asker is not None and (asker.stamp > question.stamp or asker.after >= question.number):
            self._pursue(domain)


def _gone(topic: int) -> UnknownTopic:
    return UnknownTopic(f"no topic has id {topic}: it was deleted, or there never was one", topic)


class Orders:
    """Joins what the room has to a shard."""

    __slots__ = ("_catalog", "_domains", "_ends", "_growth", "_promises", "closed", "cut")

    def __init__(
        self, topics: Topics, registry: Registry, passing: Forwarder, layout: Layout,
        shared: Surroundings, multi: raft.Multi, logs: Sequence[Bounded],
    ) -> None:  # fmt: skip
        """Let partitions of `shared` be told from now on what is visible."""
        self._catalog = topics.catalog
        self._promises = promises = Promises(multi, shared.highest, logs, shared.time)
        self._domains = Domains(topics, promises, passing, layout, shared)
        self._growth = Growth(topics, registry, passing, shared.outbox, shared.time)
        self._ends = Ends(topics, registry, passing, shared.outbox, shared.time)
        shared.when_visible = self._domains.when_visible
        #: Told the number of a session that is gone, and the place of a trunk that broke.
        self.closed = self._domains.closed
        self.cut = self._domains.cut

    def handlers(self) -> dict[type[Any], Callable[..., None]]:
        """Return what answers each request about orders."""
        return {
            AskBarriers: self._domains.ask,
            ReportJoined: self._growth.reported,
            ReportEnded: self._ends.reported,
        }

    def advance(self) -> None:
        """Go on with what any event may have made possible; cheap while nobody asks."""
        if self._catalog.growing:
            self._growth.advance()
        if self._catalog.ending:
            self._ends.advance()
        if self._promises.is_due:
            self._promises.advance()
        if self._domains.askers.waiting:
            self._domains.advance()

    def tick(self) -> None:
        """Let nobody wait for ever."""
        self._growth.tick()
        self._ends.tick()
        self._domains.tick()
