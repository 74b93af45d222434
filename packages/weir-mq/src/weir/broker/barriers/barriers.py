"""Who asks how far a topic's order is complete, and what they are told (DESIGN §5 Aggregation).

The shard that is asked looks at what it leads, and asks each other shard that leads some, in one
question that is answered once all are there, or when its time is up. So nothing flows but between
those who ask and those who lead.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.api.layout import Layout
from weir.broker.barriers.leaders import Planner
from weir.broker.barriers.promises import Promises
from weir.broker.barriers.queries import Questions
from weir.broker.barriers.topic_order import Domain
from weir.broker.barriers.waiters import ANYTIME, Asker, Askers, Scope
from weir.broker.forwarding.forwarder import Passing
from weir.broker.partition.context import Surroundings
from weir.broker.partition.topics import Topics
from weir.broker.runtime.admission import Authorize
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import UnknownTopic
from weir.model.ids import topic_of
from weir.model.limits import MAX_AHEAD_MS, WAIT_MS_MAX
from weir.model.stamp import stamp_at
from weir.model.topic import Topic
from weir.protocol.client.barriers import AskBarriers, Barriers
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.messages import Opcode
from weir.protocol.frame import ClientFrame

#: What was known of a topic is forgotten when nobody has asked for so long.
_FORGET_MS = 60_000
#: Who is to be told when a batch is visible is told by then that it is not.
VISIBLE_MS_MAX = 10_000


class Domains:
    """Answers those who ask for the barriers of topics."""

    __slots__ = ("_authorize", "_domains", "_outbox", "_planner", "_promises",
                 "_questions", "_shared", "_time", "_topics", "askers")  # fmt: skip

    def __init__(
        self, topics: Topics, promises: Promises, passing: Passing, layout: Layout,
        shared: Surroundings, authorize: Authorize,
    ) -> None:  # fmt: skip
        """Nobody asks yet."""
        self._topics = topics
        self._promises = promises
        self._planner = Planner(topics, passing, layout)
        self._shared = shared
        self._outbox = shared.outbox
        self._authorize = authorize
        self._time = time = shared.time
        #: Who waits.
        self.askers = Askers()
        self._questions = Questions(passing, time)
        self._domains: dict[tuple[int, Scope], Domain] = {}
        passing.listen(self._answered, Opcode.ASK_BARRIERS)

    def ask(self, session: Session, caller: Caller, request: AskBarriers) -> None:
        """Answer now or later. Raises `UnknownTopic`, `Unauthorized`, or `Overloaded`."""
        topic = self._topics.catalog.by_id(request.topic)
        if topic is None:
            raise _gone(request.topic)
        self.askers.check_room()
        scope = Scope.ALL
        if session.is_shard:
            scope = Scope.LED if session.foreign else Scope.OWN
        else:
            self._authorize(session.principal, "read", topic.full_name)

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
    ) -> Asker:  # fmt: skip
        wall = self._time.wall_ms()
        stamp = stamp or stamp_at(wall)
        after = ANYTIME
        if anew:
            # So that only a promise that is asked for now can get there, or a commit.
            stamp = max(stamp, min(self._promises.unheard, stamp_at(wall + MAX_AHEAD_MS)))
            after = self._questions.newest
        deadline = self._time.monotonic_ms() + min(wait_ms, WAIT_MS_MAX)
        return Asker(topic.id, scope, stamp, deadline, 0, tell, after)

    def _wait(self, asker: Asker, topic: Topic) -> None:
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

    def _is_behind(self, domain: Domain, topic: Topic, asker: Asker) -> bool:
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

    def _tell(self, asker: Asker, reached: bool) -> None:
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
