"""The registry's replicated state: topics, owners of producer ids, nodes and placement."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from weir.broker.metadata.audit import AUDITOR, AuditTrail
from weir.broker.metadata.placement import Nodes
from weir.broker.metadata.producer_ids import Holding, ProducerIds
from weir.broker.metadata.quotas import NAMESPACE, Quotas, entity_of, namespace_of
from weir.broker.metadata.schemas import Schemas, TopicSchemas
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.fleets import Fleets
from weir.broker.metadata.security.rules import topic_name
from weir.broker.metadata.spread import Spread
from weir.broker.metadata.topology import AppliedTopology
from weir.broker.records.audit import AuditProducerOpened
from weir.broker.records.registry import (
    ProducerOpened,
    TopicAltered,
    TopicClusterPaused,
    TopicCreated,
    TopicCreatedWith,
    TopicDeleted,
    TopicEnds,
    TopicGrown,
)
from weir.errors import BadRequest, UnknownTopic, UnknownVersion
from weir.model.ids import granted_at
from weir.model.limits import CLUSTER_PAUSES_MAX, DEDUPE_HORIZON_MS
from weir.model.topic import (
    AUDIT_TOPIC,
    RESERVED_NAMESPACE,
    ClusterPause,
    End,
    Topic,
    TopicSettings,
    check_key_by,
)
from weir.order.clock import stamp_at

_VERSION = 10
#: What is written as long as no producer id has a window.
_WITHOUT_WINDOWS = 9
#: What is written as long as nothing was said about access, either: releases of format level 2
#: read it.
_WITHOUT_ACCESS = 8
#: What is written as long as there is no schema, either: releases of format level 1 read it.
_WITHOUT_SCHEMAS = 7
#: What is written as long as no cluster was paused, either.
_WITHOUT_PAUSES = 6
#: What is written as long as no partition has ended, either.
_WITHOUT_ENDS = 5
_VERSIONS = range(_WITHOUT_ENDS, _VERSION + 1)
#: No partition has to know an id any more when only half of this has passed since its grant.
_KEPT = stamp_at(2 * DEDUPE_HORIZON_MS)
_FORGET_EVERY = stamp_at(3600 * 1000)


def more_partitions(topic: Topic, asked: int) -> int:
    """Return how many partitions a topic is to have when it is asked to have so many (0: as it has,
    or is about to have). Raises `BadRequest` for fewer.
    """
    there = max(topic.partitions, topic.joining)
    if 0 < asked < there:
        raise BadRequest(
            f"topic {topic.full_name} has {there} partitions, and never fewer: "
            "their messages would have no place. Create another topic and publish to it",
            there,
        )
    return asked or there


#: What a catalog is of: what one takes over from another.
_PARTS = (
    "_by_id",
    "_ids",
    "_next_topic",
    "_topics",
    "access",
    "audit",
    "audit_topic",
    "ending",
    "fleets",
    "growing",
    "last_stamp",
    "nodes",
    "quotas",
    "schemas",
    "topology",
)


class Catalog:
    """Topics by name and id, and producers by id. Topic ids rise from 1 and are never reused."""

    __slots__ = _PARTS

    def __init__(self) -> None:
        """Begin empty."""
        self._topics: dict[tuple[str, str], Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._ids = ProducerIds()
        self._next_topic = 1
        #: The highest stamp that was ever given to a topic or as a producer id.
        self.last_stamp = 0
        #: By id, the topics of which partitions are still to join.
        self.growing: dict[int, None] = {}
        #: By id, the topics of which partitions are still to end.
        self.ending: dict[int, None] = {}
        #: The nodes, and which of them hold which groups.
        self.nodes = Nodes()
        self.schemas = Schemas()
        self.fleets = Fleets()
        self.quotas = Quotas()
        self.access = Access()
        self.topology = AppliedTopology()
        #: The changes that the audit topic does not have yet.
        self.audit = AuditTrail()
        #: The topic that says who did what, if it is there.
        self.audit_topic: Topic | None = None

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, namespace: str, name: str) -> Topic | None:
        """Return a topic by its names."""
        return self._topics.get((namespace, name))

    def by_id(self, topic: int) -> Topic | None:
        """Return a topic by its id."""
        return self._by_id.get(topic)

    def topics(self, namespace: str = "") -> list[Topic]:
        """Return the topics of a namespace, or all, in the order of their names."""
        return [t for key, t in sorted(self._topics.items()) if namespace in ("", key[0])]

    def producer(self, producer: int) -> Holding | None:
        """Return the owner of a producer id; None if it was never granted, or is forgotten."""
        return self._ids.recent.get(producer) or self._ids.get(producer)

    @property
    def forgotten_below(self) -> int:
        """Ids that are not here were granted and forgotten below this one, or never."""
        return max(self._ids.forgot_at - _KEPT, 0)

    def voters(self, group: int) -> tuple[int, ...]:
        """Return the wanted voters of a group, its preferred leader first; () before any node is
        registered: then only this node has the group.
        """
        return self.nodes.voters(group)

    @property
    def level(self) -> int:
        """The format level that is written."""
        return self.nodes.level

    @property
    def spread(self) -> Spread:
        """How placements keep to the sets that there are."""
        return self.nodes.spread(self.topology.declared)

    @property
    def is_audited(self) -> bool:
        """Whether that is written: always but in an open set, and there once the topic exists."""
        return self.access.mode != "open" or self.audit_topic is not None

    def was_deleted(self, topic: int) -> bool:
        """Return whether a topic of this id was there once and is not any more."""
        return 0 < topic < self._next_topic and topic not in self._by_id

    def become(self, other: Catalog) -> None:
        """Hold what `other` holds, in place: many look into this one."""
        for name in _PARTS:
            setattr(self, name, getattr(other, name))

    def create(self, record: TopicCreated) -> tuple[Topic, bool]:
        """Apply a creation; return the topic of that name, and whether it is new. Raises
        `QuotaExceeded` where its namespace has no room for it.
        """
        self._passed(record.stamp)
        key = (record.namespace, record.name)
        existing = self._topics.get(key)
        if existing is not None:
            return existing, False
        self.check_room(record.namespace, 1, record.partitions)
        topic = Topic(
            self._next_topic,
            record.namespace,
            record.name,
            record.partitions,
            record.partitions,
            "total" if record.order == "total" else "partition",
            record.stamp,
            record.settings,
            key_by=record.key_by if isinstance(record, TopicCreatedWith) else "",
        )
        self._next_topic += 1
        self._add(topic)
        self.nodes.place_new(topic.groups(), record.replicas, self.topology.declared)
        return topic, True

    def alter(self, record: TopicAltered) -> Topic:
        """Apply a change to what is set now; return the topic as it is then.

        Raises `UnknownTopic` if it is gone, `BadRequest` if it has more partitions meanwhile,
        `QuotaExceeded` where its namespace has no room for them.
        """
        topic = self._known(record.topic)
        partitions = more_partitions(topic, record.partitions)
        self.check_room(topic.namespace, 0, partitions - max(topic.partitions, topic.joining))
        settings = record.change.over(topic.settings)
        joining = partitions if partitions > topic.partitions else 0
        more = replace(topic, joining=joining, settings=settings)
        self._add(more)
        added = more.groups_to_be()[len(topic.groups_to_be()) :]
        replicas = self.nodes.wanted(topic.groups()[0])
        self.nodes.place_new(added, replicas, self.topology.declared)
        return more

    def grow(self, record: TopicGrown) -> Topic:
        """Let a partition be there that has joined, if it is the next one; return the topic as it
        is then. Raises `UnknownTopic` if it is gone.
        """
        topic = self._known(record.topic)
        if record.partition != topic.partitions or not topic.joining:
            return topic  # it was said twice
        there = topic.partitions + 1
        joining = topic.joining if topic.joining > there else 0
        floors = (*topic.floors, record.floor)
        more = replace(topic, partitions=there, joining=joining, floors=floors)
        self._add(more)
        return more

    def end(self, record: TopicEnds) -> Topic:
        """Let a partition be about to end, or be further with that; return the topic as it is then.
        Raises `UnknownTopic` if it is gone.
        """
        topic = self._known(record.topic)
        known = topic.end_of(record.partition) or End(record.partition)
        found = End(*known[:3], known.done or record.done)
        if not known.stamp:  # it was said for the first time
            found = found._replace(stamp=record.stamp, offset=record.offset)
        others = (end for end in topic.ends if end.partition != record.partition)
        more = replace(topic, ends=tuple(sorted((*others, found))))
        self._add(more)
        return more

    def pause(self, record: TopicClusterPaused) -> Topic:
        """Pause a cluster or let it go on; return the topic as it is then. Of too many that go on
        the one is forgotten that has done so for longest. Raises `UnknownTopic` if it is gone.
        """
        topic = self._known(record.topic)
        known = {row.cluster: row for row in topic.pauses}
        before = known.get(record.cluster)
        if before is not None and before.paused == record.paused:
            return topic
        revision = 1 + max((row.revision for row in topic.pauses), default=0)
        known[record.cluster] = ClusterPause(record.cluster, record.paused, revision)
        if len(known) > CLUSTER_PAUSES_MAX:
            oldest = min((row.paused, row.revision, row.cluster) for row in known.values())
            del known[oldest[2]]
        more = replace(topic, pauses=tuple(known[name] for name in sorted(known)))
        self._add(more)
        return more

    def delete(self, record: TopicDeleted) -> Topic:
        """Apply a deletion; return the topic as it was. Raises `UnknownTopic` if it is gone."""
        topic = self._known(record.topic)
        del self._topics[topic.namespace, topic.name]
        del self._by_id[topic.id]
        if topic == self.audit_topic:
            self.audit_topic = None
        self.growing.pop(topic.id, None)
        self.ending.pop(topic.id, None)
        self.schemas.forget(topic.id)
        self.access.forget_topic(topic_name(topic.namespace, topic.name))
        self.nodes.drop(topic.groups_to_be())
        return topic

    def open(self, record: ProducerOpened) -> ProducerOpened:
        """Apply a new producer id or epoch; return what was granted.

        Two requests that were proposed together name the same epoch: the later one gets the next.
        Raises `QuotaExceeded` where the principal, or its namespace, has no room for a new id.
        """
        producer = record.producer
        held = self._ids.get(producer)
        if held is not None and record.epoch <= held.epoch:
            record = ProducerOpened(producer, held.epoch + 1, record.principal)
        if held is None:
            self.check_producers(record.principal)
        if not record.epoch:
            self._passed(granted_at(producer))
        self._ids.put(producer, record.epoch, record.principal)
        return record

    def open_audit(self, record: AuditProducerOpened) -> None:
        """Let the audit trail have another producer id, unless it has one that it can go on by."""
        if self.audit.open(record):
            self.open(ProducerOpened(record.producer, 0, AUDITOR))

    def check_room(self, namespace: str, topics: int, partitions: int) -> None:
        """Raise `QuotaExceeded` where a namespace has no room for so many more."""
        quotas, entity = self.quotas, f"{NAMESPACE}{namespace}"
        if not quotas.of(entity):
            return
        used = self.used(entity)
        if topics:
            quotas.check_room(entity, "topics", used["topics"], topics)
        if partitions:
            quotas.check_room(entity, "partitions", used["partitions"], partitions)

    def check_producers(self, principal: str) -> None:
        """Raise `QuotaExceeded` where a principal, or its namespace, has no room for another
        producer id.
        """
        if not self.quotas:
            return
        for entity in (entity_of(principal), f"{NAMESPACE}{namespace_of(principal)}"):
            if self.quotas.limit(entity, "producers") is not None:
                self.quotas.check_room(entity, "producers", self.used(entity)["producers"])

    def used(self, entity: str) -> dict[str, int]:
        """Return by quota how much an entity has of what is in the registry."""
        if not entity.startswith(NAMESPACE):
            held = (count for who, count in self._ids.held_by() if entity_of(who) == entity)
            return {"producers": sum(held)}
        name = entity.removeprefix(NAMESPACE)
        topics = [one for key, one in self._topics.items() if key[0] == name]
        held = (count for who, count in self._ids.held_by() if namespace_of(who) == name)
        return {
            "producers": sum(held),
            "topics": len(topics),
            "partitions": sum(max(one.partitions, one.joining) for one in topics),
        }

    def _known(self, id: int) -> Topic:
        topic = self._by_id.get(id)
        if topic is None:
            raise UnknownTopic(f"the topic with id {id} was deleted", id)
        return topic

    def _passed(self, stamp: int) -> None:
        """Take note of a record's stamp; now and then, forget ids granted long before it.

        By stamp and never by a clock, so that every replica forgets at the same entry. Partitions
        that know such an id go on taking its batches.
        """
        self.last_stamp = max(self.last_stamp, stamp)
        if self._ids.not_stamped:
            self._ids.stamp(stamp)
        if stamp - self._ids.forgot_at > _FORGET_EVERY:
            self._ids.forgot_at = stamp
            self._ids.forget(self.forgotten_below)

    def _add(self, topic: Topic) -> None:
        self._topics[topic.namespace, topic.name] = topic
        self._by_id[topic.id] = topic
        if (topic.namespace, topic.name) == (RESERVED_NAMESPACE, AUDIT_TOPIC):
            self.audit_topic = topic
        self.growing.pop(topic.id, None)
        if topic.joining:
            self.growing[topic.id] = None
        self.ending.pop(topic.id, None)
        if not all(end.done for end in topic.ends):
            self.ending[topic.id] = None

    def encode(self) -> object:
        """Return the state as MessagePack can hold it."""
        topics = [
            (
                t.id,
                t.namespace,
                t.name,
                t.partitions,
                t.founded_with,
                t.order,
                t.created,
                t.settings,
                t.joining,
                t.floors,
                *((t.ends,) if t.ends or t.pauses or t.key_by else ()),
                *((t.pauses,) if t.pauses or t.key_by else ()),
                *((t.key_by,) if t.key_by else ()),
            )
            for t in self._topics.values()
        ]
        producers = self._ids.encode() if self._ids.windows else self._ids.rows()
        has_ends = any(topic.ends for topic in self._topics.values())
        has_pauses = any(topic.pauses for topic in self._topics.values())
        schemas = [(topic, *known.encode()) for topic, known in self.schemas.items()]
        version = _WITHOUT_PAUSES if has_ends else _WITHOUT_ENDS
        version = _WITHOUT_SCHEMAS if has_pauses else version
        version = _WITHOUT_ACCESS if schemas else version
        has_audit = bool(self.audit or self.topology)
        has_quotas = bool(self.quotas or has_audit)
        has_fleets = bool(self.fleets or has_quotas)
        has_keys = any(topic.key_by for topic in self._topics.values())
        has_access = bool(self.access or has_fleets or has_keys)
        version = _WITHOUT_WINDOWS if has_access else version
        return (
            _VERSION if self._ids.windows else version,
            self._next_topic,
            self._ids.forgot_at,
            self.last_stamp,
            topics,
            producers,
            self.nodes.encode(),
            *((schemas,) if schemas or has_access else ()),
            *((self.access.encode(),) if has_access else ()),
            *((self.fleets.encode(),) if has_fleets else ()),
            *((self.quotas.encode(),) if has_quotas else ()),
            *((self.audit.encode(),) if has_audit else ()),
            *((self.topology.encode(),) if self.topology else ()),
        )

    @classmethod
    def decode(cls, data: Any) -> Catalog:
        """Return the state that `encode` gave."""
        version, *fields = data
        if version not in _VERSIONS:
            raise UnknownVersion(
                f"the checkpoint holds the registry in version {version}; this release reads "
                f"{_VERSION}. Start the release that wrote it, or restore a backup to a new folder",
                version,
                _VERSION,
            )
        next_topic, forgot_at, last_stamp, topics, producers, nodes, *later_parts = fields
        catalog = cls()
        catalog._next_topic = next_topic
        catalog.last_stamp = last_stamp
        catalog.nodes = Nodes.decode(nodes)
        for id, namespace, name, partitions, founded_with, order, created, *more in topics:
            settings, joining, floors, *later = more
            kept = msgspec.convert(settings, TopicSettings)
            named = id, namespace, name, partitions, founded_with, order, created
            ends = tuple(End(*end) for known in later[:1] for end in known)
            pauses = tuple(ClusterPause(*row) for known in later[1:2] for row in known)
            key_by = check_key_by(*later[2:3] or ("",))
            catalog._add(Topic(*named, kept, joining, tuple(floors), ends, pauses, key_by))
        read_ids = ProducerIds.decode if version == _VERSION else ProducerIds.of_rows
        catalog._ids = read_ids(producers)
        catalog._ids.forgot_at = forgot_at
        for topic, *row in (row for known in later_parts[:1] for row in known):
            catalog.schemas.put(topic, TopicSchemas.decode(row))
        for access in later_parts[1:2]:
            catalog.access = Access.decode(access)
        for fleets in later_parts[2:3]:
            catalog.fleets = Fleets.decode(fleets)
        for quotas in later_parts[3:4]:
            catalog.quotas = Quotas.decode(quotas)
        for trail in later_parts[4:5]:
            catalog.audit = AuditTrail.decode(trail)
        for topology in later_parts[5:6]:
            catalog.topology = AppliedTopology.decode(topology)
        return catalog
