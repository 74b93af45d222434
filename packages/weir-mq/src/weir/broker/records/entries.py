"""What an entry of a group holds, before it is appended and when it is read back: batches, or a
control record.

Control records are entries that are no messages: MessagePack, tagged; a version in each frame. A
tag that is not known stops the group (`Halted`): it is never skipped, for what it meant would be
missing for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

import weir_raft as raft
from weir.broker.records.audit import AuditProducerOpened
from weir.broker.records.partition import (
    AttemptBarred,
    PartitionChange,
    PartitionJoined,
    ScatteringsDecided,
)
from weir.broker.records.registry import (
    Attributed,
    GroupsPlaced,
    GroupsSettled,
    ProducerOpened,
    RegistryChange,
    TopicGrown,
)
from weir.broker.records.staging import StagedRecord, pack_staged, read_staged
from weir.codec import Buffer
from weir.errors import BadBatch, Halted
from weir.model.batch import Batch, Columns
from weir.model.columns import Piece, Publication, References, Scattered
from weir.model.ids import REGISTRY_GROUP, granted_at
from weir.model.slices import few_tags_of
from weir.storage.format.frame import Kind

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


ControlRecord = RegistryChange | Attributed | PartitionChange
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
        case ProducerOpened(producer):
            return granted_at(producer)
        case AuditProducerOpened(producer):
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
        """Its control record, without the principal that asked for it."""
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
