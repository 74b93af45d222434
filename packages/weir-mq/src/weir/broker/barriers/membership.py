"""Partitions that join the order of their topic, and those that leave it (DESIGN §5 Aggregation).

The leader of partition 0 says above which stamp another belongs to the order, by an entry; once
that is committed it tells the registry, which lets the partition take messages above that stamp. So
whoever was told a barrier before has all that will ever lie below it (counterexample 6).

The leader of a partition that is to end seals it, by an entry: nothing comes behind that. Once all
in front of it is decided, the registry is told stamp and offset, and the leader of partition 0
enters them in the order's roster. Each step is found from entries alone, so that whoever leads goes
on.
"""

from __future__ import annotations

from contextlib import suppress

from weir.broker.forwarding.forwarder import NO_REPLY, Forwarder
from weir.broker.metadata.registry import Registry
from weir.broker.partition.partition import Partition
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import Refused
from weir.model.ids import group_of
from weir.model.topic import End, Topic
from weir.order.clock import Time
from weir.protocol.client.barriers import ReportEnded, ReportJoined
from weir.protocol.client.messages import Request

#: How often the registry is told again what it does not know yet.
_REPORT_EVERY_MS = 1_000


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
        """Tell the registry, unless it was told of late; True if this shard leads it, so that
        whoever reports does so by itself.
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
        joined = dict(first.state.roster)
        for partition in range(topic.partitions, topic.joining):
            if partition not in joined:
                assert first.leading is not None  # it was asked for
                first.leading.join(partition, self._time.wall_ms())
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
        if self._reports.is_due_here(report):
            with suppress(Refused):
                self._registry.endings.reported(report)
