"""Requests about the one order of many partitions (DESIGN §5 Aggregation, Scattering;
docs/adr/0024).

Readers in total order ask for barriers: how far the order is complete. Who publishes to several
partitions at one stamp asks the shard that coordinates, and that asks the leaders of the parts.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from weir.codec import Unsigned32
from weir.errors import (
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
from weir.model.limits import ACK_RANGES_MAX, SCATTER_PARTS_MAX
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

Ranges = Annotated[list[tuple[Natural, Natural, Natural]], msgspec.Meta(max_length=ACK_RANGES_MAX)]
#: By cluster the ranges (fence, first, next) of its grants that are done.
Acks = Annotated[list[tuple[str, Ranges]], msgspec.Meta(max_length=SCATTER_PARTS_MAX)]
Parts = Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1, max_length=SCATTER_PARTS_MAX)]


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
        rights=(Right("read", Resource.TOPIC),),
        refusals=(UnknownTopic,),
        methods=("Client.reader",),
    )

    topic: Natural
    stamp: Natural = 0
    wait_ms: Natural = 0
    anew: bool = False


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
    """Only shards ask this of each other: prepare a part, to be stamped exactly `stamp`."""

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
    ReportJoined,
    ReportEnded,
    ReportDone,
    Scatter,
    Prepare,
    Decide,
)
