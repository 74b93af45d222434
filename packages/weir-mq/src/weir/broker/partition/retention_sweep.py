"""When a shard looks for messages that are past their retention."""

from __future__ import annotations

from contextlib import suppress

from weir.broker.forwarding.forwarder import NO_REPLY, Passing
from weir.broker.partition.partition import Partition
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import Refused
from weir.model.ids import Address, partition_of, topic_of
from weir.model.topic import Topic
from weir.order.clock import Time
from weir.protocol.client.barriers import ReportDone

#: A tick looks at so many partitions at most: a look costs some microseconds.
_LOOKS_PER_TICK = 64


class Sweep:
    """Looks at every partition of a shard once in a while.

    A cluster that reads a topic in total order has its cursor in partition 0. Where messages stay
    until clusters are done with them, the leader of partition 0 tells those of the others how far
    such clusters are. That is not replicated: without it messages stay longer.
    """

    __slots__ = ("_due_ms", "_every_ms", "_left", "_outbox", "_passing", "_time", "_topics")

    def __init__(
        self, topics: Topics, passing: Passing, outbox: Outbox, time: Time, every_ms: int
    ) -> None:
        """Begin `every_ms` from now."""
        self._topics = topics
        self._passing = passing
        self._outbox = outbox
        self._time = time
        self._every_ms = every_ms
        self._due_ms = time.monotonic_ms() + every_ms
        self._left: list[int] = []

    def tick(self) -> None:
        """Look at the next partitions, if it is time."""
        now = self._time.monotonic_ms()
        if now >= self._due_ms and not self._left:
            self._due_ms = now + self._every_ms
            self._left = [partition.group.id for partition in self._topics.partitions()]
        if not self._left:
            return
        looked, self._left = self._left[:_LOOKS_PER_TICK], self._left[_LOOKS_PER_TICK:]
        for group in looked:
            topic = self._topics.catalog.by_id(topic_of(group))
            partition = self._topics.find(group)  # it may not have joined its topic yet
            if topic is not None and partition is not None:
                partition.retain(topic)
                if topic.settings.until_done and topic.order == "total":
                    self._report(topic, partition)

    def reported(self, session: Session, caller: Caller, request: ReportDone) -> None:
        """Take from the leader of partition 0 how far clusters are in another partition."""
        self._outbox.answered(session.id)  # there is no reply: it is told again
        if (partition := self._topics.find(request.address.group)) is not None:
            partition.cursors_done = dict(request.done)

    def _report(self, topic: Topic, first: Partition) -> None:
        """Tell the other partitions of a topic, if `first` is its partition 0 and is led here."""
        if partition_of(first.group.id) or not first.leads:
            return
        for group in topic.groups()[1:]:
            done = first.state.cursors.done_in(partition_of(group))
            here = self._topics.find(group)
            if here is not None and here.leads:
                here.cursors_done = done
                continue
            with suppress(Refused):  # it is told again with the next sweep
                place = self._passing.routes.toward(group)
                if place != self._passing.shard:
                    request = ReportDone(Address(0, 0, group), tuple(done.items()))
                    self._passing.ask_own(place, request, NO_REPLY)
