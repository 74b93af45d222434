"""Index files: where the entries of one closed segment lie, so that a start need not read it.

    magic "WIDX", u16 version, u16 0, u32 generation, u32 groups, u64 base, u64 size of the segment,
    u64 the byte of the segment up to which it tells, 0 for all
    a section for each row of entries of a group (`Rows`): a head, the columns, and the sets of tags
        that numbers from 1 on stand for: u32 bytes, MessagePack of an array of arrays of tags
    the CRC-32C of everything before

It is written when its segment is closed and durable, believed only where it names the segment's
generation and base, and can always be made again by reading the segment. Where the segment's own
header rotted, it says what that said. Version 3, which is read too, knows nothing of tags: entries
have number 0 ("look inside").

Rows are the entries of one group as packed columns, in memory and in index files: native little-
endian arrays, so that a restart loads them without looking at a row.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from weir.codec import U32, Buffer, crc32c, padding
from weir.storage.disk import Disk, Readable
from weir.storage.errors import BadIndexFile
from weir.storage.format.segment import Segment, segment_number

#: The start of a group that is gone for ever: none of its entries is needed.
GONE = (1 << 64) - 1
#: Bytes of one entry over all columns.
ROW_BYTES = 57
_SECTION = struct.Struct("<QQQQQqQQ")
#: Type codes, widest first, so that every column of a file begins aligned.
_CODES = "QQQqqQIIB"
#: ... of version 3, and where the column was put in that it lacks.
_CODES_3, _TAGS_AT = "QQQqqQIB", 7
MAGIC = b"WIDX"
VERSION = 4
READABLE = (3, VERSION)
_BEFORE_TAGS = 3
_HEAD = struct.Struct("<4sHHIIQQQ")
_PACK = msgspec.msgpack.Encoder().encode
_UNPACK = msgspec.msgpack.Decoder(list[list[str]])
_PREFIX = "index-"


class Columns(NamedTuple):
    """What is said of entries, a row for each: a column for each field, in the order of a file."""

    positions: array[int]
    places: array[int]
    terms: array[int]
    behind: array[int]
    stamps: array[int]
    totals: array[int]
    lengths: array[int]
    tags: array[int]
    kinds: array[int]


class Rows(msgspec.Struct, frozen=True):
    """Entries `first` and up of a group, without a gap.

    `start` is the group's start when they were taken, `before` the term of the entry before that,
    and `floor` the position from which on the group's frames counted. `base` and `total` sum up
    everything before the entries: the offset behind it, -1 where that is not known, and the bytes
    of all entries with messages.
    """

    floor: int
    start: int
    before: int
    first: int
    base: int
    total: int
    columns: Columns
    #: The sets of tags that the numbers of the column `tags` stand for, from 1 on.
    sets: tuple[frozenset[str], ...] = ()

    def counts(self, floor: int) -> bool:
        """Whether this is said of the group as it is since log position `floor`."""
        return self.floor == floor or (self.start == GONE and self.floor > floor)

    @property
    def last(self) -> int:
        """The index of the last entry."""
        return self.first + len(self.columns.positions) - 1

    def above(self, start: int) -> Rows | None:
        """Return the entries from index `start` on; None if there are none."""
        count = start - self.first
        if count <= 0 and self.columns.positions:
            return self
        if start > self.last or not self.columns.positions:
            return None
        columns = (column[count:] for column in self.columns)
        base = max(self.base, self.columns.behind[count - 1])
        return self._of(start, base, self.columns.totals[count - 1], columns)

    def through(self, last: int) -> Rows:
        """Return the entries up to index `last`."""
        if last >= self.last:
            return self
        columns = (column[: max(last + 1 - self.first, 0)] for column in self.columns)
        return self._of(self.first, self.base, self.total, columns)

    def split(self, position: int) -> tuple[Rows, Rows | None]:
        """Return the entries below a log position, and those from there on; None if none are."""
        count = bisect_left(self.columns.positions, position)
        if count == len(self.columns.positions):
            return self, None
        below = (column[:count] for column in self.columns)
        now = self._of(self.first, self.base, self.total, below)
        return now, self.above(self.first + count)

    def _of(self, first: int, base: int, total: int, columns: Iterable[array[int]]) -> Rows:
        named = Columns(*columns)
        return Rows(self.floor, self.start, self.before, first, base, total, named, self.sets)

    def pack(self, group: int) -> list[Buffer]:
        """Return the group's section of an index file: a head, then the columns, 8-aligned."""
        head = _SECTION.pack(
            group,
            self.floor,
            self.start,
            self.before,
            self.first,
            self.base,
            self.total,
            len(self.columns.positions),
        )
        # The sets that are used, for a group has more than those of one segment.
        used = sorted(set(self.columns.tags) - {0})
        renamed = {0: 0} | {number: at for at, number in enumerate(used, 1)}
        tags = array("I", map(renamed.__getitem__, self.columns.tags))
        columns = (column.tobytes() for column in self.columns._replace(tags=tags))
        sets = _PACK([sorted(self.sets[number - 1]) for number in used])
        sets = U32.pack(len(sets)) + sets
        return [
            head,
            *chain.from_iterable((data, padding(len(data))) for data in (*columns, sets)),
        ]


