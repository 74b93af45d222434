"""Requests of sinks: who writes the batches of a query's result exactly once (docs/adr/0075).

Writers stage batches, which nobody sees, as runs; then one scattering publishes the runs that were
chosen, all or none of them. What a query has published last is remembered for as long as the query
may come back.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weir.codec import Unsigned32
from weir.errors import (
    BadChecksum,
    BatchPublished,
    Fenced,
    LevelTooLow,
    NotTogether,
    PartitionEnded,
    SequenceGap,
    SequenceReused,
    StagedRunGone,
    TooLarge,
    UnknownProducer,
    UnknownSchema,
    UnknownTopic,
)
from weir.model.ids import Address, Natural
from weir.model.limits import NAME_CHARACTERS_MAX, PUBLICATION_PARTS_MAX
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
from weir.protocol.client.order import ScatterConfirm

Query = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]


class Staged(ControlReply, frozen=True, array_like=True):
    """A batch is durable on a majority, and nobody sees it: how many batches its run has."""

    batches: Natural


class Stage(ControlRequest, frozen=True, array_like=True):
    """Stage a batch of a query's result, as batch number `number`, from 0 on, of a run.

    `query` and `batch_id` say of which batch of which query it is, and `run` is a number that the
    writer has drawn at random: no other writer, and no other attempt of this one, has the same in
    this partition. The batch has no producer and no sequence (0), and neither DUE nor ORIGIN
    column. A repeat of what is there already is answered like that. Another number than the next
    one is refused with `SequenceGap`, whose detail is the next one. A run to which nothing was
    added for an hour expires.
    """

    declaration = Declaration(
        60,
        Scope.PARTITION,
        Staged,
        Retry.NUMBERED,
        rights=(Right("publish", Resource.TOPIC),),
        is_large=True,
        refusals=(
            TooLarge,
            BadChecksum,
            SequenceGap,
            UnknownSchema,
            LevelTooLow,
            PartitionEnded,
        ),
        methods=("Client.sink", "Sink.writer"),
    )

    address: Address
    query: Query
    batch_id: Natural
    run: Natural
    number: Natural
    batch: bytes


class PublicationPart(Control, frozen=True, array_like=True):
    """The publication of what was staged in a partition: a batch (`weir.model.columns`)."""

    address: Address
    batch: bytes


class Publish(ControlRequest, frozen=True, array_like=True):
    """Publish, at one stamp, what was staged for a batch of a query, or nothing of it.

    It is a scattering, see `Scatter`, of which each batch is a publication of that batch of the
    query; besides these it has a part that is acks for partition 0 of each of its topics, where
    the batch is remembered. If that or a later one of the query was published before, by whatever
    scattering, it is refused with `BatchPublished`.
    """

    declaration = Declaration(
        63,
        Scope.HERE,
        ScatterConfirm,
        Retry.NUMBERED,
        rights=(Right("publish", Resource.PARTS),),
        is_large=True,
        refusals=(
            UnknownTopic,
            TooLarge,
            NotTogether,
            Fenced,
            UnknownProducer,
            SequenceGap,
            SequenceReused,
            BatchPublished,
            StagedRunGone,
            LevelTooLow,
            PartitionEnded,
        ),
        methods=("Sink.publish",),
    )

    producer: Natural
    epoch: Unsigned32
    number: Natural
    seen: Natural
    query: Query
    batch_id: Natural
    parts: Annotated[list[PublicationPart], Meta(min_length=1, max_length=PUBLICATION_PARTS_MAX)]


class Sink(Control, frozen=True, array_like=True):
    """A query that writes to a topic: its name, the last batch that it has published, and the stamp
    of that.
    """

    query: str
    batch_id: Natural
    stamp: Natural


class SinkList(ControlReply, frozen=True, array_like=True):
    """Sinks in the order of their names; with `more`, others come behind the last one."""

    sinks: list[Sink]
    more: bool


class ListSinks(ControlRequest, frozen=True, array_like=True):
    """Ask which queries have published to a topic, by their names, those behind `after` alone."""

    declaration = Declaration(
        61,
        Scope.FIRST_PARTITION,
        SinkList,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        methods=("Client.sinks",),
    )

    address: Address
    after: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)] = ""


class SinkReleased(ControlReply, frozen=True, array_like=True):
    """Whether anything was known of the query."""

    was_known: bool


class ForgetSink(ControlRequest, frozen=True, array_like=True):
    """Forget what a query has published to a topic: should it come back, it begins anew, and what
    it publishes again is there twice.
    """

    declaration = Declaration(
        62,
        Scope.FIRST_PARTITION,
        SinkReleased,
        Retry.SAME,
        rights=(Right("alter", Resource.TOPIC),),
        methods=("Client.forget_sink",),
    )

    address: Address
    query: Query


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (Stage, Publish, ListSinks, ForgetSink)
