"""Index files: where the entries of one closed segment lie, so that a start need not read it.

    magic "WIDX", u16 version, u16 0, u32 generation, u32 groups, u64 base, u64 size of the segment,
    u64 the byte of the segment up to which it tells, 0 for all
    a section for each row of entries of a group (`weir.storage.format.rows`)
    the CRC-32C of everything before

It is written when its segment is closed and durable, believed only where it names the segment's
generation and base, and can always be made again by reading the segment. Where the segment's own
header rotted, it says what that said.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from weir.codec.fields import U32, Buffer, crc32c
from weir.storage.disk import Disk, Readable
from weir.storage.errors import BadIndexFile
from weir.storage.format.rows import Rows, unpack
from weir.storage.format.segment import Segment, segment_number

MAGIC = b"WIDX"
VERSION = 3
_HEAD = struct.Struct("<4sHHIIQQQ")
_PREFIX = "index-"


def index_name(segment: str) -> str:
    """Return the name of the index file of a segment file."""
    return f"{_PREFIX}{segment_number(segment):08d}"


def is_index(name: str) -> bool:
    """Whether a file of this name is an index file."""
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdecimal()


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One closed segment's rows, each with its group; or a class segment's, up to byte `end`."""

    segment: Segment
    sections: Sequence[tuple[int, Rows]]
    end: int = 0

    def pack(self) -> bytes:
        """Return the file."""
        one = self.segment
        parts: list[Buffer] = [
            _HEAD.pack(
                MAGIC,
                VERSION,
                0,
                one.generation,
                len(self.sections),
                one.base,
                one.size,
                self.end,
            )
        ]
        for group, rows in self.sections:
            parts.extend(rows.pack(group))
        data = b"".join(parts)
        return data + U32.pack(crc32c(data))

    def run(self, disk: Disk) -> None:
        """Write it; blocks."""
        disk.replace(index_name(self.segment.name), self.pack())


def read_index(disk: Readable, segment: Segment) -> IndexFile:
    """Read a segment's index file; blocks. Raises `BadIndexFile` unless it is to be believed."""
    body, use, groups, end = _sound(disk, segment.name)
    if (use.generation, use.base, use.size) != (segment.generation, segment.base, segment.size):
        raise BadIndexFile(f"{index_name(segment.name)} is of another use of {segment.name}")
    at, found = _HEAD.size, []
    for _ in range(groups):
        group, rows, at = unpack(body, at)
        found.append((group, rows))
    return IndexFile(segment, found, end)


def closed_use(disk: Readable, name: str) -> Segment | None:
    """Return the use of segment file `name` that its index file was written for, None if none is
    told; blocks. All of it was durable then, whatever has become of its header since.
    """
    try:
        _, use, _, end = _sound(disk, name)
    except BadIndexFile:
        return None
    return use if not end else None  # a class segment is what the checkpoint says


def _sound(disk: Readable, segment: str) -> tuple[memoryview, Segment, int, int]:
    """Return an index file but for its CRC, the use of the segment that it is of, how many groups
    it tells of, and up to which byte.
    """
    try:
        name = index_name(segment)
        data = disk.read(name, 0, disk.size(name))
    except OSError as error:
        raise BadIndexFile(f"{segment} has no index file: {error}") from error
    body = memoryview(data)[: -U32.size]
    if len(body) < _HEAD.size or U32.unpack_from(data, len(body))[0] != crc32c(data[: len(body)]):
        raise BadIndexFile(f"{name} fails its CRC-32C")
    magic, version, _, generation, groups, base, size, end = _HEAD.unpack_from(body)
    if (magic, version) != (MAGIC, VERSION):
        raise BadIndexFile(f"{name} is no index file of version {VERSION}")
    return body, Segment(segment, generation, base, size), groups, end
