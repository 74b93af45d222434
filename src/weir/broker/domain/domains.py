"""Who asks how far a topic's order is complete, and what they are told (DESIGN §5 Aggregation).

The shard that is asked looks at what it leads, and asks each other shard that leads some, in one
question that is answered once all are there, or when its time is up. So nothing flows but between
those who ask and those who lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from weir.broker.admission import Authorize
from weir.broker.domain.askers import Asker, Askers, Scope
from weir.broker.domain.domain import Domain
from weir.broker.domain.promises import Promises
from weir.broker.domain.questions import Questions
from weir.broker.layout import Layout
from weir.broker.neighbours.passing import Passing
from weir.broker.outbox import Caller, Outbox
from weir.broker.sessions import Session
from weir.broker.topics import Topics
from weir.errors import NotLeader, UnknownTopic
from weir.model.ids import group_of
from weir.model.limits import WAIT_MS_MAX
from weir.model.stamp import stamp_at
from weir.model.topic import Topic
from weir.order.barrier import NO_BARRIER, Barrier
from weir.order.clock import Time
from weir.wire.client import decode_reply
from weir.wire.frame import ClientFrame
from weir.wire.messages import Opcode
from weir.wire.ordering import AskBarriers, Barriers

#: What was known of a topic is forgotten when nobody has asked for so long.
_FORGET_MS = 60_000


class Domains:
    """Answers those who ask for the barriers of topics."""

    __slots__ = ("_askers", "_authorize", "_domains", "_layout", "_outbox", "_passing",
                 "_promises", "_questions", "_time", "_topics")  # fmt: skip

    def __init__(
        self, topics: Topics, promises: Promises, passing: Passing, layout: Layout, outbox: Outbox,
        authorize: Authorize, time: Time,
    ) -> None:  # fmt: skip
        """Nobody asks yet."""
        self._topics = topics
        self._promises = promises
        self._passing = passing
        self._layout = layout
        self._outbox = outbox
        self._authorize = authorize
        self._time = time
        self._askers = Askers()
        self._questions = Questions(passing, time)
        self._domains: dict[tuple[int, Scope], Domain] = {}
        passing.listen(self._answered, Opcode.ASK_BARRIERS)

    def ask(self, session: Session, caller: Caller, request: AskBarriers) -> None:
        """Answer now or later. Raises `UnknownTopic`, `Unauthorized`, or `Overloaded`."""
        topic = self._topics.catalog.by_id(request.topic)
        if topic is None:
            raise _gone(request.topic)
        scope = Scope.ALL
        if session.is_shard:
            scope = Scope.LED if session.foreign else Scope.OWN
        else:
            self._authorize(session.principal, "read", topic.full_name)

        def tell(known: Barriers | None, _: bool) -> None:
            if known is None:
                self._outbox.refuse(caller, _gone(topic.id))
            else:
                self._outbox.reply(caller, known)

        self._wait(topic, scope, request.stamp, request.wait_ms, caller.session, tell)

    def when_visible(
        self, topic: Topic, stamp: int, wait_ms: int, session: int, then: Callable[[bool], None]
    ) -> None:
        """Tell `then` once nothing can come at or below `stamp` any more but what is committed in
        all partitions of a topic; or False when time is up. Raises `Overloaded`.
        """
        self._wait(topic, Scope.ALL, stamp, wait_ms, session, lambda _, reached: then(reached))

    def advance(self) -> None:
        """Tell those whose stamp is reached by all partitions."""
        self._promises.advance()
        if self._askers:
            for domain in self._domains.values():
                if domain.first is not None:
                    self._look(domain)

    def tick(self) -> None:
        """Tell those whose time is up what is known, and ask again for others."""
        now = self._time.monotonic_ms()
        self._questions.tick()
        for asker in self._askers.ended(now):
            topic = self._topics.catalog.by_id(asker.topic)
            domain = self._domains[asker.topic, asker.scope]
            asker.tell(None if topic is None else self._known(domain, topic), False)
        for key, domain in list(self._domains.items()):
            if domain.first is not None:
                domain.forget_behind()
                self._pursue(domain, again=True)
            elif now - domain.asked_ms >= _FORGET_MS:
                del self._domains[key]

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self._askers.closed(session)

    def cut(self, place: int) -> None:
        """The trunk to another shard broke."""
        self._questions.lost(place)

    # -- those who wait ----------------------------------------------------------------------

    def _wait(
        self, topic: Topic, scope: Scope, stamp: int, wait_ms: int, session: int,
        tell: Callable[[Barriers | None, bool], None],
    ) -> None:  # fmt: skip
        now = self._time.monotonic_ms()
        domain = self._domains.get((topic.id, scope))
        if domain is None:
            domain = self._domains[topic.id, scope] = Domain(topic.id, scope)
        domain.asked_ms = now
        stamp = stamp or stamp_at(self._time.wall_ms())
        self._askers.check_room()
        deadline = now + min(wait_ms, WAIT_MS_MAX)
        asker = Asker(topic.id, scope, stamp, deadline, session, tell)
        self._askers.add(asker)
        domain.add(asker)
        self._look(domain)
        if asker.is_over:
            return
        self._pursue(domain)
        self._look(domain)
        if not wait_ms and not asker.is_over:
            self._askers.take(asker.number)
            tell(self._known(domain, topic), False)

    def _look(self, domain: Domain) -> None:
        """Tell those whose stamp is reached."""
        topic = self._topics.catalog.by_id(domain.topic)
        while (asker := domain.first) is not None:
            if topic is not None and self._behind(domain, topic, asker.stamp):
                return
            self._askers.take(asker.number)
            asker.tell(None if topic is None else self._known(domain, topic), True)

    def _behind(self, domain: Domain, topic: Topic, stamp: int) -> bool:
        """Return whether some partition is not known to be at `stamp`."""
        behind = domain.behind(stamp, self._partitions(domain, topic))
        while behind:
            partition = behind[-1]
            self._see(domain, partition)
            is_there = domain.registers.get(partition, NO_BARRIER).stamp >= stamp
            if not is_there and (domain.scope is not Scope.LED or self._leads(domain, partition)):
                return True
            behind.pop()
        return False

    def _pursue(self, domain: Domain, again: bool = False) -> None:
        """Have all partitions that are behind what is waited for promise that they get there."""
        asker = domain.first
        topic = self._topics.catalog.by_id(domain.topic)
        if asker is None or topic is None:
            return
        places: dict[int, None] = {}
        for partition in domain.behind(asker.stamp, self._partitions(domain, topic)):
            group = group_of(domain.topic, partition)
            with suppress(NotLeader):  # whoever asks learns by itself who leads it
                places[self._passing.routes.toward(group, domain.scope is Scope.LED)] = None
        for place in places:
            if place != self._passing.shard:
                wait_ms = max(asker.deadline_ms - self._time.monotonic_ms(), 1)
                self._questions.ask(domain.topic, domain.scope, place, asker.stamp, wait_ms)
            elif again:
                self._promises.ask_again()
            else:
                self._promises.ask(asker.stamp)

    # -- what is known -----------------------------------------------------------------------

    def _partitions(self, domain: Domain, topic: Topic) -> Iterable[int]:
        everything = range(topic.partitions)
        if domain.scope is Scope.ALL:
            return everything
        if domain.scope is Scope.LED:
            return [p for p in everything if self._leads(domain, p)]
        shard, shard_of = self._passing.shard, self._layout.shard_of
        return [p for p in everything if shard_of(group_of(topic.id, p)) == shard]

    def _leads(self, domain: Domain, partition: int) -> bool:
        here = self._topics.find(group_of(domain.topic, partition))
        return here is not None and here.leads

    def _see(self, domain: Domain, partition: int) -> None:
        """Take what a partition says that is led here."""
        here = self._topics.find(group_of(domain.topic, partition))
        if here is not None and here.leads:
            domain.take(partition, here.barrier)

    def _known(self, domain: Domain, topic: Topic) -> Barriers:
        registers = []
        for partition in self._partitions(domain, topic):
            self._see(domain, partition)
            barrier = domain.registers.get(partition, NO_BARRIER)
            registers.append((partition, *barrier))
        return Barriers(topic.id, registers, domain.roster)

    def _answered(self, frame: ClientFrame) -> None:
        """Another shard says how far what it leads is."""
        question, reply = self._questions.answered(frame.correlation), decode_reply(frame)
        if question is None or not isinstance(reply, Barriers):
            return
        domain = self._domains.get((question.topic, question.scope))
        if domain is None:
            return
        for partition, stamp, through in reply.registers:
            domain.take(partition, Barrier(stamp, through))
        domain.learn(reply.roster)
        self._look(domain)
        if (asker := domain.first) is not None and asker.stamp > question.stamp:
            self._pursue(domain)


def _gone(topic: int) -> UnknownTopic:
    return UnknownTopic(f"no topic has id {topic}: it was deleted, or there never was one", topic)
