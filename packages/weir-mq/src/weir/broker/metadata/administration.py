"""Topics altered and deleted, and partitions ended, through the registry's group.

A partition ends step by step, and each is an entry: the registry decides that it ends, its own
group seals it, the registry knows where, partition 0 has it in the order's roster, and the registry
knows that. The leader at each step finds the next one from the entries, so any leader can continue.
"""

from __future__ import annotations

from typing import Protocol

from weir.broker.metadata.audit import AuditGate
from weir.broker.metadata.catalog import Catalog, more_partitions
from weir.broker.metadata.quota_requests import QuotaRequests
from weir.broker.metadata.schemas import SchemaRequests
from weir.broker.metadata.security.enrolment import Enrolment
from weir.broker.metadata.security.rewrapping import Rewrapping
from weir.broker.metadata.security.users import AccessRequests
from weir.broker.metadata.topology import TopologyRequests
from weir.broker.records.registry import (
    RegistryChange,
    TopicAltered,
    TopicClusterPaused,
    TopicDeleted,
    TopicEnds,
    TopicGrown,
)
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller
from weir.errors import BadRequest, Refused, Unavailable, UnknownTopic
from weir.model.limits import CLUSTER_PAUSES_MAX
from weir.model.topic import Topic, check_name, check_settings, split_name
from weir.order.clock import Time
from weir.protocol.client.admin import (
    AlterTopic,
    ClusterChanged,
    Deleted,
    DeleteTopic,
    EndPartition,
    PauseCluster,
)
from weir.protocol.client.messages import Reply, TopicInfo
from weir.protocol.client.order import ReportEnded, ReportJoined

#: A request for more partitions waits no longer: partition 0 has no leader, perhaps.
_GROW_MS = 10_000
#: A request for the end of a partition waits no longer: it has no leader, perhaps.
_END_MS = 10_000


class Replies(Protocol):
    """Where the registry's answers go."""

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class RegistryLog(Protocol):
    """The registry, as far as what changes topics knows it."""

    def propose(self, record: RegistryChange, /) -> int:
        """Propose an entry; return its index. Raises `Unavailable` where it is not led here."""

    def describe(self, topic: Topic, /) -> TopicInfo:
        """Return a topic and where its partitions are served."""


class TopicGroups(Protocol):
    """The groups of a shard, which follow what the registry decides of topics."""

    def open_topic(self, topic: Topic, /) -> None:
        """A topic is new, or has changed."""

    def close_topic(self, topic: Topic, /) -> None:
        """A topic was deleted."""


