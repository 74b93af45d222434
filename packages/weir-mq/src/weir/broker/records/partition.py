"""Control records of a partition: its clusters, grants and cursors, its part of scatterings and of
its topic's order, and where its log starts.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weir.broker.records.record import Number, Partition, Record
from weir.model.ids import LIMIT_MAX, NODE_MAX
from weir.model.limits import HOLDS_MAX, SET_ID_MAX
from weir.model.topic import Mode

#: Up to 2^64 - 1, as far as MessagePack goes.
Hub = Annotated[int, Meta(ge=0)]


class ClusterOpened(Record, frozen=True, array_like=True, tag="cluster"):
    """Partition: a cluster is of this `Mode`, unless it has one already."""

    cluster: str
    mode: Mode


class FilteredClusterOpened(Record, frozen=True, array_like=True, tag="cluster-tags"):
    """Partition: a cluster is of this `Mode`, and takes only messages with one of these `tags`,
    sorted, "" for messages without one; unless it has a mode already. Written from format level 3
    on.
    """

    cluster: str
    mode: Mode
    tags: tuple[str, ...]


class UnwantedSkipped(Record, frozen=True, array_like=True, tag="unwanted"):
    """Partition: no message of the `runs` [first, next) has a tag of the cluster: they are done."""

    cluster: str
    runs: list[tuple[Number, Number]]


class RelayHold(NamedTuple):
    """What a node of a relay needs: all from `offset` on. It said so `silent_ms` before this was
    proposed.
    """

    brokerset: Annotated[int, Meta(ge=0, le=SET_ID_MAX)]
    node: Annotated[int, Meta(ge=1, le=NODE_MAX)]
    offset: Annotated[int, Meta(ge=0, le=LIMIT_MAX)]
    silent_ms: Annotated[int, Meta(ge=0, le=LIMIT_MAX)]


class RelayHoldsStored(Record, frozen=True, array_like=True, tag="relay-holds"):
    """Partition: what relays need, instead of what the last such record said. Written from format
    level 3 on.
    """

    rows: Annotated[tuple[RelayHold, ...], Meta(max_length=HOLDS_MAX)]


class MessagesGranted(Record, frozen=True, array_like=True, tag="grant"):
    """Partition: messages [first, next) are leased, or those of its `runs` [first, next) if there
    are any. The entry's index is the fencing number.

    Of what is taken from consumers by that, only the runs `counted` had an attempt; None, in
    entries of earlier releases: all of it.
    """

    cluster: str
    consumer: Number
    first: Number
    next: Number
    deadline: Number
    stamp: Number
    runs: list[tuple[Number, Number]] = msgspec.field(default_factory=list)
    counted: list[tuple[Number, Number]] | None = None


class MessagesAcked(Record, frozen=True, array_like=True, tag="ack"):
    """Partition: ranges (fence, first, next) of grants are done."""

    cluster: str
    ranges: list[tuple[Number, Number, Number]]


class MessagesReturned(Record, frozen=True, array_like=True, tag="nack"):
    """Partition: what grant `fence` still holds of ranges [first, next) is nobody's until
    `deadline`, under this entry's index as its fencing number; its attempts stay, or are one fewer
    if it is `untried`.
    """

    cluster: str
    fence: Number
    ranges: list[tuple[Number, Number]]
    deadline: Number
    stamp: Number
    untried: bool = False


class GrantsExtended(Record, frozen=True, array_like=True, tag="extend"):
    """Partition: grants end no sooner than at `deadline`."""

    cluster: str
    fences: list[Number]
    deadline: Number
    stamp: Number


class GrantsReleased(Record, frozen=True, array_like=True, tag="release"):
    """Partition: a consumer is gone; what it had not acked may be granted at once. Of that, only
    the runs (cluster, first, next) `counted` had an attempt; None, in entries of earlier releases:
    all of it.
    """

    consumer: Number
    counted: list[tuple[str, Number, Number]] | None = None


class LogStartMoved(Record, frozen=True, array_like=True, tag="start"):
    """Partition: messages below `offset` are gone, on all replicas at this entry (counterexample
    13). What they lay in are the entries below Raft index `index`. Open values whose last chunk
    has a stamp below `untouched_since` are void.
    """

    index: Number
    offset: Number
    untouched_since: Number = 0


class StampsRaised(Record, frozen=True, array_like=True, tag="stamps"):
    """Partition: the next leader stamps above `stamp`, because it was promised to a reader."""

    stamp: Number


class PartitionJoined(Record, frozen=True, array_like=True, tag="joined"):
    """Partition 0: another partition of its topic belongs to the order above stamp `floor`."""

    partition: Partition
    floor: Number


class PartitionSealed(Record, frozen=True, array_like=True, tag="sealed"):
    """Partition: no message comes behind this entry, for good; all are stamped below `stamp`."""

    stamp: Number


class PartitionEnded(Record, frozen=True, array_like=True, tag="ended"):
    """Partition 0: another partition of its topic is sealed at `stamp`, and all of it lies below
    `offset`: the order waits for nothing more of it.
    """

    partition: Partition
    stamp: Number
    offset: Number


class AcksPrepared(Record, frozen=True, array_like=True, tag="prepared"):
    """Partition: of a scattering's attempt at `stamp`, acks (cluster, ranges as `MessagesAcked` has
    them) are undecided; `parts` are all of its parts.
    """

    producer: Number
    epoch: Number
    number: Number
    stamp: Number
    parts: tuple[Number, ...]
    acks: list[tuple[str, list[tuple[Number, Number, Number]]]]


class SinkPrepared(Record, frozen=True, array_like=True, tag="sink-prepared"):
    """Partition 0: of the scattering's attempt at `stamp` that publishes a batch of a query, it is
    undecided whether that is the last one of it. It takes the place of acks; `parts` are all parts.
    """

    producer: Number
    epoch: Number
    number: Number
    stamp: Number
    parts: tuple[Number, ...]
    query: str
    batch_id: Number


class ScatteringsDecided(Record, frozen=True, array_like=True, tag="decided"):
    """Partition: what became of parts of scatterings: (producer, epoch, number, stamp, whether it
    is acks, `Outcome`).
    """

    rows: list[tuple[Number, Number, Number, Number, bool, Number]]


class ScatteringsBarred(Record, frozen=True, array_like=True, tag="barred"):
    """Partition: no attempt of a scattering at or below `stamp` is prepared from here on."""

    stamp: Number


class AttemptBarred(Record, frozen=True, array_like=True, tag="barred-alone"):
    """Partition: this attempt of a scattering is not prepared from here on. Its stamp is none of
    the partition's: others may be prepared below it.
    """

    producer: Number
    epoch: Number
    number: Number
    stamp: Number


class SinkForgotten(Record, frozen=True, array_like=True, tag="sink-forgotten"):
    """Partition 0: what a query has published is known no more: it begins anew."""

    query: str


class ClusterSought(Record, frozen=True, array_like=True, tag="seek"):
    """Partition: a cluster goes on at `offset`; all its grants are over."""

    cluster: str
    offset: Number


class ClusterPaused(Record, frozen=True, array_like=True, tag="pause"):
    """Partition: a cluster is granted nothing, or again something, as the registry's change of
    that `revision` says; 0 from releases in which each partition was asked by itself.
    """

    cluster: str
    paused: bool
    revision: Number = 0


class ClusterDeleted(Record, frozen=True, array_like=True, tag="forget"):
    """Partition: a cluster is gone; one of its name would begin anew."""

    cluster: str


class HubForgotten(Record, frozen=True, array_like=True, tag="hub"):
    """Partition: where the devices of a hub stand is known no more: they begin anew, at sequence 0
    of whichever boot.
    """

    hub: Hub


class HubBuried(Record, frozen=True, array_like=True, tag="hub-tombstone"):
    """Partition: as `HubForgotten`, but a hub begins anew with an epoch above all that it had: what
    was sent before is never taken for new. Written from format level 3 on.
    """

    hub: Hub


class CursorTaken(Record, frozen=True, array_like=True, tag="turn"):
    """Partition 0: a consumer has the turn of a cluster that reads in total order, under this
    entry's index as its fencing number, unless another had it since the number `after`. A new
    cluster begins at `offsets`, by partition.
    """

    cluster: str
    consumer: Number
    after: Number
    offsets: tuple[Number, ...]
    deadline: Number
    stamp: Number


class CursorMoved(Record, frozen=True, array_like=True, tag="moved"):
    """Partition 0: in turn `fence` all below `offsets` is done; it lasts until `deadline`, or
    `ends` and is nobody's until then; one that was `untried` is no attempt.
    """

    cluster: str
    fence: Number
    offsets: tuple[Number, ...]
    deadline: Number
    stamp: Number
    ends: bool = False
    untried: bool = False


class CursorSought(Record, frozen=True, array_like=True, tag="seek-all"):
    """Partition 0: a cluster that reads in total order goes on at `offsets`; its turn is over."""

    cluster: str
    offsets: tuple[Number, ...]


CursorRecord = CursorTaken | CursorMoved | CursorSought
ScatterRecord = AcksPrepared | SinkPrepared | ScatteringsDecided | ScatteringsBarred | AttemptBarred
ClusterRecord = (
    ClusterOpened | FilteredClusterOpened | ClusterSought | ClusterPaused | ClusterDeleted
)
ConsumerRecord = (
    MessagesGranted
    | MessagesAcked
    | MessagesReturned
    | GrantsExtended
    | GrantsReleased
    | UnwantedSkipped
    | HubForgotten
    | HubBuried
    | ClusterRecord
    | CursorRecord
)
#: What a partition decides.
PartitionChange = (
    LogStartMoved
    | RelayHoldsStored
    | StampsRaised
    | PartitionJoined
    | PartitionSealed
    | PartitionEnded
    | ConsumerRecord
    | ScatterRecord
    | SinkForgotten
)
