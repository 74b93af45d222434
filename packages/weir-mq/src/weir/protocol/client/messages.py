"""Requests and replies of the client dialect, one class each, at batch or control rate.

Control bodies are MessagePack arrays: a field may be added at the end with a default, never moved.
Data bodies (`Produce`, `Fetched`, `Granted`) are a fixed prefix and batches as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Annotated, Any

import msgspec

from weir.codec import Buffer, Unsigned16, Unsigned32
from weir.errors import (
    BadChecksum,
    DamagedRange,
    Fenced,
    OffsetOutOfRange,
    PartitionEnded,
    ProducerExpired,
    QuotaExceeded,
    SequenceGap,
    SequenceReused,
    StampTooFar,
    TooLarge,
    UnknownProducer,
    ValueLost,
    WrongSystem,
)
from weir.model.ids import LINEAGE_MAX, Address, Natural
from weir.model.limits import PINGED_PARTITIONS_MAX, PIPELINE_WINDOW
from weir.protocol.client import (
    access,
    consumers,
    fleets,
    order,
    quotas,
    relays,
    schemas,
    sinks,
    tokens,
    topology,
)
from weir.protocol.client import admin as a
from weir.protocol.client import nodes as n
from weir.protocol.client.admin import CreateTopic as CreateTopic
from weir.protocol.client.admin import DescribeTopic as DescribeTopic
from weir.protocol.client.admin import ListOffsets as ListOffsets
from weir.protocol.client.admin import ListTopics as ListTopics
from weir.protocol.client.admin import OffsetList as OffsetList
from weir.protocol.client.admin import RestoreTopic as RestoreTopic
from weir.protocol.client.admin import TopicInfo as TopicInfo
from weir.protocol.client.admin import TopicList as TopicList
from weir.protocol.client.consumers import Ack as Ack
from weir.protocol.client.consumers import Acked as Acked
from weir.protocol.client.consumers import ClusterIsOpen as ClusterIsOpen
from weir.protocol.client.consumers import Extend as Extend
from weir.protocol.client.consumers import Extended as Extended
from weir.protocol.client.consumers import Granted as Granted
from weir.protocol.client.consumers import GrantsMoved as GrantsMoved
from weir.protocol.client.consumers import MoveCursor as MoveCursor
from weir.protocol.client.consumers import Moved as Moved
from weir.protocol.client.consumers import MoveGrants as MoveGrants
from weir.protocol.client.consumers import Nack as Nack
from weir.protocol.client.consumers import Nacked as Nacked
from weir.protocol.client.consumers import OpenCluster as OpenCluster
from weir.protocol.client.consumers import Pull as Pull
from weir.protocol.client.consumers import Runs as Runs
from weir.protocol.client.consumers import SeekCursor as SeekCursor
from weir.protocol.client.consumers import TakeTurn as TakeTurn
from weir.protocol.client.consumers import Turn as Turn
from weir.protocol.client.consumers import WantedTags as WantedTags
from weir.protocol.client.consumers import Withdraw as Withdraw
from weir.protocol.client.consumers import Withdrawn as Withdrawn
from weir.protocol.client.declaration import (
    Asker,
    ControlRequest,
    Declaration,
    Resource,
    Retry,
    Right,
    Scope,
)
from weir.protocol.client.declaration import Control as Control
from weir.protocol.client.declaration import ControlReply as ControlReply
from weir.protocol.client.declaration import Request as Request
from weir.protocol.client.declaration import opcode_of as opcode_of
from weir.protocol.client.order import AskBarriers as AskBarriers
from weir.protocol.client.order import AwaitMark as AwaitMark
from weir.protocol.client.order import Barriers as Barriers
from weir.protocol.client.order import Decide as Decide
from weir.protocol.client.order import LocatedOffsets as LocatedOffsets
from weir.protocol.client.order import LocateOffsets as LocateOffsets
from weir.protocol.client.order import OrderMark as OrderMark
from weir.protocol.client.order import PartState as PartState
from weir.protocol.client.order import Prepare as Prepare
from weir.protocol.client.order import ReportDone as ReportDone
from weir.protocol.client.order import ReportEnded as ReportEnded
from weir.protocol.client.order import ReportJoined as ReportJoined
from weir.protocol.client.order import ResolveCut as ResolveCut
from weir.protocol.client.order import ResolvedCut as ResolvedCut
from weir.protocol.client.order import Scatter as Scatter
from weir.protocol.client.order import ScatterConfirm as ScatterConfirm
from weir.protocol.client.order import SetMark as SetMark
from weir.protocol.client.order import SubscribeMarks as SubscribeMarks
from weir.protocol.client.order import TopicCut as TopicCut
from weir.protocol.client.order import TopicPositions as TopicPositions
from weir.protocol.client.relays import AskRelay as AskRelay
from weir.protocol.client.relays import DescribeRelay as DescribeRelay
from weir.protocol.client.relays import RelayInfo as RelayInfo
from weir.protocol.client.relays import RelayTold as RelayTold

PROTOCOL = 1

#: What fits the signed fields that a number may be copied into; from below it always does.
Int64 = Annotated[int, msgspec.Meta(le=(1 << 63) - 1)]


class Welcome(ControlReply, frozen=True, array_like=True):
    """Who answered: system, BrokerSet, node and shard ids, and the limits to keep to.

    `ports` are the shards' own ports, by number, on the host that answers: a request that is sent
    to the port of its partition's shard is not forwarded. Empty with one shard.
    `nodes` are all nodes of the BrokerSet as (node, host, port); empty if there is only one.
    A node that has not `met` its set yet knows no topics: ask another node of the set.
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


