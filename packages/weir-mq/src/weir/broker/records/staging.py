"""An entry that stages a batch (docs/adr/0075): how its bytes lie, and what applying it needs.

Such an entry is of a kind of its own, little-endian:

    offset size field
    0      8    number of the run          24  4  number of the batch in its run
    8      8    number of the query's      28  4  bytes of the query's name
                batch                      32     the name in UTF-8, padded with zeros to a
    16     8    when it came, as a stamp          multiple of 8; then the batch

The batch has neither an offset nor a stamp. Both are written into its header where it is served,
once a publication has given them to it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from weir.codec import Buffer, padded, padding
from weir.errors import BadBatch
from weir.model.batch import HEADER_SIZE, Columns, check_whole, parse, stamped
from weir.model.columns import text
from weir.model.ids import LIMIT_MAX
from weir.model.limits import NAME_CHARACTERS_MAX

_HEAD = struct.Struct("<QQqII")
_NAME_BYTES_MAX = 4 * NAME_CHARACTERS_MAX
#: What an entry takes beside its batch, at most.
HEAD_BYTES_MAX = _HEAD.size + _NAME_BYTES_MAX
#: The columns that a staged batch may have: applying a publication looks into none of them.
STAGED_COLUMNS = int(
    Columns.VALUE | Columns.KEY | Columns.TAG | Columns.TIME | Columns.EXPIRES | Columns.HEADERS
)


class StagedRecord(NamedTuple):
    """What a replica needs to know of a staged batch to apply it."""

    run: int
    query: str
    batch_id: int
    number: int
    stamp: int
    messages: int
    hash: int
    #: The bytes of the batch, header included.
    stored: int


def pack_staged(record: StagedRecord) -> bytes:
    """Return what lies in front of the batch."""
    name = record.query.encode()
    head = _HEAD.pack(record.run, record.batch_id, record.stamp, record.number, len(name))
    return b"".join((head, name, padding(len(name))))


def read_staged(data: Buffer, sent_to: int = -1) -> StagedRecord:
    """Read the bytes of an entry. One that was sent to group `sent_to` is checked, batch included.
    Raises `BadBatch`.
    """
    at = batch_at(data)
    run, batch_id, stamp, number, size = _HEAD.unpack_from(data)
    header = parse(data, at) if sent_to < 0 else check_whole(data, sent_to, at)
    if header.total_size != len(data) - at or header.columns & ~STAGED_COLUMNS:
        raise BadBatch("an entry of one staged batch holds something else")
    if max(run, batch_id) > LIMIT_MAX or stamp < 0:
        raise BadBatch(f"no leader staged run {run}, batch {batch_id} at stamp {stamp}")
    query = text(bytes(data[_HEAD.size : _HEAD.size + size]))
    return StagedRecord(
        run, query, batch_id, number, stamp, header.count, header.hash, header.total_size
    )


def batch_at(data: Buffer) -> int:
    """Return where the batch begins in the bytes of an entry. Raises `BadBatch`."""
    if len(data) < _HEAD.size:
        raise BadBatch(f"{len(data)} bytes hold no staged batch")
    *_, size = _HEAD.unpack_from(data)
    if not 1 <= size <= _NAME_BYTES_MAX:
        raise BadBatch(f"a staged batch of a query whose name has {size} bytes")
    return int(_HEAD.size + padded(size))


def published(payload: Buffer, stamp: int, offset: int) -> tuple[bytes, memoryview]:
    """Return the batch of an entry as readers get it, with the stamp and first offset that its
    publication gave it: its header, and all that lies behind, which is not copied.
    """
    view = memoryview(payload)[batch_at(payload) :]
    return stamped(view, stamp, offset), view[HEADER_SIZE:]


def joined(buffers: Sequence[Buffer]) -> Buffer:
    """Return the bytes of an entry as one, as they lie on the disk."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)
