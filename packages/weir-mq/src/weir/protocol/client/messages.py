"""Requests and replies of the client dialect, one class each, at batch or control rate.

Control bodies are MessagePack arrays: a field may be added at the end with a default, never moved.
Data bodies (`Produce`, `Fetched`, `Granted`) are a fixed prefix and batches as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import msgspec

from weir.codec.fields import Buffer, Unsigned16, Unsigned32
from weir.model.ids import Address, Natural
from weir.model.limits import PINGED_PARTITIONS_MAX
from weir.model.topic import DEFAULT_NAMESPACE, SettingsChange, TopicSettings
from weir.protocol.client import admin as a
from weir.protocol.client import nodes as n
from weir.protocol.client.barriers import AskBarriers as AskBarriers
from weir.protocol.client.barriers import Barriers as Barriers
from weir.protocol.client.barriers import ReportDone as ReportDone
from weir.protocol.client.barriers import ReportEnded as ReportEnded
from weir.protocol.client.barriers import ReportJoined as ReportJoined
from weir.protocol.client.consumers import Ack as Ack
from weir.protocol.client.consumers import Acked as Acked
from weir.protocol.client.consumers import ClusterIsOpen as ClusterIsOpen
from weir.protocol.client.consumers import Extend as Extend
from weir.protocol.client.consumers import Extended as Extended
from weir.protocol.client.consumers import Granted as Granted
from weir.protocol.client.consumers import MoveCursor as MoveCursor
from weir.protocol.client.consumers import Moved as Moved
from weir.protocol.client.consumers import Nack as Nack
from weir.protocol.client.consumers import Nacked as Nacked
from weir.protocol.client.consumers import OpenCluster as OpenCluster
from weir.protocol.client.consumers import Pull as Pull
from weir.protocol.client.consumers import Runs as Runs
from weir.protocol.client.consumers import SeekCursor as SeekCursor
from weir.protocol.client.consumers import TakeTurn as TakeTurn
from weir.protocol.client.consumers import Turn as Turn
from weir.protocol.client.consumers import Withdraw as Withdraw
from weir.protocol.client.consumers import Withdrawn as Withdrawn
from weir.protocol.client.control import Control
from weir.protocol.client.scattering import Decide as Decide
from weir.protocol.client.scattering import PartState as PartState
from weir.protocol.client.scattering import Prepare as Prepare
from weir.protocol.client.scattering import Scatter as Scatter
from weir.protocol.client.scattering import ScatterConfirm as ScatterConfirm

PROTOCOL = 1

#: What fits the signed fields that a number may be copied into; from below it always does.
Int64 = Annotated[int, msgspec.Meta(le=(1 << 63) - 1)]


class Opcode(IntEnum):
    """What a client frame asks; a reply has its request's opcode and the RESPONSE flag."""

    HELLO = 1
    PING = 2
    DESCRIBE_TOPIC = 3
    LIST_TOPICS = 4
    CREATE_TOPIC = 5
    OPEN_PRODUCER = 6
    POSITIONS = 7
    FOLLOW = 8
    REACH_REGISTRY = 9
    ASK_BARRIERS = 10
    LIST_OFFSETS = 11
    ALTER_TOPIC = 12
    DELETE_TOPIC = 13
    DESCRIBE_PARTITION = 14
    END_PARTITION = 15
    PRODUCE = 16
    FETCH = 17
    PULL = 18
    ACK = 19
    NACK = 20
    EXTEND = 21
    WITHDRAW = 22
    OPEN_CLUSTER = 23
    LIST_CLUSTERS = 24
    SEEK_CLUSTER = 25
    PAUSE_CLUSTER = 26
    DELETE_CLUSTER = 27
    TAKE_TURN = 28
    MOVE_CURSOR = 29
    SEEK_CURSOR = 30
    ASK_LEADER = 31
    FETCH_CHUNKS = 32
    SCATTER = 33
    PREPARE = 34
    DECIDE = 35
    LIST_HUBS = 36
    FORGET_HUB = 37
    LIST_NODES = 44
    DESCRIBE_SHARD = 45
    CHANGE_NODE = 46
    RAISE_LEVEL = 47
    TRANSFER_LEADER = 51
    REPORT_NODE = 52
    REPORT_SETTLED = 53
    REPORT_LOST = 54
    REPORT_JOINED = 55
    REPORT_ENDED = 56
    REPORT_DONE = 57


class Hello(Control, frozen=True, array_like=True):
    """First frame of a connection. `system` 0 means "whichever answers"."""

    client: str
    system: int = 0
    protocol: int = PROTOCOL


