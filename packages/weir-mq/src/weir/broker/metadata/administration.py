"""Topics altered and deleted, through the registry's group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from weir.broker.metadata.catalog import Catalog, more_partitions
from weir.broker.records.control import TopicAltered, TopicClusterPaused, TopicDeleted, TopicGrown
from weir.broker.replica.proposals import Proposals
from weir.broker.runtime.outbox import Caller
from weir.errors import Refused, Unavailable, UnknownTopic
from weir.model.limits import CLUSTER_PAUSES_MAX
from weir.model.topic import Topic, check_name, check_settings, split_name
from weir.order.clock import Time
from weir.protocol.client.admin import (
    AlterTopic,
    ClusterChanged,
    Deleted,
    DeleteTopic,
    PauseCluster,
)
from weir.protocol.client.barriers import ReportJoined
from weir.protocol.client.messages import Reply, TopicInfo

#: Who waits for more partitions waits no longer: partition 0 has no leader, perhaps.
_GROW_MS = 10_000


class Replies(Protocol):
    """Where the registry's answers go."""

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class Administration:
    """What is asked of topics that exist, and what becomes of it when it is committed."""

    __slots__ = ("_altered", "_catalog", "_deleted", "_describe", "_growing", "_outbox",
                 "_proposals", "_propose", "_time")  # fmt: skip

    def __init__(
        self,
        catalog: Catalog,
        outbox: Replies,
        time: Time,
        propose: Callable[[TopicAltered | TopicGrown | TopicClusterPaused | TopicDeleted], int],
        describe: Callable[[Topic], TopicInfo],
        altered: Callable[[Topic], None],
        deleted: Callable[[Topic], None],
    ) -> None:
        """Change `catalog` by entries that `propose` appends; the last two are told of changes."""
        self._catalog = catalog
        self._outbox = outbox
        self._propose = propose
        self._describe = describe
        self._altered = altered
        self._deleted = deleted
        self._time = time
        self._proposals: Proposals[TopicAltered | TopicClusterPaused | TopicDeleted, Caller]
        self._proposals = Proposals(propose)
        #: By topic, who waits until all of its partitions are there, and how long at most.
        self._growing: dict[int, list[tuple[Caller, int]]] = {}

    def lose(self, error: Refused) -> None:
        """This node leads no more: refuse who waits for a change."""
        growing, self._growing = self._growing, {}
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)
        for callers in growing.values():
            for caller, _ in callers:
                self._outbox.refuse(caller, error)

    def tick(self) -> None:
        """Refuse those who waited for too long."""
        if not self._growing:
            return
        now = self._time.monotonic_ms()
        for topic, callers in list(self._growing.items()):
            late = [caller for caller, until_ms in callers if until_ms <= now]
            for caller in late:
                error = Unavailable(
                    "the new partitions join once partition 0 has a leader, which takes long: that "
                    "goes on by itself; describe the topic to see them"
                )
                self._outbox.refuse(caller, error)
            self._growing[topic] = [one for one in callers if one[0] not in late]
            if not self._growing[topic]:
                del self._growing[topic]

    def alter(self, caller: Caller, request: AlterTopic) -> None:
        """Propose other settings, or more partitions. Raises `UnknownTopic` or `BadRequest`."""
        topic = self._named(request.name)
        check_settings(more_partitions(topic, request.partitions), topic.order)
        request.settings.over(topic.settings)  # raises
        # What others alter meanwhile stays: the entry says what to change, not what comes of it.
        record = TopicAltered(topic.id, request.partitions, request.settings)
        self._proposals.propose(record, caller)

    def pause(self, caller: Caller, topic: Topic, request: PauseCluster) -> None:
        """Propose that a cluster of a topic is paused or goes on. Raises `BadName`, or
        `Unavailable` where too many are paused.
        """
        name = check_name(request.cluster, "cluster")
        paused = [row.cluster for row in topic.pauses if row.paused]
        if request.paused and name not in paused and len(paused) >= CLUSTER_PAUSES_MAX:
            raise Unavailable(
                f"{len(paused):,} clusters of topic {topic.full_name} are paused, the most there "
                "can be: resume or delete one first"
            )
        self._proposals.propose(TopicClusterPaused(topic.id, name, request.paused), caller)

    def delete(self, caller: Caller, request: DeleteTopic) -> None:
        """Propose the end of a topic. Raises `UnknownTopic`.

        One with an id that was deleted already is answered at once, so that a client that lost
        the first answer may ask again.
        """
        if request.id and self._catalog.was_deleted(request.id):
            self._outbox.reply(caller, Deleted(request.id))
            return
        topic = self._named(request.name)
        if request.id not in (0, topic.id):
            raise UnknownTopic(f"topic {topic.full_name} has id {topic.id}, not {request.id}")
        self._proposals.propose(TopicDeleted(topic.id), caller)

    def joined(self, report: ReportJoined) -> None:
        """Propose that a partition is there, which the leader of partition 0 says has joined."""
        topic = self._catalog.by_id(report.topic)
        if topic is not None and topic.partitions <= report.partition < topic.joining:
            self._propose(TopicGrown(report.topic, report.partition, report.floor))

    def grown(self, record: TopicGrown) -> None:
        """Apply a committed record; tell those who waited for the last new partition."""
        if self._catalog.by_id(record.topic) is None:
            return
        topic = self._catalog.grow(record)
        self._altered(topic)
        for caller, _ in self._growing.pop(topic.id, ()) if not topic.joining else ():
            self._outbox.reply(caller, self._describe(topic))

    def apply(self, index: int, record: TopicAltered | TopicClusterPaused | TopicDeleted) -> None:
        """Apply a committed record; a topic that was deleted meanwhile stays as it is: gone."""
        caller = self._proposals.applied(index)
        try:
            if isinstance(record, TopicAltered):
                topic = self._catalog.alter(record)
                self._altered(topic)
                if caller is not None and topic.joining:
                    until_ms = self._time.monotonic_ms() + _GROW_MS
                    self._growing.setdefault(topic.id, []).append((caller, until_ms))
                    return
                reply: Reply = self._describe(topic)
            elif isinstance(record, TopicClusterPaused):
                self._altered(self._catalog.pause(record))
                reply = ClusterChanged(0)
            else:
                self._deleted(self._catalog.delete(record))
                reply = Deleted(record.topic)
                for waiting, _ in self._growing.pop(record.topic, ()):
                    self._outbox.refuse(waiting, UnknownTopic("the topic was deleted"))
        except Refused as error:
            if caller is not None:
                self._outbox.refuse(caller, error)
        else:
            if caller is not None:
                self._outbox.reply(caller, reply)

    def _named(self, name: str) -> Topic:
        return named(self._catalog, name)


def named(catalog: Catalog, name: str) -> Topic:
    """Return the topic of a name. Raises `UnknownTopic`, `BadName`."""
    topic = catalog.find(*split_name(name))
    if topic is None:
        raise UnknownTopic(f"no topic {name!r}: `weir topic list` names those that are there")
    return topic