class Administration:
    """What is asked of topics that exist, and what becomes of it when it is committed."""

    __slots__ = ("_catalog", "_groups", "_growing", "_outbox", "_proposals", "_registry", "_time",
                 "access", "audit", "fleets", "quotas", "rewrapping", "schemas",
                 "topology")  # fmt: skip

    def __init__(
        self,
        catalog: Catalog,
        outbox: Replies,
        time: Time,
        registry: RegistryLog,
        groups: TopicGroups,
        access: AccessRequests,
        fleets: Enrolment,
        quotas: QuotaRequests,
        rewrapping: Rewrapping,
        audit: AuditGate,
    ) -> None:
        """Change `catalog` by entries of `registry`; `groups` follow what is decided. `access` is
        what is asked of users and roles, `fleets` what is asked of devices, `quotas` what is asked
        of those; `rewrapping` lets secrets be wrapped by the key that wraps now. `audit` says in
        entries who asked for them.
        """
        self.audit = audit
        self.rewrapping = rewrapping
        self.fleets = fleets
        self.quotas = quotas
        self.access = access
        self._catalog = catalog
        self._outbox = outbox
        self._registry = registry
        self._groups = groups
        self._time = time
        #: What is asked of their schemas.
        self.schemas = SchemaRequests(catalog, outbox, time, registry)
        #: What is asked of BrokerSets and their tiers.
        self.topology = TopologyRequests(catalog, outbox, registry)
        self._proposals: Proposals[TopicAltered | TopicClusterPaused | TopicDeleted, Caller]
        self._proposals = Proposals(registry)
        #: By topic, the callers that wait until all of its partitions are there, and their
        #: deadlines.
        self._growing: dict[int, list[tuple[Caller, int]]] = {}

    def lose(self, error: Refused) -> None:
        """This node no longer leads: refuse callers that wait for a change."""
        growing, self._growing = self._growing, {}
        self.schemas.lose(error)
        self.topology.lose(error)
        self.access.lose(error)
        self.fleets.lose(error)
        self.quotas.lose(error)
        self.rewrapping.lose(error)
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)
        for callers in growing.values():
            for caller, _ in callers:
                self._outbox.refuse(caller, error)

    def check_deadlines(self) -> None:
        """Refuse those who waited for too long."""
        if not self._growing:
            return
        now = self._time.monotonic_ms()
        for topic, callers in list(self._growing.items()):
            late = [caller for caller, until_ms in callers if until_ms <= now]
            for caller in late:
                error = Unavailable(
                    "the new partitions join once partition 0 has a leader, which takes long: they "
                    "join by themselves; describe the topic to see them"
                )
                self._outbox.refuse(caller, error)
            self._growing[topic] = [one for one in callers if one[0] not in late]
            if not self._growing[topic]:
                del self._growing[topic]

    def alter(self, caller: Caller, request: AlterTopic) -> None:
        """Propose other settings, or more partitions. Raises `UnknownTopic`, `BadRequest` or
        `QuotaExceeded`.
        """
        topic = self._named(request.name)
        partitions = more_partitions(topic, request.partitions)
        check_settings(partitions, topic.order)
        there = max(topic.partitions, topic.joining)
        self._catalog.check_room(topic.namespace, 0, partitions - there)
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
            self._registry.propose(TopicGrown(report.topic, report.partition, report.floor))

    def grown(self, record: TopicGrown) -> None:
        """Apply a committed record; tell those who waited for the last new partition."""
        if self._catalog.by_id(record.topic) is None:
            return
        topic = self._catalog.grow(record)
        self._groups.open_topic(topic)
        for caller, _ in self._growing.pop(topic.id, ()) if not topic.joining else ():
            self._outbox.reply(caller, self._registry.describe(topic))

    def apply(self, index: int, record: TopicAltered | TopicClusterPaused | TopicDeleted) -> None:
        """Apply a committed record; a topic that was deleted meanwhile stays as it is: gone."""
        caller = self._proposals.applied(index)
        try:
            if isinstance(record, TopicAltered):
                topic = self._catalog.alter(record)
                self._groups.open_topic(topic)
                if caller is not None and topic.joining:
                    until_ms = self._time.monotonic_ms() + _GROW_MS
                    self._growing.setdefault(topic.id, []).append((caller, until_ms))
                    return
                reply: Reply = self._registry.describe(topic)
            elif isinstance(record, TopicClusterPaused):
                self._groups.open_topic(self._catalog.pause(record))
                reply = ClusterChanged(0)
            else:
                self._groups.close_topic(self._catalog.delete(record))
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


class PartitionEndings:
    """Requests to end partitions, and the callers that wait until they have ended."""

    __slots__ = ("_catalog", "_outbox", "_proposals", "_registry", "_time", "_waiting")

    def __init__(
        self, catalog: Catalog, outbox: Replies, time: Time,
        registry: RegistryLog,
    ) -> None:  # fmt: skip
        """Change `catalog` by entries of `registry`."""
        self._catalog = catalog
        self._outbox = outbox
        self._registry = registry
        self._time = time
        self._proposals: Proposals[TopicEnds, Caller] = Proposals(registry)
        #: By topic and partition, the callers that wait until it has ended, and their deadlines.
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
            self._outbox.reply(caller, self._registry.describe(topic))
        else:
            self._wait(caller, topic, partition)

    def reported(self, report: ReportEnded) -> None:
        """Propose what a leader says of a partition that is to end, if it is news."""
        topic = self._catalog.by_id(report.topic)
        known = topic.end_of(report.partition) if topic is not None else None
        if known is None or known.done or (known.stamp and not report.done):
            return
        self._registry.propose(
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
                self._outbox.reply(waiting, self._registry.describe(topic))

    def check_deadlines(self) -> None:
        """Refuse those who waited for too long, or whose topic was deleted."""
        if not self._waiting:
            return
        now = self._time.monotonic_ms()
        for key, callers in list(self._waiting.items()):
            error: Refused = Unavailable(
                f"partition {key[1]} takes no messages any more, and ends once it and partition 0 "
                "have leaders, which takes long: it ends by itself; describe the topic to see it"
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
        """This node no longer leads: refuse waiting callers."""
        waiting, self._waiting = self._waiting, {}
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)
        for callers in waiting.values():
            for caller, _ in callers:
                self._outbox.refuse(caller, error)

    def _wait(self, caller: Caller, topic: Topic, partition: int) -> None:
        until_ms = self._time.monotonic_ms() + _END_MS
        self._waiting.setdefault((topic.id, partition), []).append((caller, until_ms))
