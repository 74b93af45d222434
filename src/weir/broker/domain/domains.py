"""Who asks how far a topic's order is complete, and what they are told (DESIGN §5 Aggregation)."""

from __future__ import annotations

from weir.broker.admission import Authorize
from weir.broker.domain.promises import Promises
from weir.broker.outbox import Caller, Outbox
from weir.broker.sessions import Session
from weir.broker.topics import Topics
from weir.broker.waits import Wait, Waits
from weir.errors import UnknownTopic
from weir.model.ids import partition_of
from weir.model.limits import WAIT_MS_MAX
from weir.model.topic import Topic
from weir.order.barrier import Barrier
from weir.order.clock import Time
from weir.wire.ordering import AskBarriers, Barriers

_NOTHING = Barrier(0, 0)


class Domains:
    """Answers those who ask for the barriers of topics."""

    __slots__ = ("_authorize", "_outbox", "_promises", "_time", "_topics", "_waits")

    def __init__(
        self, topics: Topics, promises: Promises, outbox: Outbox, authorize: Authorize, time: Time
    ) -> None:
        """Nobody asks yet."""
        self._topics = topics
        self._promises = promises
        self._outbox = outbox
        self._authorize = authorize
        self._time = time
        self._waits: Waits[AskBarriers] = Waits()

    def ask(self, session: Session, caller: Caller, request: AskBarriers) -> None:
        """Answer now or later. Raises `UnknownTopic`, `Unauthorized`, or `Overloaded`."""
        topic = self._topics.catalog.by_id(request.topic)
        if topic is None:
            raise UnknownTopic(f"no topic has id {request.topic}: open it anew", request.topic)
        self._authorize(session.principal, "read", topic.full_name)
        if not self._reached(topic, request.stamp):
            self._promises.ask(request.stamp)
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        if not wait_ms or self._reached(topic, request.stamp):
            self._answer(caller, topic)
            return
        self._waits.check_room()
        self._waits.add(Wait(caller, request, self._time.monotonic_ms() + wait_ms))

    def advance(self) -> None:
        """Answer those whose stamp is reached by all partitions."""
        waits = self._waits
        for _ in range(len(waits)):
            wait = waits.pop()
            topic = self._topics.catalog.by_id(wait.request.topic)
            if topic is None:
                gone = UnknownTopic("the topic was deleted", wait.request.topic)
                self._outbox.refuse(wait.caller, gone)
            elif self._reached(topic, wait.request.stamp):
                self._answer(wait.caller, topic)
            else:
                waits.add(wait)

    def tick(self) -> None:
        """Answer those whose time is up with what is known."""
        for wait in self._waits.ended(self._time.monotonic_ms()):
            topic = self._topics.catalog.by_id(wait.request.topic)
            if topic is not None:
                self._answer(wait.caller, topic)

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self._waits.closed(session)

    def _reached(self, topic: Topic, stamp: int) -> bool:
        return bool(stamp) and all(barrier.stamp >= stamp for barrier in self._led(topic).values())

    def _answer(self, caller: Caller, topic: Topic) -> None:
        known = self._led(topic)
        registers = [(p, *known.get(p, _NOTHING)) for p in range(topic.partitions)]
        self._outbox.reply(caller, Barriers(topic.id, registers))

    def _led(self, topic: Topic) -> dict[int, Barrier]:
        served = self._topics.served(topic)
        return {partition_of(one.group.id): one.barrier for one in served if one.leads}
