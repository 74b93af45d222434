"""Segments: files of fixed size, each use of which has a header and a generation of its own.

The first 4,096 bytes hold the header; frames follow. The header, little-endian:

    offset size field
    0      4    magic "WSEG"      12  4  generation      24  8  size of the file
    4      2    version           16  8  base position   32  8  system id
    6      2    retention class, or 0                    40  4  CRC-32C of bytes 0 to 40
    8      4    log id

Class 0 holds new frames, each at its own position. The others hold copies
(`weir.storage.compaction`), which keep the positions that they had; places in
them are counted from `CLASS_SPACE` on.

A header of zeros means that the file is a spare: taking it into use is a write, not a rename, and
becomes durable with the flush that needs it. A header that is neither zeros nor sound was torn or
rotted, which the marks behind it tell apart: unreadable never means empty.
"""

from __future__ import annotations

import struct

import msgspec

from weir.codec import U32, U64, Buffer, crc32c
from weir.storage.errors import UnknownKind
from weir.storage.format.frame import BadFrame, Kind, frame_size, pack

MAGIC = b"WSEG"
VERSION = 1
#: Where frames begin, and the unit of a segment's size.
BLOCK = 4096
#: A MARK or an END frame: 8 bytes of payload.
SMALL_FRAME = frame_size(U64.size)
#: No log position reaches it.
CLASS_SPACE = 1 << 62
#: Tells the generations of class segments from those of new frames in the same file.
COPY_GENERATION = 1 << 31

_HEADER = struct.Struct("<4sHHIIQQQ")
_PREFIX = "segment-"


class Segment(msgspec.Struct, frozen=True):
    """One use of a file: places `base` to `base + size`, frames from `first` on.

    In class 0 a place is a log position.
    """

    name: str
    generation: int
    base: int
    size: int
    class_: int = 0

    @property
    def first(self) -> int:
        """The position of the first frame."""
        return self.base + BLOCK

    @property
    def end(self) -> int:
        """The position behind the segment: the base of the next one."""
        return self.base + self.size

    @property
    def limit(self) -> int:
        """How far records may reach: behind it is room for the END frame."""
        return self.end - SMALL_FRAME

    def end_frame(self, position: int) -> tuple[bytes, bytes]:
        """Return the frame that closes the segment: header, and the next base as payload."""
        payload = U64.pack(self.end)
        header = pack(self.generation, position, Kind.END, (payload,), len(payload))
        return header, payload


def pack_header(segment: Segment, log: int, system: int) -> bytes:
    """Return the segment's first block."""
    fields = _HEADER.pack(
        MAGIC,
        VERSION,
        segment.class_,
        log,
        segment.generation,
        segment.base,
        segment.size,
        system,
    )
    return (fields + U32.pack(crc32c(fields))).ljust(BLOCK, b"\0")


def unpack_header(name: str, block: Buffer) -> tuple[Segment, int, int]:
    """Return the segment that the first block of file `name` describes, its log and system id.

    Raises `BadFrame` where it describes none, `UnknownKind` for a newer release's.
    """
    if len(block) < BLOCK:
        raise BadFrame(f"the file has {len(block):,} bytes, which is less than a segment header")
    magic, version, class_, log, generation, base, size, system = _HEADER.unpack_from(block)
    (crc,) = U32.unpack_from(block, _HEADER.size)
    if magic != MAGIC or crc != crc32c(block[: _HEADER.size]):
        raise BadFrame("the segment header fails its CRC-32C")
    if version != VERSION:
        raise UnknownKind(
            f"{name} has segment header version {version}, and this release knows {VERSION}: start "
            "this node with the release that wrote it, or a newer one"
        )
    return Segment(name, generation, base, size, class_), log, system


def segment_name(number: int) -> str:
    """Return the file name of the segment file with this number."""
    return f"{_PREFIX}{number:08d}"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name; None for any other file."""
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else None