class Welcome(Control, frozen=True, array_like=True):
    """Who answered: system, BrokerSet, node and shard ids, and the limits to keep to.

    `ports` are the shards' own ports, by number, on the host that answers: what is asked of a
    partition need not be passed on if it is sent to the port of its shard. Empty with one shard.
    `nodes` are all nodes of the BrokerSet as (node, host, port); empty if there is but one.
    A node that was founded in a set and has not `met` it knows no topics: others of the set do.
    """

    system: int
    brokerset: int
    node: int
    shard: int
    batch_bytes_max: int
    window: int
    protocol: int = PROTOCOL
    ports: tuple[int, ...] = ()
    nodes: tuple[tuple[int, str, int], ...] = ()
    met: bool = True


class Ping(Control, frozen=True, array_like=True):
    """Answered by `Pong`, whatever else is under way.

    `begun` has what a consumer works on, as in `Pull`: (address, cluster, runs) of partitions.
    """

    begun: Annotated[
        tuple[tuple[Address, str, Runs], ...], msgspec.Meta(max_length=PINGED_PARTITIONS_MAX)
    ] = ()


class Pong(Control, frozen=True, array_like=True):
    """The answer to `Ping`, with the clock of who gives it, in milliseconds since 1970."""

    wall_ms: Natural = 0


class DescribeTopic(Control, frozen=True, array_like=True):
    """Ask for one topic by `topic` or `namespace/topic`."""

    name: str


class ListTopics(Control, frozen=True, array_like=True):
    """Ask for the topics of a namespace, or of all (""), by name; `after` this full name."""

    namespace: str = ""
    after: str = ""


class CreateTopic(Control, frozen=True, array_like=True):
    """Create a topic; one that exists with the same settings is fine if `if_absent`.

    `settings` that are not given are at their defaults in a new topic, and anything in an old one.
    A new one gets so many `replicas` (0: three, as far as there are nodes).
    """

    name: str
    partitions: Natural = 1
    order: str = "partition"
    if_absent: bool = True
    settings: SettingsChange = SettingsChange()
    replicas: Natural = 0


class TopicInfo(Control, frozen=True, array_like=True):
    """A topic and where each of its partitions is served, in partition order. Nothing is published
    any more to those of `ends`: (partition, stamp), 0 while it is about to end, then what all of it
    is stamped below.
    """

    id: int
    namespace: str
    name: str
    order: str
    addresses: list[Address]
    settings: TopicSettings = TopicSettings()
    ends: tuple[tuple[Natural, Natural], ...] = ()

    @property
    def full_name(self) -> str:
        """The name that all calls take: `namespace/topic`, or `topic` in the default one."""
        is_default = self.namespace == DEFAULT_NAMESPACE
        return self.name if is_default else f"{self.namespace}/{self.name}"

    @property
    def closed(self) -> frozenset[int]:
        """The partitions to which nothing is published any more."""
        return frozenset(partition for partition, _ in self.ends)


class TopicList(Control, frozen=True, array_like=True):
    """Topics asked for, by name; if there are `more`, ask again after the last."""

    topics: list[TopicInfo]
    more: bool = False


class ListOffsets(Control, frozen=True, array_like=True):
    """Ask for topics as `ListTopics` does, and for the offsets of all their partitions.

    The answer comes once all of them are known, or after `wait_ms` with those that are. Any shard
    of any node gathers them. Shards ask each other with `groups`: for these partitions alone.
    """

    namespace: str = ""
    after: str = ""
    wait_ms: Natural = 0
    groups: list[Natural] = msgspec.field(default_factory=list)


class OffsetList(Control, frozen=True, array_like=True):
    """Topics by name, and (group, first offset, offset behind the last committed message) of each
    partition whose leader answered; if there are `more` topics, ask again after the last.
    """

    topics: list[TopicInfo]
    offsets: list[tuple[Natural, Natural, Natural]]
    more: bool = False


class OpenProducer(Control, frozen=True, array_like=True):
    """Get a new producer id (0), or the next epoch of one that is held, fencing the last."""

    producer: Natural = 0


class Follow(Control, frozen=True, array_like=True):
    """Only shards of one node ask this of each other: give me the registry, then all that happens
    in it. Later ones say that all up to `index` is applied.
    """

    index: Natural


class ReachRegistry(Control, frozen=True, array_like=True):
    """Only shards ask this of each other: how far is the registry at least, as of now?"""


class RegistryReached(Control, frozen=True, array_like=True):
    """All that anybody was told of the registry before the question lies at or below `index`.

    To a shard of its own node a shard says so once it has sent it all of that.
    """

    index: Natural


class ProducerGrant(Control, frozen=True, array_like=True):
    """A producer id, which is the stamp of its grant, and its epoch."""

    producer: Natural
    epoch: Unsigned32


