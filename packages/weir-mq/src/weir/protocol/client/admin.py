"""Requests and replies that look after topics and consumer clusters.

A topic is altered and deleted by name. What one partition holds is asked and changed by its
address, for each partition knows only its own: a client gathers.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weir.codec import Unsigned8
from weir.errors import (
    BadName,
    ClusterInUse,
    LevelTooLow,
    OffsetOutOfRange,
    QuotaExceeded,
    TopicExists,
    UnknownCluster,
    UnknownTopic,
)
from weir.model.ids import Address, Natural
from weir.model.topic import SettingsChange, TopicSettings, full_name_of
from weir.protocol.client.declaration import (
    Control,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)

#: The number of a hub: all 64 bits of it, which is as large as the encoding lets a number be.
Hub = Annotated[int, Meta(ge=0)]
#: The id of a system: so many bits, too.
System = Annotated[int, Meta(ge=0)]


class TopicInfo(ControlReply, frozen=True, array_like=True):
    """A topic, and where each of its partitions is served, in partition order.

    `ends` are the partitions that take no more messages, as (partition, stamp). The stamp is 0
    until the partition has ended; then all of its messages are stamped below it. `schema` is the
    number of the newest version of its schema, 0 if it has none; clients check values by it before
    they send if that is `checked`. `key_by` says what the messages of devices have as their key.
    """

    id: int
    namespace: str
    name: str
    order: str
    addresses: list[Address]
    settings: TopicSettings = TopicSettings()
    ends: tuple[tuple[Natural, Natural], ...] = ()
    schema: Natural = 0
    checked: bool = False
    key_by: str = ""

    @property
    def full_name(self) -> str:
        """The name that all calls take: `namespace/topic`, or `topic` in the default one."""
        return full_name_of(self.namespace, self.name)

    @property
    def closed(self) -> frozenset[int]:
        """The partitions to which nothing is published any more."""
        return frozenset(partition for partition, _ in self.ends)


class DescribeTopic(ControlRequest, frozen=True, array_like=True):
    """Ask for one topic by `topic` or `namespace/topic`."""

    declaration = Declaration(
        3,
        Scope.HERE,
        TopicInfo,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        refusals=(UnknownTopic, BadName),
        methods=("Client.describe",),
    )

    name: str


class TopicList(ControlReply, frozen=True, array_like=True):
    """Topics asked for, by name; if there are `more`, ask again after the last."""

    topics: list[TopicInfo]
    more: bool = False


class ListTopics(ControlRequest, frozen=True, array_like=True):
    """Ask for the topics of a namespace, or of all (""), by name; `after` this full name."""

    declaration = Declaration(
        4,
        Scope.COPY,
        TopicList,
        Retry.READ,
        rights=(Right("describe", Resource.LISTED),),
        methods=("Client.topics",),
    )

    namespace: str = ""
    after: str = ""


class OffsetList(ControlReply, frozen=True, array_like=True):
    """Topics by name, and (group, first offset, offset behind the last committed message) of each
    partition whose leader answered; if there are `more` topics, ask again after the last.
    """

    topics: list[TopicInfo]
    offsets: list[tuple[Natural, Natural, Natural]]
    more: bool = False


class ListOffsets(ControlRequest, frozen=True, array_like=True):
    """Ask for topics as `ListTopics` does, and for the offsets of all their partitions.

    The answer comes once all are known, or after `wait_ms` with those that are. Any shard of any
    node gathers them. Shards ask each other with `groups`: for these partitions alone.
    """

    declaration = Declaration(
        11,
        Scope.COPY,
        OffsetList,
        Retry.READ,
        rights=(Right("describe", Resource.LISTED),),
        methods=("Client.held",),
    )

    namespace: str = ""
    after: str = ""
    wait_ms: Natural = 0
    groups: list[Natural] = field(default_factory=list)


class CreateTopic(ControlRequest, frozen=True, array_like=True):
    """Create a topic; one that exists with the same settings is fine if `if_absent`.

    `order` is "partition" or "total": what has one order, each partition or all of them together.
    `settings` that are left out have their defaults in a new topic, and are not compared with an
    existing one. A new topic gets this many `replicas` (0: three, or one per node if fewer), and
    by `key_by` "device" the messages of devices get the number of their hub as their key.
    """

    declaration = Declaration(
        5,
        Scope.REGISTRY,
        TopicInfo,
        Retry.SAME,
        rights=(Right("create", Resource.NAMESPACE),),
        refusals=(TopicExists, BadName, LevelTooLow, QuotaExceeded),
        methods=("Client.create_topic",),
    )

    name: str
    partitions: Natural = 1
    order: str = "partition"
    if_absent: bool = True
    settings: SettingsChange = SettingsChange()
    replicas: Natural = 0
    key_by: str = ""


class RestoreTopic(CreateTopic, frozen=True, array_like=True):
    """Create a topic as `CreateTopic` does, to publish to it what a backup holds of the topic with
    the full name `source` in `system`.

    It needs the same right in the namespace of the backup: else a backup would be a way into
    namespaces that its reader may not use.
    """

    declaration = Declaration(
        103,
        Scope.REGISTRY,
        TopicInfo,
        Retry.SAME,
        rights=(Right("restore", Resource.NAMESPACES),),
        refusals=(TopicExists, BadName, LevelTooLow, QuotaExceeded),
        methods=("Client.restore_topic",),
    )

    source: str = ""
    system: System = 0


class AlterTopic(ControlRequest, frozen=True, array_like=True):
    """Change a topic's settings, or give it more `partitions` (0: as many as it has).

    More partitions change the partition of keys from then on. Answered by `TopicInfo`.
    """

    declaration = Declaration(
        12,
        Scope.REGISTRY,
        TopicInfo,
        Retry.SAME,
        rights=(Right("alter", Resource.TOPIC),),
        refusals=(UnknownTopic, BadName, QuotaExceeded),
        methods=("Client.alter_topic",),
    )

    name: str
    settings: SettingsChange = SettingsChange()
    partitions: Natural = 0


class EndPartition(ControlRequest, frozen=True, array_like=True):
    """End a partition: it takes no more messages, and what it holds stays readable. Answered
    by `TopicInfo` once it has ended; one that has ended before is answered the same.
    """

    declaration = Declaration(
        15,
        Scope.REGISTRY,
        TopicInfo,
        Retry.SAME,
        rights=(Right("alter", Resource.TOPIC),),
        refusals=(UnknownTopic, BadName),
        methods=("Client.end_partition",),
    )

    name: str
    partition: Natural


class Deleted(ControlReply, frozen=True, array_like=True):
    """The topic of this id is gone."""

    id: int


class DeleteTopic(ControlRequest, frozen=True, array_like=True):
    """Delete a topic and all of its messages for good. Its `id` is never used again.

    An `id` of 0 deletes whichever topic has the name.
    """

    declaration = Declaration(
        13,
        Scope.REGISTRY,
        Deleted,
        Retry.SAME,
        rights=(Right("delete", Resource.TOPIC),),
        refusals=(UnknownTopic, BadName),
        methods=("Client.delete_topic",),
    )

    name: str
    id: Natural = 0


class PartitionInfo(ControlReply, frozen=True, array_like=True):
    """First offset kept, the offset behind the last committed, and the stored bytes of messages;
    the nodes that hold it, and those of them that are not up to date.
    """

    start: int
    end: int
    bytes: int
    clusters: list[str]
    nodes: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)


class DescribePartition(ControlRequest, frozen=True, array_like=True):
    """Ask what a partition holds."""

    declaration = Declaration(
        14,
        Scope.PARTITION,
        PartitionInfo,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        methods=("Client.parts",),
    )

    address: Address


class PartitionStats(ControlReply, frozen=True, array_like=True):
    """How much a partition holds: `messages` from offset `start` on and below `end`, and the stored
    bytes of them.

    `first_stamp` and `last_stamp` are those of the entries that hold the first message and the
    last; an entry has the stamp of its last message. 0: there is no message.
    """

    start: Natural
    end: Natural
    messages: Natural
    bytes: Natural
    first_stamp: Natural = 0
    last_stamp: Natural = 0


class AskStats(ControlRequest, frozen=True, array_like=True):
    """Ask how much a partition holds, and from when until when."""

    declaration = Declaration(
        38,
        Scope.PARTITION,
        PartitionStats,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        methods=("Client.topic_stats",),
    )

    address: Address


class LeaderInfo(ControlReply, frozen=True, array_like=True):
    """The node that leads a partition in Raft term `term`, and the nodes that are to hold it.

    `node` is 0 if no leader is known. `term` is 0 if the node that answers holds no replica.
    """

    node: Natural
    term: Natural
    nodes: tuple[Natural, ...] = ()


class AskLeader(ControlRequest, frozen=True, array_like=True):
    """Ask any node which node leads a partition. It answers at once with what it knows, without
    asking another node, so a leader that hangs delays nobody.
    """

    declaration = Declaration(
        31,
        Scope.HOLDER,
        LeaderInfo,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        refusals=(UnknownTopic,),
    )

    address: Address


class ClusterList(ControlReply, frozen=True, array_like=True):
    """The clusters of a partition, by name, and the offsets it holds: from `start`, below `end`.

    Offsets in `voids` hold no message, because their scatterings were aborted. Of many runs
    only the last are listed; the field is left out if there are none. `tags` has, by cluster, the
    tags of those that take some tags alone, "" for messages without one; left out if none does.

    A relay adds in `pending`, by cluster, how many messages have acks that wait at this relay for a
    core that is away. If it `is_cut_off`, it knows nothing else of clusters. Both are left out if
    they say nothing.
    """

    start: int
    end: int
    clusters: list[ClusterInfo]
    voids: tuple[tuple[int, int], ...] = ()
    tags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    pending: tuple[tuple[str, Natural], ...] = ()
    is_cut_off: bool = False


class ListClusters(ControlRequest, frozen=True, array_like=True):
    """Ask for the progress of the clusters of a partition, or of one of them."""

    declaration = Declaration(
        24,
        Scope.PARTITION,
        ClusterList,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        refusals=(UnknownCluster,),
        methods=("Client.clusters",),
    )

    address: Address
    cluster: str = ""


class ClusterInfo(Control, frozen=True, array_like=True):
    """How far a cluster is in one partition.

    All below `cursor` is done. Of the `lag` messages that are not done, `granted` are with
    consumers; `attempts` is the most grants that one of the lag took, and `oldest_ms` how long ago
    the oldest message that is not done was published, as far as it is known (-1: it is not).
    `skipped` were deleted by retention before they were done. `consumers` wait or hold a
    grant now. Its `mode` is a `Mode`, or -1 before its first grant. The `held_back` messages were
    given back and not granted again, the `delayed` ones are not due. A cluster that reads the
    topic in total order is in partition 0 alone: all below `offsets`, by partition, is done.
    """

    name: str
    cursor: int
    lag: int
    granted: int
    attempts: int
    oldest_ms: int
    skipped: int
    consumers: int
    paused: bool
    mode: int = 0
    held_back: int = 0
    delayed: int = 0
    offsets: tuple[int, ...] = ()


class ClusterTrace(Control, frozen=True, array_like=True):
    """How far a cluster is with one message: `progress` is a `Progress`.

    `attempts` is how often it was granted. Of a granted one, `consumer` is the number of the
    connection that has it, of `principal` at `address` (empty: not known to the node that answers).
    After `left_ms` it may be granted to others. In a cluster that reads in total order, `consumer`
    has the turn.
    """

    name: str
    progress: Unsigned8
    attempts: Natural = 0
    consumer: Natural = 0
    principal: str = ""
    address: str = ""
    left_ms: Natural = 0


class TracedMessage(ControlReply, frozen=True, array_like=True):
    """Where a message is: `presence` is a `Presence`, and [start, end) what the partition holds.

    `stamp` is that of the entry that holds it, 0 if it is not there. A relay says when it was
    `received_ms`, in ms since 1970 by its clock; the core says 0. `now_ms` is the clock of the node
    that answers. The clusters come by name; a relay has none.
    """

    presence: Unsigned8
    start: Natural
    end: Natural
    stamp: Natural
    received_ms: Natural
    now_ms: Natural
    clusters: list[ClusterTrace] = field(default_factory=list)


class TraceMessage(ControlRequest, frozen=True, array_like=True):
    """Ask where a message is, and how far the clusters of its partition are with it; or ask a relay
    whether it is there. Clusters that read in total order are told of in partition 0 alone.
    """

    declaration = Declaration(
        108,
        Scope.PARTITION,
        TracedMessage,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        methods=("Client.trace",),
    )

    address: Address
    offset: Natural


class ClusterChanged(ControlReply, frozen=True, array_like=True):
    """A change of a cluster is durable on a majority; `cursor` is where it is now."""

    cursor: int


class BeginCluster(ControlRequest, frozen=True, array_like=True):
    """Let a cluster that has no position in this partition begin at `offset`; one that has keeps
    it, whatever else is under way. Answered by `ClusterChanged`, with its position.

    A cluster has begun once partition 0 has a position of it: consumers that say where to start
    ask all other partitions before that one.
    """

    declaration = Declaration(
        39,
        Scope.PARTITION,
        ClusterChanged,
        Retry.SAME,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        refusals=(OffsetOutOfRange,),
        methods=("Client.consumer",),
    )

    address: Address
    cluster: str
    offset: Natural


class SeekCluster(ControlRequest, frozen=True, array_like=True):
    """Move a cluster to `offset`, and end all its grants; a cluster that does not exist begins.

    Answered by `ClusterChanged`.
    """

    declaration = Declaration(
        25,
        Scope.PARTITION,
        ClusterChanged,
        Retry.SAME,
        rights=(Right("steer", Resource.TOPIC), Right("steer", Resource.CLUSTER)),
        refusals=(OffsetOutOfRange,),
        methods=("Client.seek_cluster",),
    )

    address: Address
    cluster: str
    offset: Natural


class PauseCluster(ControlRequest, frozen=True, array_like=True):
    """Pause a cluster: nothing is granted to it. With `paused` False, resume it. Consumers wait.

    Any address of the topic stands for all of its partitions, also for future ones.
    """

    declaration = Declaration(
        26,
        Scope.REGISTRY,
        ClusterChanged,
        Retry.SAME,
        rights=(Right("steer", Resource.TOPIC), Right("steer", Resource.CLUSTER)),
        refusals=(UnknownTopic,),
        methods=("Client.pause_cluster", "Client.resume_cluster"),
    )

    address: Address
    cluster: str
    paused: bool = True


class DeleteCluster(ControlRequest, frozen=True, array_like=True):
    """Delete a cluster; refused while it has consumers."""

    declaration = Declaration(
        27,
        Scope.PARTITION,
        ClusterChanged,
        Retry.SAME,
        rights=(Right("steer", Resource.TOPIC), Right("steer", Resource.CLUSTER)),
        refusals=(UnknownCluster, ClusterInUse),
        methods=("Client.delete_cluster",),
    )

    address: Address
    cluster: str


class HubList(ControlReply, frozen=True, array_like=True):
    """Devices (hub, sn, epoch, next sequence, last offset), in no order, and the part to ask for
    next; 0: there is none. An epoch is generation · 2^32 + boot.
    """

    devices: list[tuple[int, int, int, int, int]]
    next_part: int = 0


class ListHubs(ControlRequest, frozen=True, array_like=True):
    """Ask for the state of devices that published with a sequence to a partition: those of `hub`,
    or some of all, from `part` on.
    """

    declaration = Declaration(
        36,
        Scope.PARTITION,
        HubList,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        methods=("Client.hubs",),
    )

    address: Address
    hub: Hub | None = None
    part: Natural = 0


class HubForgotten(ControlReply, frozen=True, array_like=True):
    """It is durable on a majority that so many devices of a hub are forgotten."""

    devices: int


class ForgetHub(ControlRequest, frozen=True, array_like=True):
    """Forget the devices of a hub in a partition. They may begin again with a boot count above all
    that the hub had, or in a later generation; below format level 3 with any boot count.
    """

    declaration = Declaration(
        37,
        Scope.PARTITION,
        HubForgotten,
        Retry.SAME,
        rights=(Right("steer", Resource.TOPIC),),
        methods=("Client.forget_hub",),
    )

    address: Address
    hub: Hub


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (
    DescribeTopic,
    ListTopics,
    ListOffsets,
    CreateTopic,
    RestoreTopic,
    AlterTopic,
    EndPartition,
    DeleteTopic,
    DescribePartition,
    AskStats,
    AskLeader,
    ListClusters,
    TraceMessage,
    BeginCluster,
    SeekCluster,
    PauseCluster,
    DeleteCluster,
    ListHubs,
    ForgetHub,
)
