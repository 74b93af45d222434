"""Partitions ended, through the registry's group: decided here, then sealed by who leads them.

Step by step, and each is an entry: the registry decides that a partition ends, its own group seals
it, the registry knows where, partition 0 has it in the order's roster, and the registry knows that.
Whoever leads at a step finds from the entries what is next, so nothing hangs on who began.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.metadata.administration import Replies, named
from weir.broker.metadata.catalog import Catalog
from weir.broker.records.control import TopicEnds
from weir.broker.replica.proposals import Proposals
from weir.broker.runtime.outbox import Caller
from weir.errors import BadRequest, Refused, Unavailable, UnknownTopic
from weir.model.topic import Topic
from weir.order.clock import Time
from weir.protocol.client.admin import EndPartition
from weir.protocol.client.barriers import ReportEnded
from weir.protocol.client.messages import TopicInfo

#: Who waits for the end of a partition waits no longer: it has no leader, perhaps.
_END_MS = 10_000


class Endings:
    """What is asked of partitions that are to end, and who waits until they have."""

    __slots__ = ("_catalog", "_describe", "_outbox", "_proposals", "_propose", "_time", "_waiting")

    def __init__(
        self, catalog: Catalog, outbox: Replies, time: Time,
        propose: Callable[[TopicEnds], int], describe: Callable[[Topic], TopicInfo],
    ) -> None:  # fmt: skip
        """Change `catalog` by entries that `propose` appends."""
        self._catalog = catalog
        self._outbox = outbox
        self._propose = propose
        self._describe = describe
        self._time = time
        self._proposals: Proposals[TopicEnds, Caller] = Proposals(propose)
        #: By topic and partition, who waits until it has ended, and how long at most.
        self._waiting: dict[tuple[int, int], list[tuple[Caller, int]]] = {}

    def end(self, caller: Caller, request: EndPartition) -> None:
        """Propose that a partition ends; one that has is answered at once, so that a client that
        lost the first answer may ask again. Raises `UnknownTopic` or `BadRequest`.
        """
        topic, partition = named(self._catalog, request.name), request.partition
        if partition >= topic.partitions:
            raise UnknownTopic(
                f"{topic.full_name} has no partition {partition}: it has 0 to "
                f"{topic.partitions - 1}",
                topic.id,
            )
        if partition == 0:
            raise BadRequest(
                f"partition 0 of {topic.full_name} cannot end: it keeps what belongs to the "
                "topic's order, and a topic has one to publish to. Delete the topic to end it"
            )
        known = topic.end_of(partition)
        if known is None:
            self._proposals.propose(TopicEnds(topic.id, partition), caller)
        elif known.done:
            self._outbox.reply(caller, self._describe(topic))
        else:
            self._wait(caller, topic, partition)

    def reported(self, report: ReportEnded) -> None:
        """Propose what a leader says of a partition that is to end, if it is news."""
        topic = self._catalog.by_id(report.topic)
        known = topic.end_of(report.partition) if topic is not None else None
        if known is None or known.done or (known.stamp and not report.done):
            return
        self._propose(
            TopicEnds(report.topic, report.partition, report.stamp, report.offset, report.done)
        )

    def apply(self, index: int, record: TopicEnds) -> None:
        """Apply a committed record; tell those who waited for it."""
        caller = self._proposals.applied(index)
        try:
            topic = self._catalog.end(record)
        except UnknownTopic as error:
            if caller is not None:
                self._outbox.refuse(caller, error)
            return
        if caller is not None:
            self._wait(caller, topic, record.partition)
        end = topic.end_of(record.partition)
        if end is not None and end.done:
            for waiting, _ in self._waiting.pop((topic.id, record.partition), ()):
                self._outbox.reply(waiting, self._describe(topic))

    def tick(self) -> None:
        """Refuse those who waited for too long, or whose topic was deleted."""
        if not self._waiting:
            return
        now = self._time.monotonic_ms()
        for key, callers in list(self._waiting.items()):
            error: Refused = Unavailable(
                f"partition {key[1]} takes no messages any more, and ends once it and partition 0 "
                "have leaders, which takes long: that goes on by itself; describe the topic to see"
            )
            is_gone = self._catalog.by_id(key[0]) is None
            if is_gone:
                error = UnknownTopic("the topic was deleted")
            late = [caller for caller, until_ms in callers if is_gone or until_ms <= now]
            for caller in late:
                self._outbox.refuse(caller, error)
            self._waiting[key] = [one for one in callers if one[0] not in late]
            if not self._waiting[key]:
                del self._waiting[key]

    def lose(self, error: Refused) -> None:
        """This node leads no more: refuse who waits."""
        waiting, self._waiting = self._waiting, {}
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)
        for callers in waiting.values():
            for caller, _ in callers:
                self._outbox.refuse(caller, error)

    def _wait(self, caller: Caller, topic: Topic, partition: int) -> None:
        until_ms = self._time.monotonic_ms() + _END_MS
        self._waiting.setdefault((topic.id, partition), []).append((caller, until_ms))
