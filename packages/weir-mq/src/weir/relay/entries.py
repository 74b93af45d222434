"""Entries of a relay's log: what they hold, and their bytes (docs/RELAYS.md).

A partition of a relay is a group of the same number as in the core, in the same storage, with an
index of its own without holes. An entry is, little-endian:

    offset size field
    0      1    kind                        4   4   bytes of the head
    1      1    version, 1                  8   4   CRC-32C of bytes 0 to 8 and of the head
    2      2    0                           12  4   bytes of the data behind the head
    16          head in MessagePack, padded with zeros to a multiple of 8, then data: batches, which
                carry CRC and hash themselves

An unknown kind or version stops the group (`Halted`): it is never skipped.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weir.codec import Buffer, Unsigned32, crc32c, padded, padding, total
from weir.errors import Damaged, Halted
from weir.model.ids import NODE_MAX, Natural
from weir.model.limits import FORKS_MAX, HOLDS_MAX, RELAY_BYTES_MAX
from weir.relay.rows import (
    PackedTags,
    RosterEntries,
    Rows,
    are_sound,
    wrong_roster,
    wrong_rows,
)

_PREFIX = struct.Struct("<BBHIII")
_SUMMED = 8
_VERSION = 1
#: A head of so many rows and roster entries at most.
_HEAD_BYTES_MAX = 8 * 1024 * 1024

Node = Annotated[int, Meta(ge=0, le=NODE_MAX)]
#: Lineages, rising, and the offset at which each took over.
Forks = Annotated[tuple[tuple[Natural, Natural], ...], Meta(max_length=FORKS_MAX)]
Reason = Annotated[str, Meta(max_length=255)]


class RelayRecord(msgspec.Struct, frozen=True, array_like=True):
    """The head of an entry of a relay's log."""


class Relayed(RelayRecord, frozen=True, array_like=True):
    """Offsets [first, next) of a lineage, as the filter of this version left them; the batches of
    its rows are the entry's data, in order. It was received at `received_ms`, ms since 1970.

    `first` is the `next` of the entry before, so a hole cannot be written.
    """

    lineage: Natural
    first: Natural
    next: Natural
    filter: Natural
    received_ms: Natural
    rows: Rows
    roster: RosterEntries = ()


class ChunkStored(RelayRecord, frozen=True, array_like=True):
    """A chunk of a large value, the entry's data. `core_index` is its Raft index in the core, by
    which the batch that closes the value names it; that batch lies at `offset`, the end of the log.
    """

    core_index: Natural
    offset: Natural


class FilterSet(RelayRecord, frozen=True, array_like=True):
    """From offset `first` on only messages with these tags are kept; None: all messages."""

    version: Natural
    tags: PackedTags
    first: Natural


class GapTold(RelayRecord, frozen=True, array_like=True):
    """Offsets [first, next) were lost on the way; readers get an error that names them."""

    first: Natural
    next: Natural
    reason: Reason


class HoldRow(NamedTuple):
    """What a child needs: all from `offset` on, as it said at `said_ms`, ms since 1970, in a pull
    for these tags.
    """

    brokerset: Unsigned32
    node: Node
    offset: Natural
    said_ms: Natural
    tags: PackedTags = None


class HoldsStored(RelayRecord, frozen=True, array_like=True):
    """All holds of children, instead of those of the last such entry. The log began at `begun_at`
    at `begun_ms`, if children may still not have said what they need; else both are 0.
    """

    rows: Annotated[tuple[HoldRow, ...], Meta(max_length=HOLDS_MAX)]
    begun_ms: Natural = 0
    begun_at: Natural = 0


class StartMoved(RelayRecord, frozen=True, array_like=True):
    """What lies below `offset` is gone. In an empty log, offsets begin there."""

    offset: Natural


class Forked(RelayRecord, frozen=True, array_like=True):
    """What lies at or above `offset` belongs to a lineage that ended: it is cut off, and `lineage`
    goes on there. `forks` are all changes of lineage that are known: (lineage, its first offset).
    """

    lineage: Natural
    offset: Natural
    forks: Forks


