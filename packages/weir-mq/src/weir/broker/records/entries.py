"""What an entry of a group holds, before it is appended and when it is read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

import weir_raft as raft
from weir.broker.records import control
from weir.broker.records.control import ControlRecord
from weir.codec.fields import Buffer
from weir.errors import Halted
from weir.model.batch import Batch
from weir.model.chunks import Piece, References
from weir.model.header import Columns
from weir.model.scattering import Scattered
from weir.storage.format.frame import Kind

_ORIGIN = int(Columns.ORIGIN)
_LARGE = int(Columns.CHUNK | Columns.REFERENCES)
_DUE, _CHUNK = int(Columns.DUE), int(Columns.CHUNK)
_SCATTERED = int(Columns.SCATTERED)
_BATCHES = Kind.BATCHES


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
    #: Between which times its messages are due, in ms since 1970, if any is to come late.
    dues: tuple[int, int] | None = None
    #: Of a part of a scattering what it says of the whole.
    scattered: Scattered | None = None


class Payload(msgspec.Struct, frozen=True):
    """An entry's content: the bytes to keep, and what applying it needs."""

    kind: Kind
    buffers: tuple[Buffer, ...]
    size: int
    batches: tuple[BatchRecord, ...] = ()
    control: ControlRecord | None = None


def record_of(batch: Batch, offset: int, stamp: int) -> BatchRecord:
    """Return what applying a batch needs, at its place in the partition."""
    h = batch.header
    device_batch = batch if h.columns & _ORIGIN else None
    large = (batch.piece or batch.references) if h.columns & _LARGE else None
    dues = due_span(batch) if h.columns & _DUE and not h.columns & _CHUNK else None
    behind = offset if h.columns & _CHUNK else offset + h.count
    return BatchRecord(
        h.producer, h.epoch, h.sequence, h.count, h.hash, offset, stamp, behind, device_batch,
        large, h.total_size, dues, batch.scattered if h.columns & _SCATTERED else None,
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


def of_control(record: ControlRecord) -> Payload:
    """Return the payload of a control record."""
    data = control.encode(record)
    return Payload(Kind.CONTROL, (data,), len(data), control=record)


def read_back(kind: Kind, data: Buffer, sent_to: int = -1) -> Payload:
    """Return the payload of a stored entry. Raises `Halted` for a kind that is not known.

    One that another node sent to group `sent_to` is checked batch by batch: raises `BadBatch`.
    """
    if kind is Kind.BATCHES:
        return Payload(kind, (data,), len(data), tuple(_records(data, sent_to)))
    if kind is Kind.CONTROL:
        return Payload(kind, (data,), len(data), control=control.decode(bytes(data)))
    if kind is Kind.NOOP:
        return NOOP
    if kind is Kind.CONFIGURATION:
        return Payload(kind, (data,), len(data))
    raise Halted(f"an entry of kind {kind.name} is not known to this release: upgrade this node")


def _records(data: Buffer, sent_to: int) -> list[BatchRecord]:
    records, at = [], 0
    while at < len(data):
        batch = Batch(data, at, sent_to)
        h = batch.header
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
    if isinstance(data, Payload) and (data.batches or data.control is not None):
        return data
    payload = stored_in(entry)
    if payload.kind is Kind.NOOP:
        return payload
    return read_back(payload.kind, b"".join(payload.buffers))
