"""Requests about the one order of many partitions (DESIGN §5 Aggregation, Scattering;
docs/adr/0024).

Readers in total order ask for barriers: how far the order is complete, and wait for the next mark
of that; a query that reads portion
after portion asks where the next one ends, as a cut. A client that publishes to
several partitions at one stamp asks the shard that coordinates, and that asks the leaders of the
parts.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from weir.codec import Unsigned32
from weir.errors import (
    BadName,
    Fenced,
    NotTogether,
    PartitionEnded,
    SequenceGap,
    SequenceReused,
    StaleGrant,
    TooLarge,
    UnknownProducer,
    UnknownTopic,
)
from weir.model.ids import Address, Natural
from weir.model.limits import (
    ACK_RANGES_MAX,
    CUT_PARTITIONS_MAX,
    CUT_TOPICS_MAX,
    NAME_CHARACTERS_MAX,
    PUBLICATION_PARTS_MAX,
    SCATTER_PARTS_MAX,
)
from weir.protocol.client.admin import TopicInfo
from weir.protocol.client.declaration import (
    Asker,
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

#: Of partitions' logs, by rising number: (group, lineage, the offset at which it began).
Lineages = list[tuple[Natural, Natural, Natural]]
Ranges = Annotated[list[tuple[Natural, Natural, Natural]], msgspec.Meta(max_length=ACK_RANGES_MAX)]
#: By cluster the ranges (fence, first, next) of its grants that are done.
Acks = Annotated[list[tuple[str, Ranges]], msgspec.Meta(max_length=SCATTER_PARTS_MAX)]
Parts = Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1, max_length=PUBLICATION_PARTS_MAX)]
#: The name of a query, and the number of its batch that is published; no name stands for none.
SinkBatch = tuple[Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)], Natural]
NO_SINK: SinkBatch = ("", 0)
Names = Annotated[list[str], msgspec.Meta(min_length=1, max_length=CUT_TOPICS_MAX)]
Offsets = Annotated[list[tuple[Natural, Natural]], msgspec.Meta(max_length=CUT_PARTITIONS_MAX)]
Asked = Annotated[
    list[tuple[Natural, Natural, Natural]],
    msgspec.Meta(min_length=1, max_length=CUT_PARTITIONS_MAX),
]


class Barriers(ControlReply, frozen=True, array_like=True):
    """The barriers of partitions, as (partition, stamp, through) each: all messages that are ever
    stamped at or below `stamp` lie below offset `through`, and are committed. A stamp of 0 says
    that nothing is known of the partition.

    The order is complete through the least stamp of all partitions. With `reached`, all of them
    are at the stamp that was asked for; else the time was up. `roster` are the partitions that
    joined since the topic was made, as (partition, floor): they are stamped above the floor.
    `ends` are those that have ended, as (partition, stamp, offset): none of their messages is
    stamped above that stamp, or lies at that offset or behind it.
    """

    topic: Natural
    registers: list[tuple[Natural, Natural, Natural]]
    roster: tuple[tuple[Natural, Natural], ...] = ()
    reached: bool = False
    ends: tuple[tuple[Natural, Natural, Natural], ...] = ()


class AskBarriers(ControlRequest, frozen=True, array_like=True):
    """Ask for the barriers of all partitions of a topic, by its id.

    The answer comes once all of them are at `stamp` or above, or after `wait_ms` with what is known
    by then. Leaders make the promises that this needs. With `anew`, or stamp 0, all leaders are
    asked after this request arrived: then everything that was confirmed before is stamped at or
    below their barriers. Any shard of any node answers it; another shard gets an answer for what
    this shard leads.
    """

    declaration = Declaration(
        10,
        Scope.HERE,
        Barriers,
        Retry.READ,
        rights=(Right("read", Resource.TOPIC), Right("consume", Resource.TOPIC)),
        refusals=(UnknownTopic,),
        methods=("Client.reader",),
    )

    topic: Natural
    stamp: Natural = 0
    wait_ms: Natural = 0
    anew: bool = False


class OrderMark(ControlReply, frozen=True, array_like=True):
    """How far the one order of a topic's partitions is complete: all messages of its first
    `partitions` partitions that are ever stamped at or below `stamp` are committed. Those that are
    stamped above `above` of the request lie below the offsets in `throughs`, as (partition, offset)
    each; a partition that is not in it has none of them.

    With `reached`, it answers what was waited for; else the time was up, and `stamp` may be as low
    as 0. A mark is a fact that does not change, no matter which shard told it. The partitions are
    the set that it is of: if there are more than before, ask for the order's roster with
    `AskBarriers` and begin again above 0. `ended` says how many of them have ended, which that
    tells, too.
    """

    topic: Natural
    stamp: Natural
    partitions: Natural
    throughs: list[tuple[Natural, Natural]]
    ended: Natural = 0
    reached: bool = False


class AwaitMark(ControlRequest, frozen=True, array_like=True):
    """Wait for the next mark of a topic's order, by its id: keep one of these under way, and marks
    come as soon as what is published can be handed out. Each request is credit for one mark.

    The answer comes once all partitions are at `stamp` or above. With stamp 0 it comes once they
    are at the stamp of the next batch that the shard accepts as the leader of a partition, or at a
    stamp that another reader waits for, but above `above`. After `wait_ms` it comes with what is
    known by then. `above` is the stamp of the last mark that was used, of as many partitions; 0
    begins. Ask the leader of the partition that was published to last. A broker of an earlier
    release refuses it with `UnknownOpcode`: use `AskBarriers` there.
    """

    declaration = Declaration(
        95,
        Scope.HERE,
        OrderMark,
        Retry.READ,
        rights=(Right("read", Resource.TOPIC), Right("consume", Resource.TOPIC)),
        refusals=(UnknownTopic,),
        methods=("Client.reader",),
    )

    topic: Natural
    above: Natural = 0
    stamp: Natural = 0
    wait_ms: Natural = 0


class SetMark(ControlReply, frozen=True, array_like=True):
    """How far a set of partitions is complete: all of their messages that are ever stamped at or
    below `stamp` are committed, and lie below the offsets in `throughs`.

    `throughs` has (partition, offset, highest) of each partition of the set of which something
    changed since the last mark of it; nothing below the offset is stamped above `highest`.
    `partitions` is the set, with its first mark: a set never changes, and `number` says which one a
    mark is of. Stamps of one set only rise. `roster` and `ends` are those of `Barriers`, whole,
    where they changed since the last mark; they hold before the mark does.
    """

    topic: Natural
    number: Natural
    stamp: Natural
    throughs: list[tuple[Natural, Natural, Natural]]
    partitions: tuple[Natural, ...] = ()
    roster: tuple[tuple[Natural, Natural], ...] = ()
    ends: tuple[tuple[Natural, Natural, Natural], ...] = ()


class SubscribeMarks(ControlRequest, frozen=True, array_like=True):
    """Only shards ask this of each other: send marks of a topic's partitions, by its id: of those
    that this shard leads, or for a shard of its own node, of all in its logs.

    The first request of a topic opens a stream, whose marks all answer its correlation; one with
    another correlation replaces it. A `stamp` above 0 is a demand: the leaders promise to get
    there, and a mark comes as soon as the whole set has. A demand ends after a second unless it is
    repeated. While there is one, a mark comes with each tick; else one comes each second. With
    `is_over`, no more marks come.
    """

    declaration = Declaration(
        98,
        Scope.HERE,
        SetMark,
        Retry.SAME,
        asker=Asker.SHARD,
        refusals=(UnknownTopic,),
    )

    topic: Natural
    stamp: Natural = 0
    is_over: bool = False


class TopicPositions(Control, frozen=True, array_like=True):
    """How far a topic, by its id, was read: (partition, offset that comes next) each."""

    topic: Natural
    offsets: Offsets


class TopicCut(Control, frozen=True, array_like=True):
    """A topic, and of each of its partitions, in partition order, the first offset that is still
    there, the offset behind what lies before the cut, and the one behind the last committed
    message, for lag. Of those that were not asked for, all are 0.
    """

    info: TopicInfo
    starts: list[Natural]
    ends: list[Natural]
    committed: list[Natural]


class ResolvedCut(ControlReply, frozen=True, array_like=True):
    """A cut through topics, in the order in which they were asked for; no topics if nothing came
    in time.

    What lies before it is all of these topics that is ever stamped at or below `stamp`, and
    nothing else; all of it is committed. A stamp of 0 says that each partition ends by itself.

    `lineages` are those of the partitions' logs, by rising number, as (group, lineage, the offset
    at which it began); lineage 0 begins at 0. What lies before the cut is of the history that ends
    with the last one. Of a group that is not named, nothing is said.
    """

    stamp: Natural
    topics: list[TopicCut]
    lineages: Lineages = msgspec.field(default_factory=list)


class ResolveCut(ControlRequest, frozen=True, array_like=True):
    """Ask for a cut through topics, by their names: how far all of their partitions are complete,
    and the offsets that this means.

    The cut lies at the least barrier of all partitions of all topics, and at or below `stamp_max`
    unless that is 0. What is `after` was read before, up to `stamp` where that was a cut; of a
    topic or partition that is not there, nothing was. Is there more behind that than `rows_max`
    messages or about `bytes_max` bytes, an earlier cut is taken; but always one with something
    before it, even if that is more (0: no limit). With `partitions`, only those are counted and
    waited for.

    If nothing is committed behind `after`, the answer waits for it for `wait_ms` at most; one
    without topics says that all who lead the partitions knew of nothing then. With `latest`, all
    that was confirmed to anybody before lies before the cut. With `by_partition`, the offsets are
    the committed ends of the partitions, and no limit holds. Any shard of any node answers; it asks
    the others.
    """

    declaration = Declaration(
        42,
        Scope.HERE,
        ResolvedCut,
        Retry.READ,
        rights=(Right("read", Resource.TOPICS), Right("consume", Resource.TOPICS)),
        refusals=(UnknownTopic, BadName),
        methods=("Client.resolve_cut",),
    )

    topics: Names
    after: Annotated[list[TopicPositions], msgspec.Meta(max_length=CUT_TOPICS_MAX)] = msgspec.field(
        default_factory=list
    )
    stamp: Natural = 0
    rows_max: Natural = 0
    bytes_max: Natural = 0
    wait_ms: Natural = 0
    stamp_max: Natural = 0
    partitions: Annotated[list[Natural], msgspec.Meta(max_length=CUT_PARTITIONS_MAX)] = (
        msgspec.field(default_factory=list)
    )
    latest: bool = False
    by_partition: bool = False


class LocatedOffsets(ControlReply, frozen=True, array_like=True):
    """What is known of partitions, as (group, first offset, offset asked for, offset behind the
    last committed message, about how many bytes lie between what was read before and the offset
    asked for, the stamp of what comes next or later); and their `lineages`, as in `ResolvedCut`.
    """

    found: list[tuple[Natural, Natural, Natural, Natural, Natural, Natural]]
    lineages: Lineages = msgspec.field(default_factory=list)


class LocateOffsets(ControlRequest, frozen=True, array_like=True):
    """Only shards ask this of each other: for each of these partitions, as (group, offset that was
    read up to, offset below which all up to the stamp lies), the offset behind all that is stamped
    at or below `stamp`; with 0, behind all that is committed.

    The answer comes once all are found that this shard leads, or after `wait_ms` with those that
    are. With `news`, it comes once one of them is behind what was read, or after `wait_ms` with
    where those end that this shard leads.
    """

    declaration = Declaration(
        48,
        Scope.HERE,
        LocatedOffsets,
        Retry.READ,
        asker=Asker.SHARD,
    )

    asked: Asked
    stamp: Natural = 0
    wait_ms: Natural = 0
    news: bool = False


class ReportJoined(ControlRequest, frozen=True, array_like=True):
    """Only a shard sends this, to who leads the registry: a partition that is new in a topic has
    joined its order above stamp `floor`, by an entry of partition 0.
    """

    declaration = Declaration(
        55,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    topic: Natural
    partition: Natural
    floor: Natural


class ReportEnded(ControlRequest, frozen=True, array_like=True):
    """Only a shard sends this, to who leads the registry: a partition that is to end is sealed at
    `stamp`, and all of it lies below `offset`; partition 0 has that in an entry if it is `done`.
    """

    declaration = Declaration(
        56,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    topic: Natural
    partition: Natural
    stamp: Natural
    offset: Natural
    done: bool = False


class ReportDone(ControlRequest, frozen=True, array_like=True):
    """Only a shard sends this, from who leads partition 0 of a topic to who leads another one: the
    offset of that partition below which each cluster is done that reads in total order.
    """

    declaration = Declaration(
        57,
        Scope.PARTITION,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    address: Address
    done: tuple[tuple[str, Natural], ...]


class Part(Control, frozen=True, array_like=True):
    """A batch for a partition, or acks of messages of it."""

    address: Address
    batch: bytes = b""
    acks: Acks = msgspec.field(default_factory=list)


class ScatterConfirm(ControlReply, frozen=True, array_like=True):
    """All of it is durable and will be seen: its stamp, and the first offset of each batch, as
    (group, offset).
    """

    stamp: Natural
    offsets: list[tuple[Natural, Natural]]
    duplicate: bool = False


class Scatter(ControlRequest, frozen=True, array_like=True):
    """Publish all of these batches and ack all of these messages at one stamp, or none of them.

    `number` counts the scatterings of a producer. A repeat with the same bytes, to any node,
    returns its outcome. `seen` is what it is for `Produce`.
    """

    declaration = Declaration(
        33,
        Scope.HERE,
        ScatterConfirm,
        Retry.NUMBERED,
        rights=(Right("publish", Resource.PARTS), Right("consume", Resource.PARTS)),
        is_large=True,
        refusals=(
            UnknownTopic,
            TooLarge,
            NotTogether,
            Fenced,
            UnknownProducer,
            SequenceGap,
            SequenceReused,
            StaleGrant,
            PartitionEnded,
        ),
        methods=("Client.scatter",),
    )

    producer: Natural
    epoch: Unsigned32
    number: Natural
    seen: Natural
    parts: Annotated[list[Part], msgspec.Meta(min_length=1, max_length=SCATTER_PARTS_MAX)]


class PartState(ControlReply, frozen=True, array_like=True):
    """How it is with a part; `offset` is that of its batch where it is known."""

    standing: Standing
    stamp: Natural
    offset: Natural = 0


class Prepare(ControlRequest, frozen=True, array_like=True):
    """Only shards ask this of each other: prepare a part, to be stamped exactly `stamp`: a batch;
    or acks; or that a batch of a query is published, to be remembered: `sink`.
    """

    declaration = Declaration(
        34,
        Scope.PARTITION,
        PartState,
        Retry.SAME,
        asker=Asker.SHARD,
        is_large=True,
    )

    address: Address
    producer: Natural
    epoch: Unsigned32
    number: Natural
    stamp: Natural
    parts: Parts
    batch: bytes = b""
    acks: Acks = msgspec.field(default_factory=list)
    sink: SinkBatch = NO_SINK


class Step(IntEnum):
    """What is to be done with a part."""

    #: Say what became of it; what is not prepared is not prepared any more.
    ASK = 0
    ABORT = 1
    COMMIT = 2
    #: Every part has decided to commit: forget it.
    CLOSE = 3


class Decide(ControlRequest, frozen=True, array_like=True):
    """Only shards ask this of each other: do `step` with a part of the attempt at `stamp`."""

    declaration = Declaration(
        35,
        Scope.PARTITION,
        PartState,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    address: Address
    producer: Natural
    epoch: Unsigned32
    number: Natural
    stamp: Natural
    is_acks: bool
    step: Step


class Standing(IntEnum):
    """How it is with a part."""

    #: It is prepared, and nothing is decided.
    PREPARED = 0
    #: It counts, by the attempt at the stamp that is told.
    COMMITTED = 1
    #: It is not prepared, and never will be.
    NEVER = 2
    #: Its stamp was too low: above the one that is told it may be prepared.
    TOO_LOW = 3
    #: An attempt at the stamp that is told, of the same producer, is undecided.
    OTHER = 4


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (
    AskBarriers,
    AwaitMark,
    SubscribeMarks,
    ResolveCut,
    LocateOffsets,
    ReportJoined,
    ReportEnded,
    ReportDone,
    Scatter,
    Prepare,
    Decide,
)
