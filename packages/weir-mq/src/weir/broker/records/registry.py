"""Control records of the registry: topics, schemas, producers, nodes, and where groups lie."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weir.broker.records.audit import AuditRecord
from weir.broker.records.quotas import QuotaRecord
from weir.broker.records.record import Number, Partition, Record
from weir.broker.records.security import AccessRecord, FleetRecord, SecretsRewrapped
from weir.model.ids import LINEAGE_MAX, NODE_MAX, PARTITIONS_MAX, VOTER_MAX, Natural
from weir.model.limits import JOIN_KEY_BYTES
from weir.model.topic import KeyBy, SettingsChange, TopicSettings
from weir.topology.sets import SetId, Topology

Partitions = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX)]
Voters = Annotated[tuple[Annotated[int, Meta(ge=1, le=VOTER_MAX)], ...], Meta(min_length=1)]
Learners = tuple[Annotated[int, Meta(ge=1, le=VOTER_MAX)], ...]

JoinKey = Annotated[bytes, Meta(min_length=JOIN_KEY_BYTES, max_length=JOIN_KEY_BYTES)]


class TopicCreated(Record, frozen=True, array_like=True, tag="topic"):
    """Registry: a topic exists from `stamp` on. Its id is the next one, never reused.

    Its partitions get so many `replicas`, as far as there are nodes (0: as is the rule).
    """

    namespace: str
    name: str
    partitions: Partitions
    order: str
    stamp: Number
    settings: TopicSettings = TopicSettings()
    replicas: Number = 0


class TopicCreatedWith(TopicCreated, frozen=True, array_like=True, tag="topic-with"):
    """Registry: as `TopicCreated`, of a topic whose messages of devices have a key, or that was
    restored from the backup of topic `source`, as `SYSTEM:NAMESPACE/TOPIC`. Since format level 3.
    """

    key_by: KeyBy = ""
    source: str = ""


class TopicAltered(Record, frozen=True, array_like=True, tag="altered"):
    """Registry: what is to change in a topic's settings, and how many partitions it is to have,
    never fewer (0: as many as it has); new ones are there once they have joined.
    """

    topic: Number
    partitions: Partitions
    change: SettingsChange


class TopicGrown(Record, frozen=True, array_like=True, tag="grown"):
    """Registry: the next partition of a topic has joined its order, above stamp `floor`, and takes
    messages from here on.
    """

    topic: Number
    partition: Partition
    floor: Number


class TopicEnds(Record, frozen=True, array_like=True, tag="ends"):
    """Registry: a partition takes no messages from here on. With a `stamp` it is sealed there, and
    all of it lies below `offset`; it is `done` once partition 0 has an entry of that.
    """

    topic: Number
    partition: Partition
    stamp: Number = 0
    offset: Number = 0
    done: bool = False


class TopicDeleted(Record, frozen=True, array_like=True, tag="deleted"):
    """Registry: a topic is gone, with all its partitions hold."""

    topic: Number


class TopicClusterPaused(Record, frozen=True, array_like=True, tag="topic-pause"):
    """Registry: a cluster of a topic is granted nothing in any partition, or again something."""

    topic: Number
    cluster: str
    paused: bool


class SchemaVersionAdded(Record, frozen=True, array_like=True, tag="schema"):
    """Registry: version `number` of a topic's schema, as it was written, and its tree of fields;
    added at `added_ms`, in ms since 1970.

    It was compared with the version before; another one that was added since voids it.
    """

    topic: Number
    number: Number
    format: str
    message: str
    data: bytes
    fields: bytes
    added_ms: Number


class SchemaRuleSet(Record, frozen=True, array_like=True, tag="schema-rule"):
    """Registry: what new versions of a topic's schema must keep to, and whether clients check
    values; None stays as it is.
    """

    topic: Number
    rule: str | None
    checked: bool | None


class ProducerOpened(Record, frozen=True, array_like=True, tag="producer"):
    """Registry: a producer id (the stamp of this record when new) has a new epoch."""

    producer: Number
    epoch: Number
    principal: str


class NodeJoined(Record, frozen=True, array_like=True, tag="node"):
    """Registry: a node is there, or says anew where it listens, how many shards it runs, and which
    format level it supports; what is empty or 0 stays as it is. The first `birth` of its folder
    that it says is the node's for good.
    """

    node: Number
    host: str = ""
    port: Number = 0
    shards: Number = 0
    level: Number = 0
    birth: Number = 0


class NodeChanged(Record, frozen=True, array_like=True, tag="node-state"):
    """Registry: a node is to be given groups (active), to lose all of them (draining), or it is
    gone for good (removed).
    """

    node: Number
    state: str


class SetJoined(Record, frozen=True, array_like=True, tag="node-set"):
    """Registry: a node is of this BrokerSet, as its folder says. From format level 3 on."""

    node: Number
    brokerset: Number


class NodeExpected(Record, frozen=True, array_like=True, tag="node-key"):
    """Registry: a node is to come that was added, and proves by this `key` that it is the one: see
    `weir.protocol.link.announce`. Once its folder is known, the key is not. From format level 3 on.
    """

    node: Number
    key: JoinKey


class GroupsPlaced(Record, frozen=True, array_like=True, tag="placed"):
    """Registry: where groups are to lie from here on: (group, its voters), the preferred leader
    first. The leader of a group moves it there.
    """

    rows: list[tuple[Number, Voters]]


class GroupsFollowed(Record, frozen=True, array_like=True, tag="followed"):
    """Registry: the wanted learners of groups: (group, its learners). From format level 3 on."""

    rows: list[tuple[Number, Learners]]


class SetPromoted(Record, frozen=True, array_like=True, tag="promoted"):
    """Registry: BrokerSet `brokerset` goes on alone, with these of its nodes; all others are gone
    for good. Groups that lose most of their voters by that begin `lineage` with the copies that
    these nodes have. The set is home until a topology above `version` is applied. Void unless the
    lineage is a new one. From format level 3 on.
    """

    lineage: Annotated[int, Meta(ge=1, le=LINEAGE_MAX)]
    brokerset: SetId
    nodes: Annotated[tuple[Annotated[int, Meta(ge=1, le=NODE_MAX)], ...], Meta(min_length=1)]
    version: Number = 0


class GroupsSettled(Record, frozen=True, array_like=True, tag="settled"):
    """Registry: groups that were to move have these voters now: the former voters are no longer
    needed.
    """

    rows: list[tuple[Number, Voters]]


class LevelRaised(Record, frozen=True, array_like=True, tag="level"):
    """Registry: every node supports this format level, and may write it."""

    level: Number


class TopologyApplied(msgspec.Struct, frozen=True, array_like=True, tag="topology"):
    """Registry: the topology is this from now on, in version `version`; void unless the one before
    has the version before.
    """

    version: Natural
    topology: Topology


NodeRecord = (
    NodeJoined
    | NodeChanged
    | SetJoined
    | NodeExpected
    | GroupsPlaced
    | GroupsFollowed
    | SetPromoted
    | GroupsSettled
    | LevelRaised
)
SchemaRecord = SchemaVersionAdded | SchemaRuleSet
SystemRecord = AccessRecord | FleetRecord | SecretsRewrapped | QuotaRecord | TopologyApplied
#: What the registry decides.
RegistryChange = (
    TopicCreated
    | TopicCreatedWith
    | TopicAltered
    | TopicGrown
    | TopicEnds
    | TopicClusterPaused
    | TopicDeleted
    | SchemaRecord
    | SystemRecord
    | AuditRecord
    | ProducerOpened
    | NodeRecord
)


class Attributed(Record, frozen=True, array_like=True, tag="by"):
    """Registry: a change, which principal asked for it from which address, and when by the clock of
    the leader, in ms since 1970. It is published to the audit topic.
    """

    principal: str
    address: str
    at_ms: Number
    change: RegistryChange