AnyRecord = Relayed | ChunkStored | FilterSet | GapTold | HoldsStored | StartMoved | Forked
_KINDS: dict[type[RelayRecord], int] = {
    Relayed: 1, ChunkStored: 2, FilterSet: 3, GapTold: 4, HoldsStored: 5, StartMoved: 6, Forked: 7,
}  # fmt: skip
_DECODERS = {kind: msgspec.msgpack.Decoder(record) for record, kind in _KINDS.items()}
_encode = msgspec.msgpack.Encoder().encode
_UPGRADE = "upgrade this node"


def encode_entry(record: AnyRecord, *data: Buffer) -> tuple[Buffer, ...]:
    """Return the buffers of an entry; those of its data are among them, uncopied."""
    head = _encode(record)
    prefix = _PREFIX.pack(_KINDS[type(record)], _VERSION, 0, len(head), 0, total(data))
    checked = _PREFIX.pack(
        _KINDS[type(record)], _VERSION, 0, len(head),
        crc32c(head, crc32c(prefix[:_SUMMED])), total(data),
    )  # fmt: skip
    return (checked + head + padding(len(head)), *data)


def decode_entry(payload: Buffer) -> tuple[AnyRecord, memoryview]:
    """Read an entry: its head, and a view of its data.

    Raises `Halted` for a kind, a version or fields that this release does not know, `Damaged` for
    bytes that nobody wrote so.
    """
    view = memoryview(payload)
    if len(view) < _PREFIX.size:
        raise Damaged(f"{len(view)} bytes are no entry of a relay")
    kind, version, _, head_size, crc, size = _PREFIX.unpack_from(view)
    behind = _PREFIX.size + padded(head_size)
    if head_size > _HEAD_BYTES_MAX or size > RELAY_BYTES_MAX or behind + size != len(view):
        raise Damaged(f"an entry of {len(view):,} bytes says {head_size:,} and {size:,}")
    head = view[_PREFIX.size : _PREFIX.size + head_size]
    if crc32c(head, crc32c(view[:_SUMMED])) != crc:
        raise Damaged("an entry of a relay fails its CRC-32C")
    decoder = _DECODERS.get(kind)
    if decoder is None or version != _VERSION:
        raise Halted(
            f"an entry of kind {kind}, version {version}, is not known to this release: {_UPGRADE}"
        )
    try:
        record: AnyRecord = decoder.decode(head)  # type: ignore[assignment]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Halted(f"an entry is not known to this release ({error}): {_UPGRADE}") from None
    if wrong := wrong_record(record, size):
        raise Damaged(f"an entry of a relay makes no sense: {wrong}")
    return record, view[behind:]


def wrong_record(record: AnyRecord, size: int) -> str:
    """Return what is wrong with a record beside `size` bytes of data; "" if all is well."""
    if isinstance(record, Relayed):
        return wrong_rows(record.first, record.next, record.rows, size) or wrong_roster(
            record.first, record.next, record.roster
        )
    if (size > 0) != isinstance(record, ChunkStored):
        return f"a record of {type(record).__name__} with {size:,} bytes of data"
    if isinstance(record, FilterSet) and not are_sound(record.tags):
        return "the tags of a filter are not sorted, or too long"
    if isinstance(record, GapTold) and record.first >= record.next:
        return f"a gap of [{record.first}, {record.next})"
    if isinstance(record, Forked) and not rise(record.forks, record.lineage):
        return f"the lineages up to {record.lineage} do not rise"
    if isinstance(record, HoldsStored) and not all(are_sound(row.tags) for row in record.rows):
        return "the tags of a hold are not sorted, or too long"
    return ""


def rise(forks: Forks, lineage: int) -> bool:
    """Whether lineages rise up to this one."""
    numbers = [number for number, _ in forks]
    return all(one < other for one, other in pairwise([0, *numbers])) and (
        not numbers or numbers[-1] == lineage
    )
