"""What an entry of a group holds, before it is appended and when it is read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weir.broker import control
from weir.broker.control import ControlRecord
from weir.codec.fields import Buffer, total
from weir.errors import Halted
from weir.log.frame import Kind
from weir.model.batch import Batch
from weir.model.chunks import Piece, References
from weir.model.header import Columns

_ORIGIN = int(Columns.ORIGIN)
_LARGE = int(Columns.CHUNK | Columns.REFERENCES)


class BatchRecord(NamedTuple):
    """What a replica needs to know of a batch to apply it; its columns stay closed."""

    producer: int
    epoch: int
    sequence: int
    messages: int
    hash: int
    offset: int
    stamp: int
    #: The batch itself if devices sent it: applying it needs its origin column and its values.
    fan_in: Batch | None = None
    #: Of a chunk where its piece lies in its value; of a closing batch what it refers to.
    large: Piece | References | None = None
    #: Its bytes in the log, header included.
    stored: int = 0

    @property
    def next_offset(self) -> int:
        """The offset behind the last message; a chunk holds none."""
        return self.offset if isinstance(self.large, Piece) else self.offset + self.messages


@dataclass(frozen=True, slots=True)
class Payload:
    """An entry's content: the bytes to keep, and what applying it needs."""

    kind: Kind
    buffers: tuple[Buffer, ...]
    size: int
    batches: tuple[BatchRecord, ...] = ()
    control: ControlRecord | None = None


def record_of(batch: Batch, offset: int, stamp: int) -> BatchRecord:
    """Return what applying a batch needs, at its place in the partition."""
    h = batch.header
    fan_in = batch if h.columns & _ORIGIN else None
    large = (batch.piece or batch.references) if h.columns & _LARGE else None
    return BatchRecord(
        h.producer, h.epoch, h.sequence, h.count, h.hash, offset, stamp, fan_in, large, h.total_size
    )


def of_batches(buffers: Sequence[Buffer], batches: Sequence[BatchRecord]) -> Payload:
    """Return the payload of concatenated, stamped batches."""
    return Payload(Kind.BATCHES, tuple(buffers), total(buffers), tuple(batches))


def of_control(record: ControlRecord) -> Payload:
    """Return the payload of a control record."""
    data = control.encode(record)
    return Payload(Kind.CONTROL, (data,), len(data), control=record)


def read_back(kind: Kind, data: bytes) -> Payload:
    """Return the payload of a stored entry. Raises `Halted` for a kind that is not known."""
    if kind is Kind.BATCHES:
        return Payload(kind, (data,), len(data), tuple(_records(data)))
    if kind is Kind.CONTROL:
        return Payload(kind, (data,), len(data), control=control.decode(data))
    if kind is Kind.NOOP:
        return NOOP
    raise Halted(f"an entry of kind {kind.name} is not known to this release: upgrade this node")


def _records(data: bytes) -> list[BatchRecord]:
    records, at = [], 0
    while at < len(data):
        batch = Batch(data, at)
        h = batch.header
        records.append(record_of(batch, h.first_offset, h.stamp))
        at += h.total_size
    return records


#: A leader's first entry. One byte, because a frame of length 0 is never valid.
NOOP = Payload(Kind.NOOP, (b"\0",), 1)
