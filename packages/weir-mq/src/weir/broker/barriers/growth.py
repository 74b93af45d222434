"""Partitions that are new in a topic join its order, one entry each (DESIGN §5 Aggregation).

The leader of partition 0 says above which stamp another belongs to the order, by an entry; once
that is committed it tells the registry, which lets the partition take messages above that stamp.
So whoever was told a barrier before has all that will ever lie below it (counterexample 6).
"""

from __future__ import annotations

from functools import partial

from weir.broker.barriers.reports import Steps
from weir.broker.partition.partition import Partition
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.model.ids import group_of
from weir.model.topic import Topic
from weir.protocol.client.barriers import ReportJoined


class Growth(Steps):
    """Lets partitions join of topics whose partition 0 is led here."""

    __slots__ = ()

    def advance(self) -> None:
        """Take the next step with each topic that grows."""
        growing = self._topics.catalog.growing
        if not growing:
            return
        self._reports.advance()
        for number in list(growing):
            topic = self._topics.catalog.by_id(number)
            first = self._topics.find(group_of(number, 0))
            if topic is not None and first is not None and first.leading is not None:
                self._grow(topic, first)

    def reported(self, session: Session, caller: Caller, request: ReportJoined) -> None:
        """Another shard says that a partition has joined. Raises `UnknownOpcode` if it is none."""
        self._hear(session, caller)
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
            else:
                self._tell(ReportJoined(topic.id, partition, joined[partition]))

    def _tell(self, report: ReportJoined) -> None:
        self._reports.tell(report, partial(self._registry.administration.joined, report))
