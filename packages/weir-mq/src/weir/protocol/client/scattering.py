"""Scatterings: what a client asks of the shard that coordinates, and that of the leaders of the
parts (DESIGN §5 Scattering, docs/adr/0024).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from weir.codec.fields import Unsigned32
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
REQUESTS: tuple[type[Request], ...] = (Scatter, Prepare, Decide)