class Hello(ControlRequest, frozen=True, array_like=True):
    """First frame of a connection. `system` 0 means any system. A client that takes `notices` is
    told by frames with correlation 0 what concerns the whole connection: see `quotas.Throttled`.
    """

    declaration = Declaration(
        1,
        Scope.HERE,
        Welcome,
        Retry.SAME,
        asker=Asker.STRANGER,
        free="it asks who answers",
        refusals=(WrongSystem,),
        methods=("connect",),
    )

    client: str
    system: int = 0
    protocol: int = PROTOCOL
    notices: bool = False


class Pong(ControlReply, frozen=True, array_like=True):
    """The answer to `Ping`, with the clock of who gives it, in milliseconds since 1970."""

    wall_ms: Natural = 0


class Ping(ControlRequest, frozen=True, array_like=True):
    """Answered by `Pong`, whatever else is under way.

    `begun` has what a consumer works on, as in `Pull`: (address, cluster, runs) of partitions.
    """

    declaration = Declaration(
        2,
        Scope.HERE,
        Pong,
        Retry.READ,
        free="it tells nothing of what others do",
        methods=("Client.ping",),
    )

    begun: Annotated[
        tuple[tuple[Address, str, Runs], ...], msgspec.Meta(max_length=PINGED_PARTITIONS_MAX)
    ] = ()


class ProducerGrant(ControlReply, frozen=True, array_like=True):
    """A producer id and its epoch. The id is the stamp of its grant; in bits 60 to 62 it says its
    window: 0 for none, then 64 is to be kept to, n for 2^(n-1) batches.
    """

    producer: Natural
    epoch: Unsigned32


class OpenProducer(ControlRequest, frozen=True, array_like=True):
    """Get a new producer id (0), or the next epoch of an id, which fences the last epoch.

    A new id has at least the `window` that is asked for, so many batches of a partition under way
    and remembered; one more is refused. 0, and what a set below format level 3 grants, is 64.
    """

    declaration = Declaration(
        6,
        Scope.REGISTRY,
        ProducerGrant,
        Retry.ANEW,
        rights=(Right("publish", Resource.ANY_TOPIC),),
        refusals=(UnknownProducer, ProducerExpired, QuotaExceeded),
        methods=("Client.producer",),
    )

    producer: Natural = 0
    window: Annotated[int, msgspec.Meta(ge=0, le=PIPELINE_WINDOW)] = 0


