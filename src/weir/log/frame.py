"""Frames: how one record lies in a segment (DESIGN §4 Log). 56 bytes of header, little-endian:

    offset size field
    0      4    magic "WFRM"                32  8  term
    4      4    generation                  40  8  index
    8      8    position in the log         48  1  kind
    16     4    bytes of payload, never 0   49  1  version
    20     4    CRC-32C                     50  2  flags, 0
    24     8    group                       52  4  reserved, 0

then the payload, then zeros up to a multiple of 8. The CRC covers the header with its own field 0,
and the payload unless that is batches, which carry CRC and hash themselves. A frame exists only
with the generation of its segment at its own position: whatever a recycled file held before does
not (counterexample 8).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from weir.codec.crc import crc32c
from weir.codec.fields import U32, Buffer, padded
from weir.errors import BadBatch
from weir.log.errors import UnknownKind
from weir.model.batch import check_batches

MAGIC = b"WFRM"
VERSION = 1
HEADER_SIZE = 56

_HEADER = struct.Struct("<4sIQIIQQQBBHI")
_CRC_AT = 20
_CRC_END = _CRC_AT + U32.size
_NO_CRC = bytes(U32.size)


class Kind(IntEnum):
    """What a frame's payload is. MARK and END are the log's own and belong to no group."""

    BATCHES = 1
    CONTROL = 2
    HARD_STATE = 3
    MARK = 4
    END = 5
    NOOP = 6
    CONFIGURATION = 7


_BATCHES = int(Kind.BATCHES)
#: Looked up for every frame of a scan; `Kind(n)` takes three times as long.
_KINDS = {int(kind): kind for kind in Kind}


class BadFrame(Exception):
    """No sound frame of this generation at this position; the text says what is there instead.

    Only the code that knows the durable mark can say whether that is a torn tail or damage.
    """


@dataclass(frozen=True, slots=True)
class Frame:
    """A verified frame. The offsets are those of its batches, or -1 where it holds none."""

    position: int
    length: int
    group: int
    term: int
    index: int
    kind: Kind
    first_offset: int
    next_offset: int


def frame_size(length: int) -> int:
    """Return the bytes that a frame with `length` bytes of payload takes, padding included."""
    return HEADER_SIZE + padded(length)


def pack(
    generation: int,
    position: int,
    kind: int,
    payload: Sequence[Buffer],
    length: int,
    *,
    group: int = 0,
    term: int = 0,
    index: int = 0,
) -> bytes:
    """Return the header of a frame whose payload is `payload`, `length` bytes in all."""
    blank = _HEADER.pack(
        MAGIC, generation, position, length, 0, group, term, index, kind, VERSION, 0, 0
    )
    crc = crc32c(blank)
    if kind != _BATCHES:
        for buffer in payload:
            crc = crc32c(buffer, crc)
    return blank[:_CRC_AT] + U32.pack(crc) + blank[_CRC_END:]


def place(data: memoryview, at: int) -> tuple[int, int]:
    """Return the generation and position that the bytes at `at` claim. Raises `BadFrame`."""
    if len(data) - at < HEADER_SIZE:
        raise BadFrame(f"{len(data) - at} bytes are too few for a frame header")
    _, generation, position, *_ = _HEADER.unpack_from(data, at)
    return generation, position


def verify(data: memoryview, at: int, *, generation: int, position: int) -> Frame:
    """Return the frame that begins at byte `at` of `data`, every checksum verified.

    Raises `BadFrame`, or `UnknownKind` for a sound frame that a newer release wrote.
    """
    if len(data) - at < HEADER_SIZE:
        raise BadFrame(f"{len(data) - at} bytes are too few for a frame header")
    magic, its_generation, its_position, length, crc, group, term, index, kind, version, _, _ = (
        _HEADER.unpack_from(data, at)
    )
    if magic != MAGIC:
        raise BadFrame("no frame begins there")
    if its_generation != generation or its_position != position:
        raise BadFrame(
            f"the frame there is of generation {its_generation}, position {its_position:,}, not of "
            f"generation {generation}, position {position:,}"
        )
    start = at + HEADER_SIZE
    payload = data[start : start + length]
    if not 0 < length == len(payload):
        raise BadFrame(f"it says {length:,} bytes, of which {len(payload):,} are there")
    actual = crc32c(b"".join((data[at : at + _CRC_AT], _NO_CRC, data[at + _CRC_END : start])))
    if kind != _BATCHES:
        actual = crc32c(payload, actual)
    if actual != crc:
        raise BadFrame("the frame fails its CRC-32C")
    if version != VERSION:
        raise UnknownKind(
            f"the frame at position {position:,} has version {version}, and this release knows "
            f"{VERSION}: start this node with the release that wrote it, or a newer one"
        )
    first, behind = _offsets(payload, group) if kind == _BATCHES else (-1, -1)
    return Frame(position, length, group, term, index, _known(kind, position), first, behind)


def _known(kind: int, position: int) -> Kind:
    known = _KINDS.get(kind)
    if known is None:
        raise UnknownKind(
            f"the frame at position {position:,} has kind {kind}, which this release does not know "
            "and must not skip: start this node with the release that wrote it, or a newer one"
        )
    return known


def _offsets(payload: memoryview, group: int) -> tuple[int, int]:
    try:
        headers = check_batches(payload, group)
    except BadBatch as error:
        raise BadFrame(f"a batch of group {group}: {error}") from error
    first = headers[0].first_offset
    return (first, headers[-1].next_offset) if first >= 0 else (-1, -1)
