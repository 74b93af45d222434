"""Partitions that are to end, step by step (DESIGN §5 Aggregation).

Who leads such a partition seals it, by an entry: nothing comes behind that. Once all in front of it
is decided, the registry is told stamp and offset, and who leads partition 0 enters them in the
order's roster. Each step is found from entries alone, so that whoever leads goes on with it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from weir.broker.barriers.reports import Steps
from weir.broker.partition.partition import Partition
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import Refused
from weir.model.ids import group_of
from weir.model.topic import End, Topic
from weir.protocol.client.barriers import ReportEnded


class Ends(Steps):
    """Ends partitions that are led here, and enters the ends of others in partition 0."""

    __slots__ = ()

    def advance(self) -> None:
        """Take the next step with each partition that is to end."""
        catalog = self._topics.catalog
        if not catalog.ending:
            return
        self._reports.advance()
        for number in list(catalog.ending):
            topic = catalog.by_id(number)
            for end in topic.ends if topic is not None else ():
                if not end.done:
                    assert topic is not None  # it has ends
                    self._go_on(topic, end)

    def reported(self, session: Session, caller: Caller, request: ReportEnded) -> None:
        """Another shard says how far a partition is. Raises `UnknownOpcode` if it is none."""
        self._hear(session, caller)
        self._registry.endings.reported(request)

    def tick(self) -> None:
        """Let nobody wait for ever."""
        self._registry.endings.tick()

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
        if not state.sealed:
            assert found.leading is not None  # it was asked for
            with suppress(Refused):  # it is tried again with the next event
                found.leading.seal(self._time.wall_ms())
        elif state.decided_offset == state.next_offset:
            self._tell(ReportEnded(topic.id, partition, state.sealed, state.next_offset))

    def _enter(self, first: Partition, topic: Topic, end: End) -> None:
        if end.partition in first.state.ends:
            self._tell(ReportEnded(topic.id, *end[:3], done=True))
            return
        assert first.leading is not None  # it was asked for
        with suppress(Refused):
            first.leading.count_out(*end[:3])

    def _tell(self, report: ReportEnded) -> None:
        self._reports.tell(report, partial(self._registry.endings.reported, report))