class Follow(ControlRequest, frozen=True, array_like=True):
    """Only shards of one node ask this of each other: give me the registry, then all that happens
    in it. Later ones say that all up to `index` is applied.
    """

    declaration = Declaration(
        8,
        Scope.HERE,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    index: Natural


class RegistryReached(ControlReply, frozen=True, array_like=True):
    """All that anybody was told of the registry before the question lies at or below `index`.

    To a shard of its own node a shard says so once it has sent it all of that.
    """

    index: Natural


class ReachRegistry(ControlRequest, frozen=True, array_like=True):
    """Only shards ask this of each other: how far is the registry at least, as of now?"""

    declaration = Declaration(
        9,
        Scope.HERE,
        RegistryReached,
        Retry.READ,
        asker=Asker.SHARD,
    )


class PositionsReply(ControlReply, frozen=True, array_like=True):
    """The first offset; the `end`, which is behind the last message that readers get: they stop at
    the first undecided scattering; and `at`, the first offset stamped at the asked `stamp` or
    later, which is `end` if there is none yet.
    """

    start: Natural
    end: Natural
    at: Natural


class Positions(ControlRequest, frozen=True, array_like=True):
    """Ask for the first and last offset of a partition, and for the first one stamped `stamp` or
    later.

    Unless `stamp` is over a second ahead of the leader's clock, the answer comes once everything
    stamped below it is committed and nothing more will be stamped below it.
    """

    declaration = Declaration(
        7,
        Scope.PARTITION,
        PositionsReply,
        Retry.READ,
        rights=(Right("read", Resource.TOPIC), Right("consume", Resource.TOPIC)),
        methods=("Client.positions",),
    )

    address: Address
    stamp: Natural = 0


class Level(IntEnum):
    """When a batch is confirmed (DESIGN §5 Produce)."""

    #: Once a majority has it on disk: nothing but the loss of a majority's disks takes it away.
    REPLICATED = 0
    #: Once the leader has it on disk: it may be lost with this one machine.
    RECEIVED = 1
    #: Once it is, and nothing can come before it in the one order of all partitions of its topic
    #: any more. Of a chunk, which has no place there, it means REPLICATED.
    VISIBLE = 2


class Confirm(ControlReply, frozen=True, array_like=True):
    """A batch is durable on a majority: offset of its first message, and its stamp.

    A chunk has offset -1 and the Raft `index` of its entry, for references; else that is 0. At
    level RECEIVED the offset is -1 too, because another message may still get it.
    """

    offset: Int64
    stamp: Int64
    duplicate: bool = False
    index: Natural = 0


class Produce(Request, frozen=True):
    """One batch for one partition. `seen`: the highest stamp the client has seen (Causal).

    `level` is a `Level`.
    """

    declaration = Declaration(
        16,
        Scope.PARTITION,
        Confirm,
        Retry.NUMBERED,
        rights=(Right("publish", Resource.TOPIC),),
        is_large=True,
        refusals=(
            TooLarge,
            BadChecksum,
            SequenceGap,
            SequenceReused,
            Fenced,
            ProducerExpired,
            UnknownProducer,
            StampTooFar,
            PartitionEnded,
        ),
        body=(
            ("address", "address"),
            ("seen", "i64"),
            ("level", "u8"),
            ("", "pad7"),
            ("batch", "batches"),
        ),
        methods=("Client.publish", "Producer.publish", "Producer.send", "Producer.send_many"),
    )

    address: Address
    seen: int
    batch: memoryview
    level: int = Level.REPLICATED


#: Which lineage of a partition something is of; -1: nobody said that.
KnownLineage = Annotated[int, msgspec.Meta(ge=-1, le=LINEAGE_MAX)]


class Fetched(msgspec.Struct, frozen=True):
    """Whole batches that cover [offset, next_offset), or none. The first may begin before `offset`.

    `committed` is the offset behind the last committed message, for lag. All messages that are ever
    stamped at or below `barrier` lie below `committed`; 0 says nothing. `partitions` is how many
    belong to the topic's order as of that barrier: partition 0 says it, the others say 0. No batch
    covers `voids`, runs [first, next): they belonged to scatterings that were aborted. With
    `is_cut`, more messages of the partition have the stamp of the last one here: right behind it.

    If tags were asked for and `is_filtered`, whatever has none of them may be left out: batches,
    `skipped` runs and `voids` then cover [offset, next_offset) without a gap and without an
    overlap, the first batch aside, which may begin before. A batch may be a slice
    (`weir.model.slices`), which covers what its original does; and one that is whole may have other
    messages, too. An answer without batches tells how far was looked. A broker of an earlier
    release filters nothing, and does not say so.

    All below `next_offset` is of the history that ends with this `lineage` of the partition; -1
    says nothing. In the frame it is one more, so earlier releases, which write 0, say nothing.
    """

    address: Address
    offset: int
    next_offset: int
    committed: int
    batches: tuple[Buffer, ...] = ()
    barrier: int = 0
    partitions: int = 0
    voids: tuple[tuple[int, int], ...] = ()
    is_cut: bool = False
    is_filtered: bool = False
    skipped: tuple[tuple[int, int], ...] = ()
    lineage: int = -1


class Fetch(ControlRequest, frozen=True, array_like=True):
    """Read from `offset` on; wait up to `wait_ms` for the first message there.

    With `replica`, any replica answers with what it has applied; it may lag. `equal_stamps` says
    that the client expects several batches of one stamp, and looks at `is_cut`. A client of an
    earlier release does not say so: the node refuses it where such batches lie. With `tags`, only
    messages with one of these are asked for; "" stands for messages without a tag, and no `tags`
    for all messages. See `Fetched.is_filtered`.

    What lies before `offset` was read in this `lineage` of the partition; -1: that is not known.
    Where a later lineage began before `offset`, some of that is not there any more, and
    `OffsetOutOfRange` says so. Its detail is the offset at which that lineage began.
    """

    declaration = Declaration(
        17,
        Scope.REPLICA,
        Fetched,
        Retry.READ,
        rights=(Right("read", Resource.TOPIC), Right("consume", Resource.TOPIC)),
        is_large=True,
        refusals=(OffsetOutOfRange, DamagedRange),
        answer_body=(
            ("address", "address"),
            ("offset", "i64"),
            ("next_offset", "i64"),
            ("committed", "i64"),
            ("barrier", "i64"),
            ("partitions", "i64"),
            ("number of voids", "u32"),
            ("is_cut", "u8"),
            ("is_filtered", "u8"),
            ("lineage", "u16"),
            ("voids", "runs"),
            ("number of skipped, if filtered", "u64"),
            ("skipped", "runs"),
            ("batches", "batches"),
        ),
        methods=("Client.reader",),
    )

    address: Address
    offset: Natural
    max_bytes: Natural
    wait_ms: Natural = 0
    replica: bool = False
    equal_stamps: bool = False
    tags: WantedTags = ()
    lineage: KnownLineage = -1

    def beyond(self, start: int, end: int, forks: Sequence[tuple[int, int]]) -> OffsetOutOfRange:
        """Return the refusal for who has read further than a partition goes, which holds `start` to
        `end`; `forks` are its lineages in order, and the offset at which each began.

        Its detail is where the client's lineage ended, or else where the last one began: nothing
        that lies there now has been read by the client.
        """
        why, nearest = "It may have been read from another topic or system", end
        later = forks[-1:]
        if self.lineage >= 0:
            later = [fork for fork in forks if fork[0] > self.lineage]
        if later:
            lineage, nearest = min(later, key=itemgetter(1))
            why = (
                f"Lineage {lineage} began at offset {nearest}, when a core set was promoted: what "
                "was read from there on before that is not here"
            )
        said = f"offset {self.offset} is not there: this partition holds {start} to {end}. {why}"
        if self.offset <= end:
            said = f"offset {self.offset} lies behind the end of lineage {self.lineage}. {why}"
        return OffsetOutOfRange(said, max(nearest, start))


class FetchedChunks(msgspec.Struct, frozen=True):
    """Whole chunks of the entries from `index` on: at least one, and as many as fit."""

    address: Address
    index: int
    batches: tuple[Buffer, ...] = ()


class FetchChunks(ControlRequest, frozen=True, array_like=True):
    """Read up to `count` chunks of large values: the entries from Raft `index` on, one chunk each.

    References name them (`weir.model.columns`); chunks that are not committed are missing.
    """

    declaration = Declaration(
        32,
        Scope.PARTITION,
        FetchedChunks,
        Retry.READ,
        rights=(
            Right("read", Resource.TOPIC),
            Right("consume", Resource.TOPIC),
            Right("consume", Resource.ANY_CLUSTER),
        ),
        is_large=True,
        refusals=(ValueLost, DamagedRange),
        answer_body=(("address", "address"), ("index", "i64"), ("batches", "batches")),
        methods=("Client.reader", "Client.consumer"),
    )

    address: Address
    index: Natural
    count: Natural
    max_bytes: Natural


class Refusal(ControlReply, frozen=True, array_like=True):
    """A numbered refusal: see `weir.errors` for codes and what `detail` holds."""

    code: Unsigned16
    message: str
    detail: int = 0


#: All requests there are.
REQUESTS: tuple[type[Request], ...] = (
    Hello,
    Ping,
    OpenProducer,
    Follow,
    ReachRegistry,
    Positions,
    Produce,
    Fetch,
    FetchChunks,
    *a.REQUESTS,
    *order.REQUESTS,
    *consumers.REQUESTS,
    *n.REQUESTS,
    *schemas.REQUESTS,
    *sinks.REQUESTS,
    *fleets.REQUESTS,
    *quotas.REQUESTS,
    *topology.REQUESTS,
    *relays.REQUESTS,
    *access.REQUESTS,
    *tokens.REQUESTS,
)
Reply = ControlReply | Fetched | FetchedChunks | Granted | RelayTold
#: All replies there are.
REPLIES: frozenset[type[Any]] = frozenset(
    {Refusal, *(kind.declaration.answer for kind in REQUESTS if kind.declaration.answer)}
)
