"""Partitions that are new in a topic join its order, one entry each (DESIGN §5 Aggregation).

The leader of partition 0 says above which stamp another belongs to the order, by an entry; once
that is committed it tells the registry, which lets the partition take messages above that stamp.
So whoever was told a barrier before has all that will ever lie below it (counterexample 6).
"""

from __future__ import annotations

from contextlib import suppress

from weir.broker.neighbours.passing import Passing
from weir.broker.outbox import Caller, Outbox
from weir.broker.partition.partition import Partition
from weir.broker.registry.registry import Registry
from weir.broker.sessions import Session
from weir.broker.topics import Topics
from weir.errors import Refused, UnknownOpcode
from weir.model.ids import group_of
from weir.model.topic import Topic
from weir.order.clock import Time
from weir.wire.ordering import ReportJoined

#: How often the registry is told again what it does not know yet.
_REPORT_EVERY_MS = 1_000
#: No question of this shard has it: what comes back to a report is nothing to anybody.
_REPORT = 1 << 62


class Growth:
    """Lets partitions join of topics whose partition 0 is led here."""

    __slots__ = ("_outbox", "_passing", "_registry", "_report_ms", "_time", "_told", "_topics")

    def __init__(
        self, topics: Topics, registry: Registry, passing: Passing, outbox: Outbox, time: Time
    ) -> None:
        """No topic grows yet."""
        self._topics = topics
        self._registry = registry
        self._passing = passing
        self._outbox = outbox
        self._time = time
        #: What the registry was told of late, and until when that will do.
        self._told: set[tuple[int, int]] = set()
        self._report_ms = 0

    def advance(self) -> None:
        """Take the next step with each topic that grows."""
        growing = self._topics.catalog.growing
        if not growing:
            return
        if (now := self._time.monotonic_ms()) >= self._report_ms:
            self._told.clear()
            self._report_ms = now + _REPORT_EVERY_MS
        for number in list(growing):
            topic = self._topics.catalog.by_id(number)
            first = self._topics.find(group_of(number, 0))
            if topic is not None and first is not None and first.leading is not None:
                self._grow(topic, first)

    def reported(self, session: Session, caller: Caller, request: ReportJoined) -> None:
        """Another shard says that a partition has joined. Raises `UnknownOpcode` if it is none."""
        if not session.is_shard:
            raise UnknownOpcode("only a shard may ask that", caller.opcode)
        self._outbox.answered(session.id)  # there is no reply: what it did, the registry shows
        self._registry.administration.joined(request)

    def tick(self) -> None:
        """Let nobody wait for ever."""
        self._registry.administration.tick()

    def _grow(self, topic: Topic, first: Partition) -> None:
        joined = dict(first.state.roster)
        for partition in range(topic.partitions, topic.joining):
            if partition not in joined:
                assert first.leading is not None  # it was asked for
                first.leading.join(partition, self._time.wall_ms())
            elif (topic.id, partition) not in self._told:
                self._told.add((topic.id, partition))
                self._tell(ReportJoined(topic.id, partition, joined[partition]))

    def _tell(self, report: ReportJoined) -> None:
        place = self._passing.routes.registry
        with suppress(Refused):  # it is told again as long as it is news
            if place != self._passing.shard:
                self._passing.ask_own(place, report, _REPORT)
            else:
                self._registry.administration.joined(report)
