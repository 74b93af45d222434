"""What an entry of a group holds, before it is appended and when it is read back: batches, or a
control record.

Control records are entries that are no messages: MessagePack, tagged; a version in each frame. A
tag that is not known stops the group (`Halted`): it is never skipped, for what it meant would be
missing for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

import weir_raft as raft
from weir.broker.records.access import AccessRecord
from weir.broker.records.audit import AuditProducerOpened, AuditRecord
from weir.broker.records.fleets import FleetRecord
from weir.broker.records.quotas import QuotaRecord
from weir.broker.records.secrets import SecretsRewrapped
from weir.broker.records.staging import StagedRecord, pack_staged, read_staged
from weir.broker.records.topology import TopologyApplied
from weir.codec import Buffer
from weir.errors import BadBatch, Halted
from weir.model.batch import Batch, Columns
from weir.model.columns import Piece, Publication, References, Scattered
from weir.model.ids import LIMIT_MAX, PARTITIONS_MAX, REGISTRY_GROUP, VOTER_MAX
from weir.model.slices import few_tags_of
from weir.model.topic import Mode, SettingsChange, TopicSettings
from weir.storage.format.frame import Kind

#: What fits a signed field: a stamp of the past may lie before the first one there is.
Number = Annotated[int, Meta(le=LIMIT_MAX)]
Partitions = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX)]
Partition = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
Voters = Annotated[tuple[Annotated[int, Meta(ge=1, le=VOTER_MAX)], ...], Meta(min_length=1)]
#: Up to 2^64 - 1, as far as MessagePack goes.
Hub = Annotated[int, Meta(ge=0)]
_ORIGIN = int(Columns.ORIGIN)
_LARGE = int(Columns.CHUNK | Columns.REFERENCES)
_DUE, _CHUNK = int(Columns.DUE), int(Columns.CHUNK)
_SCATTERED, _PUBLICATION = int(Columns.SCATTERED), int(Columns.PUBLICATION)
_SLICED = int(Columns.SLICED)
#: Of these it has to be found out which tags an entry has.
_TAGGED = int(Columns.TAG) | _PUBLICATION
_UNTAGGED = ("",)
#: What applying a batch has to look into, where it is there.
_MORE = _ORIGIN | _LARGE | _DUE | _SCATTERED | _PUBLICATION
_BATCHES = Kind.BATCHES


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A control record."""


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


class GroupsPlaced(Record, frozen=True, array_like=True, tag="placed"):
    """Registry: where groups are to lie from here on: (group, its voters), the preferred leader
    first. Who leads a group moves it there.
    """

    rows: list[tuple[Number, Voters]]


class GroupsSettled(Record, frozen=True, array_like=True, tag="settled"):
    """Registry: groups that were to move are where these voters have them: whoever had them before
    is needed no more.
    """

    rows: list[tuple[Number, Voters]]


class LevelRaised(Record, frozen=True, array_like=True, tag="level"):
    """Registry: every node supports this format level, and may write it."""

    level: Number


