"""Frames: how one record lies in a segment (DESIGN §4 Log). 56 bytes of header, little-endian:

    offset size field
    0      4    magic "WFRM"                32  8  term
    4      4    generation                  40  8  index
    8      8    position in the log         48  1  kind
    16     4    bytes of payload, never 0   49  1  version
    20     4    CRC-32C of the header       50  2  flags, 0
    24     8    group                       52  4  CRC-32C of the payload, or 0

then the payload, then zeros up to a multiple of 8. The header's CRC covers all 56 bytes with its
own field 0; the payload has one too unless it is batches, which carry CRC and hash themselves. Two,
so that a damaged payload does not hide whose it was (DESIGN §4 Damage). A frame exists only with
the generation of its segment at its own position: whatever a recycled file held before does not
(counterexample 8).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from weir.codec import ALIGNMENT, U32, U64, Buffer, crc32c, extended
from weir.errors import BadBatch
from weir.model.batch import check_batches
from weir.model.slices import tags_within
from weir.storage.errors import UnknownKind

MAGIC = b"WFRM"
VERSION = 1
HEADER_SIZE = 56

_HEADER = struct.Struct("<4sIQIIQQQBBHI")
_CRC_AT = 20
_CRC_END = _CRC_AT + U32.size
_NO_CRC = bytes(U32.size)


class Kind(IntEnum):
    """What a frame's payload is. MARK and END are the log's own and belong to no group; the index
    of a MARK is the promise bound of the whole log.
    """

    BATCHES = 1
    CONTROL = 2
    HARD_STATE = 3
    MARK = 4
    END = 5
    NOOP = 6
    CONFIGURATION = 7
    SNAPSHOT = 8
    #: A batch without offsets, which a publication gives it later.
    STAGED = 9


_BATCHES, _MARK = int(Kind.BATCHES), Kind.MARK
#: Looked up for every frame of a scan; `Kind(n)` takes three times as long.
KINDS = {int(kind): kind for kind in Kind}


class BadFrame(Exception):
    """No sound frame of this generation at this position; the text says what is there instead.

    Only the code that knows the durable mark can say whether that is a torn tail or damage.
    """


class CutFrame(BadFrame):
    """The header is sound, but the bytes that were read end before the payload does."""


class BadPayload(BadFrame):
    """The header is sound and the payload is not; `frame` is what the header says."""

    def __init__(self, frame: Frame, reason: str) -> None:
        """Take the frame, its offsets and stamp -1, and what is wrong with its payload."""
        super().__init__(reason)
        self.frame = frame


class Frame(msgspec.Struct, frozen=True):
    """A verified frame. Offsets, and the stamp of the last batch, are -1 where it holds none."""

    position: int
    length: int
    group: int
    term: int
    index: int
    kind: Kind
    first_offset: int
    next_offset: int
    stamp: int
    #: All tags of its messages, none where nobody knows.
    tags: tuple[str, ...] = ()


def frame_size(length: int) -> int:
    """Return the bytes that a frame with `length` bytes of payload takes, padding included."""
    return HEADER_SIZE + (length + ALIGNMENT - 1 & -ALIGNMENT)


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
    payload_crc = 0
    if kind != _BATCHES:
        for buffer in payload:
            payload_crc = extended(payload_crc, bytes(buffer))
    blank = _HEADER.pack(
        MAGIC, generation, position, length, 0, group, term, index, kind, VERSION, 0, payload_crc
    )
    crc = extended(0, blank)
    return blank[:_CRC_AT] + U32.pack(crc) + blank[_CRC_END:]


def mark_frame(generation: int, position: int, durable: int, bound: int) -> tuple[bytes, bytes]:
    """Return the frame that begins a flush: all below `durable` was durable before it.

    Its header has the promise bound in place of an index, so that rot of the payload leaves it.
    """
    payload = U64.pack(durable)
    header = pack(generation, position, _MARK, (payload,), len(payload), index=bound)
    return header, payload


def place(data: memoryview, at: int) -> tuple[int, int, int]:
    """Return the generation, position and kind that the bytes at `at` claim. Raises `BadFrame`."""
    if len(data) - at < HEADER_SIZE:
        raise BadFrame(f"{len(data) - at} bytes are too few for a frame header")
    _, generation, position, _, _, _, _, _, kind, *_ = _HEADER.unpack_from(data, at)
    return generation, position, kind


def verify(data: memoryview, at: int, *, generation: int, position: int | None) -> Frame:
    """Return the frame that begins at byte `at` of `data`, every checksum verified.

    With `position` None, as in class segments, the frame itself says where it belongs.

    Raises `BadFrame`, `BadPayload` where only the payload is bad, or `UnknownKind` for a sound
    header that a newer release wrote.
    """
    if len(data) - at < HEADER_SIZE:
        raise BadFrame(f"{len(data) - at} bytes are too few for a frame header")
    (
        magic, its_generation, its_position, length, crc, group, term, index,
        kind, version, _, payload_crc,
    ) = _HEADER.unpack_from(data, at)  # fmt: skip
    if magic != MAGIC:
        raise BadFrame("no frame begins there")
    if position is None:
        position = its_position
    if its_generation != generation or its_position != position:
        raise BadFrame(
            f"the frame there is of generation {its_generation}, position {its_position:,}, not of "
            f"generation {generation}, position {position:,}"
        )
    start = at + HEADER_SIZE
    payload = data[start : start + length]
    if crc32c(b"".join((data[at : at + _CRC_AT], _NO_CRC, data[at + _CRC_END : start]))) != crc:
        raise BadFrame("the frame's header fails its CRC-32C")
    if not 0 < length == len(payload):
        raise CutFrame(f"it says {length:,} bytes, of which {len(payload):,} are there")
    if version != VERSION:
        raise UnknownKind(
            f"the frame at position {position:,} has version {version}, and this release knows "
            f"{VERSION}: start this node with the release that wrote it, or a newer one"
        )
    known = _known(kind, position)
    first = behind = stamp = -1
    tags: tuple[str, ...] = ()
    try:
        if kind == _BATCHES:
            headers = check_batches(payload, group)
            if (first := headers[0].first_offset) >= 0:
                behind, stamp = headers[-1].next_offset, headers[-1].stamp
                tags = tags_within(payload, headers)
        elif crc32c(payload) != payload_crc:
            raise BadBatch("the frame's payload fails its CRC-32C")
    except BadBatch as error:
        claimed = Frame(position, length, group, term, index, known, -1, -1, -1)
        reason = f"a batch of group {group}: {error}" if kind == _BATCHES else str(error)
        raise BadPayload(claimed, reason) from error
    return Frame(position, length, group, term, index, known, first, behind, stamp, tags)


def next_frame(data: bytes, at: int, *, generation: int, base: int | None) -> int:
    """Return where the next frame with a sound header begins in `data`, from byte `at` on; its end
    if there is none. `base` is the log position of byte 0, None in a class segment.
    """
    view = memoryview(data)
    while (at := data.find(MAGIC, at)) >= 0:
        try:
            position = None if base is None else base + at
            verify(view, at, generation=generation, position=position)
        except (BadPayload, CutFrame):
            return at
        except (BadFrame, UnknownKind):
            at += len(MAGIC)
        else:
            return at
    return len(data)


def _known(kind: int, position: int) -> Kind:
    known = KINDS.get(kind)
    if known is None:
        raise UnknownKind(
            f"the frame at position {position:,} has kind {kind}, which this release does not know "
            "and must not skip: start this node with the release that wrote it, or a newer one"
        )
    return known