class Positions(Control, frozen=True, array_like=True):
    """Ask where a partition begins and ends, and where what is stamped from `stamp` on begins.

    Unless `stamp` lies over a second ahead of the leader's clock, the answer comes once all that
    is stamped below it is committed, and nothing will be stamped below it any more.
    """

    address: Address
    stamp: Natural = 0


class PositionsReply(Control, frozen=True, array_like=True):
    """First offset, the offset behind the last one that readers get, which stop before what is
    undecided, and the first one stamped from the asked `stamp` on; `end` if there is none yet.
    """

    start: Natural
    end: Natural
    at: Natural


class Level(IntEnum):
    """When a batch is confirmed (DESIGN §5 Produce)."""

    #: Once a majority has it on disk: nothing but the loss of a majority's disks takes it away.
    REPLICATED = 0
    #: Once the leader has it on disk: it may be lost with this one machine.
    RECEIVED = 1
    #: Once it is, and nothing can come before it in the one order of all partitions of its topic
    #: any more. Of a chunk, which has no place there, it means REPLICATED.
    VISIBLE = 2


class Produce(msgspec.Struct, frozen=True):
    """One batch for one partition. `seen`: the highest stamp the client has seen (Causal).

    `level` is a `Level`.
    """

    address: Address
    seen: int
    batch: memoryview
    level: int = Level.REPLICATED


class Confirm(Control, frozen=True, array_like=True):
    """A batch is durable on a majority: offset of its first message, and its stamp.

    A chunk has offset -1 and the Raft `index` of its entry, for references; else that is 0. At
    level RECEIVED the offset is -1 too, for it may still become another's.
    """

    offset: Int64
    stamp: Int64
    duplicate: bool = False
    index: Natural = 0


class Fetch(Control, frozen=True, array_like=True):
    """Read from `offset` on; wait up to `wait_ms` for the first message there.

    With `replica`, any replica answers, with what it has applied; it may lag behind.
    """

    address: Address
    offset: Natural
    max_bytes: Natural
    wait_ms: Natural = 0
    replica: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches that cover [offset, next_offset), or none. The first may begin before `offset`.

    `committed` is the offset behind the last committed message, for lag. All that is ever stamped
    at or below `barrier` lies below `committed`; 0 says nothing. So many `partitions` belong to the
    topic's order as of that barrier: partition 0 tells it, and 0 is said by all others. No batch
    covers `voids`, runs [first, next): messages of scatterings that were aborted never were.
    """

    address: Address
    offset: int
    next_offset: int
    committed: int
    batches: tuple[Buffer, ...] = ()
    barrier: int = 0
    partitions: int = 0
    voids: tuple[tuple[int, int], ...] = ()


class FetchChunks(Control, frozen=True, array_like=True):
    """Read up to `count` chunks of large values: the entries from Raft `index` on, one chunk each.

    References name them (`weir.model.chunks`); what is not committed is not there.
    """

    address: Address
    index: Natural
    count: Natural
    max_bytes: Natural


@dataclass(frozen=True, slots=True)
class FetchedChunks:
    """Whole chunks of the entries from `index` on: at least one, and as many as fit."""

    address: Address
    index: int
    batches: tuple[Buffer, ...] = ()


class Refusal(Control, frozen=True, array_like=True):
    """A numbered refusal: see `weir.errors` for codes and what `detail` holds."""

    code: Unsigned16
    message: str
    detail: int = 0


ControlRequest = (
    Hello
    | Ping
    | DescribeTopic
    | ListTopics
    | ListOffsets
    | CreateTopic
    | OpenProducer
    | Follow
    | ReachRegistry
    | Positions
    | AskBarriers
    | ReportJoined
    | ReportEnded
    | ReportDone
    | Fetch
    | Pull
    | Ack
    | Nack
    | Extend
    | Withdraw
    | OpenCluster
    | TakeTurn
    | MoveCursor
    | SeekCursor
    | FetchChunks
    | Scatter
    | Prepare
    | Decide
    | a.Request
    | n.Request
)
Request = ControlRequest | Produce
ControlReply = (
    Welcome
    | Pong
    | TopicInfo
    | TopicList
    | OffsetList
    | ProducerGrant
    | RegistryReached
    | PositionsReply
    | Barriers
    | Confirm
    | Acked
    | Nacked
    | Extended
    | Withdrawn
    | ClusterIsOpen
    | Turn
    | Moved
    | ScatterConfirm
    | PartState
    | Refusal
    | a.Reply
    | n.Reply
)
Reply = ControlReply | Fetched | FetchedChunks | Granted