class ClusterOpened(Record, frozen=True, array_like=True, tag="cluster"):
    """Partition: a cluster is of this `Mode`, unless it has one already."""

    cluster: str
    mode: Mode


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
    runs: list[tuple[Number, Number]] = []
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
    """Partition: whoever leads next stamps above `stamp`, for somebody was told so."""

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
ClusterRecord = ClusterOpened | ClusterSought | ClusterPaused | ClusterDeleted
ConsumerRecord = (
    MessagesGranted
    | MessagesAcked
    | MessagesReturned
    | GrantsExtended
    | GrantsReleased
    | HubForgotten
    | HubBuried
    | ClusterRecord
    | CursorRecord
)
NodeRecord = NodeJoined | NodeChanged | GroupsPlaced | GroupsSettled | LevelRaised
SchemaRecord = SchemaVersionAdded | SchemaRuleSet
SystemRecord = AccessRecord | FleetRecord | SecretsRewrapped | QuotaRecord | TopologyApplied
#: What the registry decides.
RegistryChange = (
    TopicCreated
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


ControlRecord = (
    RegistryChange
    | Attributed
    | LogStartMoved
    | StampsRaised
    | PartitionJoined
    | PartitionSealed
    | PartitionEnded
    | ConsumerRecord
    | ScatterRecord
    | SinkForgotten
)
_OF_REGISTRY = RegistryChange | Attributed
_decoder = msgspec.msgpack.Decoder(ControlRecord)
encode_control = msgspec.msgpack.Encoder().encode


def decode_control(payload: Buffer) -> ControlRecord:
    """Read a control record. Raises `Halted` for one that this release does not know."""
    try:
        record: ControlRecord = _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise Halted(
            f"an entry is not known to this release ({error}): upgrade this node"
        ) from None
    return record


def belongs(record: ControlRecord, group: int) -> bool:
    """Whether a group has such records: the registry has its own, and partitions all others."""
    return isinstance(record, _OF_REGISTRY) == (group == REGISTRY_GROUP)


def highest_stamp(record: ControlRecord) -> int:
    """Return the highest stamp that applying a record lets a clock know; 0 if it has none."""
    match record:
        case ProducerOpened(producer) | AuditProducerOpened(producer):
            return producer
        case TopicGrown() | PartitionJoined():
            return record.floor
        case ScatteringsDecided(rows):
            return max((stamp for _, _, _, stamp, *_ in rows), default=0)
        case AttemptBarred():
            return 0  # it is none of the partition's
    return getattr(record, "stamp", 0)


def names_twice(record: ControlRecord) -> bool:
    """Whether a record lets a voter be in a group twice, which no configuration can be."""
    if not isinstance(record, GroupsPlaced | GroupsSettled):
        return False
    return any(len(set(voters)) < len(voters) for _, voters in record.rows)


class BatchRecord(NamedTuple):
    """What a replica needs to know of a batch to apply it; its columns stay closed."""

    producer: int
    epoch: int
    sequence: int
    messages: int
    hash: int
    offset: int
    stamp: int
    #: The offset behind the last message; a chunk holds none.
    next_offset: int
    #: The batch itself if devices sent it: applying it needs its origin column and its values.
    device_batch: Batch | None = None
    #: Of a chunk where its piece lies in its value; of a closing batch what it refers to.
    large: Piece | References | None = None
    #: Its bytes in the log, header included.
    stored: int = 0
    #: All tags of its messages, "" where one has none; empty where they are too many to list.
    tags: tuple[str, ...] = _UNTAGGED
    #: Between which times its messages are due, in ms since 1970, if any is to come late.
    dues: tuple[int, int] | None = None
    #: Of a part of a scattering what it says of the whole.
    scattered: Scattered | None = None
    #: Which staged batches it publishes.
    publication: Publication | None = None


class Payload(msgspec.Struct, frozen=True):
    """An entry's content: the bytes to keep, and what applying it needs."""

    kind: Kind
    buffers: tuple[Buffer, ...]
    size: int
    batches: tuple[BatchRecord, ...] = ()
    control: ControlRecord | None = None
    staged: StagedRecord | None = None

    @property
    def change(self) -> ControlRecord | None:
        """Its control record, whoever asked for it."""
        control = self.control
        return control.change if isinstance(control, Attributed) else control


def record_of(batch: Batch, offset: int, stamp: int) -> BatchRecord:
    """Return what applying a batch needs, at its place in the partition."""
    h = batch.header
    tags = _UNTAGGED if not h.columns & _TAGGED else few_tags_of(batch.view, h.columns)
    if not h.columns & _MORE:  # as most batches: in C, for each comes by here
        behind = offset + h.count
        return tuple.__new__(
            BatchRecord,
            (h.producer, h.epoch, h.sequence, h.count, h.hash, offset, stamp, behind, None, None,
             h.total_size, tags, None, None, None),
        )  # fmt: skip
    device_batch = batch if h.columns & _ORIGIN else None
    large = (batch.piece or batch.references) if h.columns & _LARGE else None
    dues = due_span(batch) if h.columns & _DUE and not h.columns & _CHUNK else None
    behind = offset if h.columns & _CHUNK else offset + h.count
    return BatchRecord(
        h.producer, h.epoch, h.sequence, h.count, h.hash, offset, stamp, behind, device_batch,
        large, h.total_size, tags, dues, batch.scattered if h.columns & _SCATTERED else None,
        batch.publication if h.columns & _PUBLICATION else None,
    )  # fmt: skip


def due_span(batch: Batch) -> tuple[int, int] | None:
    """Return from when to when a batch's messages are due, in ms since 1970 (rounded up); None if
    all of them are due at once.
    """
    dues = batch.numbers(Columns.DUE)
    latest = max(dues) if dues is not None else 0
    if dues is None or latest <= 0:
        return None
    return -(-max(min(dues), 0) // 1000), -(-latest // 1000)


def of_batches(buffers: Sequence[Buffer], batches: Sequence[BatchRecord], size: int) -> Payload:
    """Return the payload of concatenated, stamped batches, `size` bytes in all."""
    return Payload(_BATCHES, tuple(buffers), size, tuple(batches))


def of_staged(record: StagedRecord, batch: Buffer) -> Payload:
    """Return the payload of a batch that is staged."""
    head = pack_staged(record)
    return Payload(Kind.STAGED, (head, batch), len(head) + len(batch), staged=record)


def of_control(record: ControlRecord) -> Payload:
    """Return the payload of a control record."""
    data = encode_control(record)
    return Payload(Kind.CONTROL, (data,), len(data), control=record)


def read_back(kind: Kind, data: Buffer, sent_to: int = -1) -> Payload:
    """Return the payload of a stored entry. Raises `Halted` for a kind that is not known.

    One that another node sent to group `sent_to` is checked batch by batch: raises `BadBatch`.
    """
    if kind is Kind.BATCHES:
        return Payload(kind, (data,), len(data), tuple(_records(data, sent_to)))
    if kind is Kind.CONTROL:
        return Payload(kind, (data,), len(data), control=decode_control(bytes(data)))
    if kind is Kind.NOOP:
        return NOOP
    if kind is Kind.CONFIGURATION:
        return Payload(kind, (data,), len(data))
    if kind is Kind.STAGED:
        return Payload(kind, (data,), len(data), staged=read_staged(data, sent_to))
    raise Halted(f"an entry of kind {kind.name} is not known to this release: upgrade this node")


def _records(data: Buffer, sent_to: int) -> list[BatchRecord]:
    records, at = [], 0
    while at < len(data):
        batch = Batch(data, at, sent_to)
        h = batch.header
        if h.columns & _SLICED:
            raise BadBatch("a slice of a batch is served, and never stored")
        records.append(record_of(batch, h.first_offset, h.stamp))
        at += h.total_size
    return records


#: A leader's first entry. One byte, because a frame of length 0 is never valid.
NOOP = Payload(Kind.NOOP, (b"\0",), 1)


def entry_of(index: int, term: int, payload: Payload) -> raft.Entry:
    """Return what Raft knows of an entry."""
    if payload.kind is Kind.CONFIGURATION:
        data = b"".join(payload.buffers)
        return raft.Entry(index, term, raft.EntryKind.CONFIGURATION, data, payload.size)
    kind = raft.EntryKind.NOOP if payload.kind is Kind.NOOP else raft.EntryKind.NORMAL
    return raft.Entry(index, term, kind, payload, payload.size)


def stored_in(entry: raft.Entry) -> Payload:
    """Return what an entry holds as it lies in the log; of batches perhaps nothing but the bytes:
    see `applied_by`.
    """
    if entry.kind is raft.EntryKind.NOOP:
        return NOOP
    if entry.kind is raft.EntryKind.CONFIGURATION:
        assert isinstance(entry.data, bytes)  # what Configuration.pack() gave
        return Payload(Kind.CONFIGURATION, (entry.data,), len(entry.data))
    assert isinstance(entry.data, Payload)  # only propose(), peers and recovery put data there
    return entry.data


def unread(kind: Kind, buffers: tuple[Buffer, ...], size: int) -> Payload:
    """Return a payload that is only sent on: nobody has looked into its batches or record."""
    return Payload(kind, buffers, size)


def applied_by(entry: raft.Entry) -> Payload:
    """Return what applying an entry needs."""
    data = entry.data
    if isinstance(data, Payload) and (
        data.batches or data.control is not None or data.staged is not None
    ):
        return data
    payload = stored_in(entry)
    if payload.kind is Kind.NOOP:
        return payload
    return read_back(payload.kind, b"".join(payload.buffers))