def unpack_rows(data: memoryview, at: int, version: int = VERSION) -> tuple[int, Rows, int]:
    """Read the section at byte `at`: its group, its rows, the byte behind it.

    Raises `BadIndexFile` where it reaches past the end, or names sets of tags that are not there.
    """
    if len(data) - at < _SECTION.size:
        raise BadIndexFile("a section is cut short")
    group, floor, start, before, first, base, total, count = _SECTION.unpack_from(data, at)
    at += _SECTION.size
    columns = []
    for code in _CODES if version > _BEFORE_TAGS else _CODES_3:
        column = array(code)
        size = count * column.itemsize
        if len(data) - at < size:
            raise BadIndexFile(f"a section says {count:,} entries, which are not there")
        column.frombytes(data[at : at + size])
        columns.append(column)
        at += size + len(padding(size))
    sets: tuple[frozenset[str], ...] = ()
    if version <= _BEFORE_TAGS:
        columns.insert(_TAGS_AT, array("I", bytes(4 * count)))
    else:
        sets, at = _unpack_sets(data, at)
    named = Columns(*columns)
    if max(named.tags, default=0) > len(sets):
        raise BadIndexFile("a section numbers sets of tags that it does not have")
    return group, Rows(floor, start, before, first, base, total, named, sets), at


def _unpack_sets(data: memoryview, at: int) -> tuple[tuple[frozenset[str], ...], int]:
    if len(data) - at < U32.size:
        raise BadIndexFile("a section ends before its sets of tags")
    (size,) = U32.unpack_from(data, at)
    end = at + U32.size + size
    if end > len(data):
        raise BadIndexFile(f"a section says {size:,} bytes of tags, which are not there")
    try:
        sets = _UNPACK.decode(data[at + U32.size : end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadIndexFile(f"the sets of tags make no sense: {error}") from None
    return tuple(map(frozenset, sets)), end + len(padding(U32.size + size))


def gone(floor: int) -> Rows:
    """Return the rows of a group of which nothing below log position `floor` is needed any more."""
    return Rows(floor, GONE, 0, GONE, -1, 0, empty())


def empty() -> Columns:
    """Return columns without a row."""
    return Columns(*(array(code) for code in _CODES))


def index_name(segment: str) -> str:
    """Return the name of the index file of a segment file."""
    return f"{_PREFIX}{segment_number(segment):08d}"


def is_index(name: str) -> bool:
    """Whether a file of this name is an index file."""
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdecimal()


class IndexFile(msgspec.Struct, frozen=True):
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
    body, use, groups, end, version = _sound(disk, segment.name)
    if (use.generation, use.base, use.size) != (segment.generation, segment.base, segment.size):
        raise BadIndexFile(f"{index_name(segment.name)} is of another use of {segment.name}")
    at, found = _HEAD.size, []
    for _ in range(groups):
        group, rows, at = unpack_rows(body, at, version)
        found.append((group, rows))
    return IndexFile(segment, found, end)


def closed_use(disk: Readable, name: str) -> Segment | None:
    """Return the use of segment file `name` that its index file was written for, None if none is
    told; blocks. All of it was durable then, whatever has become of its header since.
    """
    try:
        _, use, _, end, _ = _sound(disk, name)
    except BadIndexFile:
        return None
    return use if not end else None  # a class segment is what the checkpoint says


def _sound(disk: Readable, segment: str) -> tuple[memoryview, Segment, int, int, int]:
    """Return an index file but for its CRC, the use of the segment that it is of, how many groups
    it tells of, up to which byte, and its version.
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
    if magic != MAGIC or version not in READABLE:
        raise BadIndexFile(f"{name} is no index file of version {VERSION}")
    return body, Segment(segment, generation, base, size), groups, end, version
