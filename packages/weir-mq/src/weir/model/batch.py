"""The batch: one binary form for wire, disk, replication and Spark (DESIGN §1 and §4).

It begins with a header of 88 bytes, little-endian:

    offset size field
    0      4    magic "weir"                    32  8  first sequence
    4      1    version, 1                      40  8  base time, µs since 1970
    5      1    compression: 0 none, 1 lz4,     48  4  size of the columns, uncompressed
                2 zstd                          52  4  size of the compressed part, 0 without
    6      2    header size, 88                 56  8  xxh3-64, seeded with the group id
    8      4    total size, header included     64  8  stamp         (written by the leader)
    12     4    columns and flags               72  8  first offset  (written by the leader)
    16     8    producer id                     80  4  schema, 0 without
    24     4    epoch                           84  4  CRC-32C of bytes 0 to 84
    28     4    number of messages

The hash covers bytes 0 to 56, the schema unless it is 0, and everything behind the header as it
lies, compressed or not, so the leader can stamp a batch without touching its columns. The schema is
the number of a version of the topic's schema, which all values of the batch have; releases that
support format level 1 alone refuse a batch with one. Its seed is the group id: bytes in the
wrong place never pass. The CRC covers the stamped fields too.

Behind the header lie the columns (`weir.model.columns`). With compression, the TAG list and the
CHUNK, SCATTERED and DUE columns, if there are any, lie as they are; everything behind them is one
compressed part of the size that byte 52 tells, padded with zeros to a multiple of 8: an LZ4 block
(without a size of its own), or a zstd frame that tells its content size. Inflated, it makes the
columns' size at byte 48, which are at most 256 times the batch's total size. A batch with origins
or references is never compressed.

A batch with PUBLICATION holds no messages: it publishes as many as its header says, which lie in
staged batches (`weir.model.columns.Publication`). Readers never get it.

A batch with VERIFIED holds only messages of devices that proved their identity, and a batch with
origins and without VERIFIED only messages of devices that did not: the two never share a batch.
Only with it there may be GENERATION, where one of the devices was replaced before. Releases that
support format level 2 alone refuse both.

A batch with SLICED holds some messages of another one, and is never stored: `weir.model.slices`.

A batch with CHUNK holds a part of a value too large for one batch. It has one "message", uses one
sequence, and takes no offset: its first offset is that of the next message (`weir.model.columns`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from functools import partial
from itertools import pairwise, repeat
from typing import NamedTuple

from weir.codec import (
    ALIGNMENT,
    SMALL_BYTES,
    Buffer,
    crc32c,
    extended,
    inflate,
    padded,
    xxh3,
    xxh3_of,
)
from weir.errors import BadBatch
from weir.model import columns as col
from weir.model.columns import (
    NO_SEQUENCE,
    BytesColumn,
    Cursor,
    Origins,
    Piece,
    Publication,
    References,
    Scattered,
    SliceOf,
    piece_at,
)
from weir.model.limits import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    INFLATION_MAX,
    PUBLICATION_PARTS_MAX,
    SCATTER_PARTS_MAX,
)
from weir.model.message import LargeMessage, Message, Origin

MAGIC = b"weir"
VERSION = 1
HEADER_SIZE = 88
_HASHED = 56
_STAMP_AT = 64
_SEALED = 84
#: Each message has at least an int32 offset in the value column, which has one more.
_OFFSET_SIZE = 4
_OFFSET_MAX = (1 << 63) - 1

_HEADER = struct.Struct("<4sBBHIIQIIQqIIQqqII")
_SENDER = struct.Struct("<QI")
_SEQUENCE = struct.Struct("<Q")
_STAMPED = struct.Struct("<qq")
_SCHEMA = slice(80, 84)
_NO_SCHEMA = bytes(4)
_HASH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
#: The offsets of a bytes column of one message.
_OFFSETS_OF_ONE = struct.Struct("<ii")


class Columns(IntFlag):
    """Which columns and encodings a batch has. VALUE is always there."""

    VALUE = 1
    KEY = 2
    TAG = 4
    TIME = 8
    DUE = 16
    EXPIRES = 32
    HEADERS = 64
    ORIGIN = 128
    FOREIGN = 1 << 16
    CHUNK = 1 << 17
    REFERENCES = 1 << 18
    SCATTERED = 1 << 19
    PUBLICATION = 1 << 20
    GENERATION = 1 << 21
    VERIFIED = 1 << 22
    SLICED = 1 << 23


# Plain numbers: flag arithmetic would cost more than all else that finding a column takes.
_VALUE, _KEY, _TAG = int(Columns.VALUE), int(Columns.KEY), int(Columns.TAG)
_TIME, _DUE, _EXPIRES = int(Columns.TIME), int(Columns.DUE), int(Columns.EXPIRES)
_HEADERS, _ORIGIN, _CHUNK = int(Columns.HEADERS), int(Columns.ORIGIN), int(Columns.CHUNK)
_REFERENCES, _SCATTERED = int(Columns.REFERENCES), int(Columns.SCATTERED)
_PUBLICATION = int(Columns.PUBLICATION)
_GENERATION, _VERIFIED = int(Columns.GENERATION), int(Columns.VERIFIED)
_SLICED = int(Columns.SLICED)
#: What is checked beside the values, where a batch has it.
_MORE = _CHUNK | _REFERENCES | _SCATTERED | _PUBLICATION | _KEY | _TAG | _HEADERS
_NO_HEADERS: Mapping[str, bytes] = {}
#: Makes a message of a whole row.
_new_message = partial(tuple.__new__, Message)
#: The columns that this release reads and writes; a batch with others is refused, never guessed.
KNOWN = sum(int(one) for one in Columns if one is not Columns.FOREIGN)
#: Replicas read these columns when they apply a committed batch, and must not have to inflate them.
_NEVER_COMPRESSED = int(Columns.ORIGIN | Columns.REFERENCES | Columns.PUBLICATION)
#: What lies between the tag list and the times that messages are due.
_UNCOMMON = _CHUNK | _SCATTERED | _SLICED
_NEVER_SLICED = int(Columns.CHUNK | Columns.REFERENCES | Columns.PUBLICATION)
#: What no batch of a scattering has.
_NEVER_SCATTERED = int(Columns.ORIGIN | Columns.CHUNK | Columns.REFERENCES | Columns.DUE)
#: What only batches of devices have that proved who they are, and what such batches may have.
_PROVEN = _GENERATION | _VERIFIED
_OF_PROVEN = _PROVEN | int(Columns.ORIGIN) | _VALUE | _KEY | _TAG
#: All columns that any batch may have are below this; the flags above say what a batch is.
_PLAIN = 0xFF


class Compression(IntEnum):
    """How the columns behind the tag list are compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


_COMPRESSIONS = (int(Compression.LZ4), int(Compression.ZSTD))


class Header(NamedTuple):
    """A batch header's fields, in the order of the wire."""

    magic: bytes
    version: int
    compression: int
    header_size: int
    total_size: int
    columns: int
    producer: int
    epoch: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants here
    sequence: int
    base_time: int
    raw_size: int
    packed_size: int
    hash: int
    stamp: int
    first_offset: int
    schema: int
    crc: int

    @property
    def next_offset(self) -> int:
        """The offset behind the last message; a chunk holds none, a slice its whole original's."""
        if self.columns & _SLICED:
            return self.first_offset + self.packed_size
        return self.first_offset if self.columns & _CHUNK else self.first_offset + self.count


def parse(view: Buffer, at: int = 0) -> Header:
    """Read and bound-check the header at byte `at`; neither CRC nor hash. Raises `BadBatch`.

    After it, `at + total_size` lies within `view` and every field is one this release knows.
    """
    if len(view) - at < HEADER_SIZE:
        raise BadBatch(f"{len(view) - at} bytes are too few for a batch header ({HEADER_SIZE})")
    fields = _HEADER.unpack_from(view, at)
    header = tuple.__new__(Header, fields)
    # By plain names, for each batch comes by here, and a field takes as long to find as to check.
    (
        magic, version, compression, header_size, size, columns, _, _, count, _, _, raw_size,
        packed_size, _, stamp, first_offset, _, _,
    ) = fields  # fmt: skip
    if magic != MAGIC or version != VERSION or header_size != HEADER_SIZE:
        raise BadBatch(f"not a batch of version {VERSION}: it begins {bytes(view[at : at + 8])!r}")
    if not HEADER_SIZE < size <= len(view) - at or size > BATCH_BYTES_MAX:
        raise BadBatch(
            f"batch says {size:,} bytes; {len(view) - at:,} are there and "
            f"{BATCH_BYTES_MAX:,} allowed"
        )
    published = columns & _PUBLICATION  # its messages lie elsewhere, as many as it says
    if not 1 <= count <= BATCH_MESSAGES_MAX and not (published and count):
        raise BadBatch(f"batch says {count:,} messages (1 to {BATCH_MESSAGES_MAX:,})")
    if columns > _PLAIN or not columns & _VALUE:
        _check_flags(header)
    if compression:
        _check_compression(header)
    elif raw_size != size - HEADER_SIZE or (packed_size and not columns & _SLICED):
        raise BadBatch(f"batch says {raw_size:,} bytes of columns in {size:,}")
    if size % ALIGNMENT:
        raise BadBatch(f"batch of {size:,} bytes, no multiple of {ALIGNMENT}")
    if raw_size < _OFFSET_SIZE * (count + 1) and not published:  # a false count would eat offsets
        raise BadBatch(f"{count:,} messages cannot lie in {raw_size:,} bytes")
    if stamp < 0 or not 0 <= first_offset <= _OFFSET_MAX - count:
        raise BadBatch(f"no leader wrote offset {first_offset} and stamp {stamp}")
    return header


def _check_flags(header: Header) -> None:
    flags = header.columns
    if flags & ~KNOWN or not flags & _VALUE:
        raise BadBatch(f"batch has columns {flags:#x}; known are {KNOWN:#x}")
    if flags & _PUBLICATION and flags != _VALUE | _SCATTERED | _PUBLICATION:
        raise BadBatch(f"no publication has columns {flags:#x}")
    if flags & _SLICED:
        _check_slice(header)
        flags ^= _SLICED
        if flags <= _PLAIN:
            return
    if flags & _PROVEN:
        if flags & ~_OF_PROVEN or not flags & _VERIFIED or not flags & int(Columns.ORIGIN):
            raise BadBatch(f"no batch of verified devices has columns {flags:#x}")
        return
    if flags & _SCATTERED:
        if flags & _NEVER_SCATTERED:
            raise BadBatch(f"no batch of a scattering has columns {flags:#x}")
        return
    whole = not flags & int(Columns.ORIGIN) if not flags & _CHUNK else flags == _VALUE | _CHUNK
    if header.count != 1 or not whole:
        raise BadBatch(f"no chunk and no reference has columns {flags:#x}, {header.count:,} times")


def _check_slice(header: Header) -> None:
    of = header.packed_size
    if header.columns & _NEVER_SLICED or header.compression:
        raise BadBatch(f"no slice has columns {header.columns:#x}, or is compressed")
    if not header.count <= of <= min(BATCH_MESSAGES_MAX, _OFFSET_MAX - header.first_offset):
        raise BadBatch(f"a slice says {header.count:,} messages of {of:,}")


def _check_compression(header: Header) -> None:
    if header.compression not in _COMPRESSIONS:
        raise BadBatch(f"batch has compression {header.compression}; known are 0, 1 and 2")
    if header.columns & _NEVER_COMPRESSED:
        raise BadBatch("a batch with origins or references, or a publication, is never compressed")
    if header.raw_size + HEADER_SIZE > BATCH_BYTES_MAX:
        raise BadBatch(
            f"batch says {header.raw_size:,} bytes of columns; {BATCH_BYTES_MAX:,} are allowed"
        )
    if header.raw_size > INFLATION_MAX * header.total_size:
        raise BadBatch(
            f"batch of {header.total_size:,} bytes says {header.raw_size:,} bytes of columns, over "
            f"{INFLATION_MAX} times as many: send it uncompressed"
        )
    stored = header.total_size - HEADER_SIZE
    if not 0 < padded(header.packed_size) <= stored < header.raw_size:
        raise BadBatch(
            f"{header.packed_size:,} bytes of {stored:,} cannot be {header.raw_size:,} compressed"
        )


class Packed(NamedTuple):
    """How the columns of a batch lie: compression, their size without it, and the packed part's."""

    compression: int
    raw_size: int
    packed_size: int


def seal(
    batch: bytearray, fields: tuple[int, ...], group: int, packed: Packed | None = None,
    schema: int = 0,
) -> None:  # fmt: skip
    """Write header, hash and CRC over the first 88 bytes of `batch`, whose columns are in place.

    `fields`: columns, producer, epoch, count, sequence, base_time; `packed` None: uncompressed.
    """
    columns, producer, epoch, count, sequence, base_time = fields
    size = len(batch)
    compression, raw_size, packed_size = packed or (0, size - HEADER_SIZE, 0)
    _HEADER.pack_into(
        batch, 0, MAGIC, VERSION, compression, HEADER_SIZE, size, columns, producer, epoch, count,
        sequence, base_time, raw_size, packed_size, 0, 0, 0, schema, 0,
    )  # fmt: skip
    view = memoryview(batch)
    _put_hash(batch, view, group)
    _CRC.pack_into(batch, _SEALED, extended(0, bytes(view[:_SEALED])))


def _put_hash(batch: bytearray, view: memoryview, group: int) -> None:
    hashed, schema = bytes(view[:_HASHED]), bytes(view[_SCHEMA])
    if schema != _NO_SCHEMA:
        hashed += schema
    _HASH.pack_into(batch, _HASHED, xxh3((hashed, view[HEADER_SIZE:]), group))


def stamped(view: Buffer, stamp: int, first_offset: int) -> bytes:
    """Return the batch's 88 header bytes with the leader's fields and a new CRC (a copy)."""
    head = b"".join((view[:_STAMP_AT], _STAMPED.pack(stamp, first_offset), view[_SCHEMA]))
    return head + _CRC.pack(extended(0, head))


def renumbered(view: Buffer, group: int, producer: int, epoch: int, sequence: int) -> bytearray:
    """Return a copy of a sealed batch as another producer's, with a new hash and CRC."""
    batch = bytearray(view)
    _SENDER.pack_into(batch, 16, producer, epoch)
    _SEQUENCE.pack_into(batch, 32, sequence)
    copy = memoryview(batch)
    _put_hash(batch, copy, group)
    _CRC.pack_into(batch, _SEALED, crc32c(copy[:_SEALED]))
    return batch


def check(header: Header, head: Buffer, body: Buffer, group: int) -> None:
    """Raise `BadBatch` unless CRC and hash say that these bytes were sent to `group`.

    `head` is the 88 header bytes, `body` the `total_size - 88` bytes behind them.
    """
    if extended(0, bytes(head[:_SEALED])) != header.crc:
        raise BadBatch("the batch header fails its CRC-32C")
    hashed = bytes(head[:_HASHED])
    if header.schema:
        hashed += head[_SCHEMA]
    if xxh3((hashed, body), group) != header.hash:
        raise BadBatch(f"the batch fails its hash for group {group}")


def crc_holds(view: Buffer) -> bool:
    """Return whether 88 bytes are there and end in the right CRC-32C: somebody meant them so."""
    if len(view) < HEADER_SIZE:
        return False
    (crc,) = _CRC.unpack_from(view, _SEALED)
    return crc32c(bytes(view[:_SEALED])) == int(crc)


def check_whole(view: Buffer, group: int, at: int = 0) -> Header:
    """Parse and check the batch at byte `at` of `view`; return its header. Raises `BadBatch`."""
    header = parse(view, at)
    whole = memoryview(view)[at : at + header.total_size]
    check(header, whole[:HEADER_SIZE], whole[HEADER_SIZE:], group)
    return header


def stored_header(view: Buffer, at: int = 0) -> Header:
    """Return the header at byte `at` of a batch that was checked when it was stored; the rest of
    the batch need not lie behind it.
    """
    return tuple.__new__(Header, _HEADER.unpack_from(view, at))


def schema_of(batch: Buffer) -> int:
    """Return the number of the schema's version that a batch names; 0 for bytes that are none."""
    return int.from_bytes(batch[_SCHEMA], "little") if len(batch) > HEADER_SIZE else 0


def headers(payload: Buffer) -> list[Header]:
    """Parse the headers of concatenated batches (an entry's payload); bytes left over are bad."""
    found, at = [], 0
    while at < len(payload):
        header = parse(payload, at)
        found.append(header)
        at += header.total_size
    return found


def check_batches(payload: Buffer | Sequence[Buffer], group: int) -> list[Header]:
    """Check every batch of an entry's payload against `group`; return the headers."""
    view = payload if isinstance(payload, bytes | bytearray | memoryview) else b"".join(payload)
    found, at = [], 0
    while at < len(view):
        header = check_whole(view, group, at)
        found.append(header)
        at += header.total_size
    if not found:
        raise BadBatch("an entry without a batch")
    return found


class Batch:
    """A batch opened in place. Columns are found on first use and split only on request.

    `Batch(view)` checks the header's bounds (`BadBatch`); call `check(group)` for CRC and hash, or
    say to which group it was sent.
    """

    __slots__ = ("_found", "header", "view")

    def __init__(self, view: Buffer, at: int = 0, sent_to: int = -1) -> None:
        """Open the batch that begins at byte `at` of `view`; bytes behind it are left alone. One
        that was `sent_to` a group is checked for it.
        """
        header = self.header = parse(view, at)
        self.view = memoryview(view)[at : at + header.total_size]
        self._found: dict[int, object] | None = None
        if sent_to >= 0:
            check(header, self.view[:HEADER_SIZE], self.view[HEADER_SIZE:], sent_to)

    def __len__(self) -> int:
        return self.header.count

    def __repr__(self) -> str:
        h = self.header
        return f"<Batch {h.count} messages from offset {h.first_offset}, {h.total_size} bytes>"

    def check(self, group: int) -> Batch:
        """Raise `BadBatch` unless CRC and hash hold for `group`; return the batch itself."""
        header = self.header
        if header.total_size <= SMALL_BYTES and not header.schema:  # copied once, and all is said
            whole = bytes(self.view)
            hashed = xxh3_of(whole[:_HASHED] + whole[HEADER_SIZE:], group)
            if hashed == header.hash and extended(0, whole[:_SEALED]) == header.crc:
                return self
        check(self.header, self.view[:HEADER_SIZE], self.view[HEADER_SIZE:], group)
        return self

    def check_layout(self) -> None:
        """Raise `BadBatch` unless every column lies within the batch; no message is looked at.

        A compressed batch is inflated for it, here and in all that follows; never beyond 8 MiB.
        """
        self._column(_VALUE)

    def check_columns(self) -> None:
        """Raise `BadBatch` for whatever a reader of any column would raise it for.

        Column by column at C speed, so that a broker can do it before it takes a batch.
        """
        header = self.header
        if header.count == 1 and header.columns == _VALUE and not header.compression:
            first, end = _OFFSETS_OF_ONE.unpack_from(self.view, HEADER_SIZE)
            size = HEADER_SIZE + _OFFSETS_OF_ONE.size + padded(end)
            if not first and end >= 0 and size == header.total_size:
                return  # a value alone: that is all there is to it
        if self._found is None:
            self._found = self._locate()
        self._found[_VALUE].check()  # type: ignore[attr-defined]
        if not self.header.columns & _MORE:
            return
        if (piece := self.piece) is not None and piece.size != len(self.value_column.data):
            raise BadBatch(f"a chunk says {piece.size:,} bytes and holds others")
        # They raise for what makes no sense.
        _ = self.references, self.scattered, self.publication
        if (keys := self.key_column) is not None:
            keys[1].check()
        if (tags := self.tag_column) is not None:
            col.check_tag_indices(tags[1], len(tags[0]))
        if (headers := self.headers_column) is not None:
            ends, names, values = headers
            col.check_rising(ends)
            col.check_names(names)
            values.check()

    def _column(self, flag: int) -> object:
        if self._found is None:
            self._found = self._locate()
        return self._found.get(flag)

    @property
    def _parts_max(self) -> int:
        published = self.header.columns & _PUBLICATION
        return PUBLICATION_PARTS_MAX if published else SCATTER_PARTS_MAX

    @property
    def _rows(self) -> int:
        """How many messages lie here: those of a publication lie elsewhere."""
        return 1 if self.header.columns & _PUBLICATION else self.header.count

    def _locate(self) -> dict[int, object]:
        flags, n = self.header.columns, self._rows
        cursor = Cursor(self.view, HEADER_SIZE)
        found: dict[int, object] = {}
        tag_list = cursor.tag_list() if flags & _TAG else []
        if flags & _UNCOMMON:
            self._locate_uncommon(cursor, found)
        if flags & _DUE:
            found[_DUE] = cursor.numbers("q", n)
        if self.header.compression:
            cursor = Cursor(memoryview(self._inflated(cursor.at)), 0)
        found[_VALUE] = cursor.bytes(n)
        if flags & _KEY:
            validity = cursor.take((n + 7) // 8)
            found[_KEY] = (validity, cursor.bytes(n), cursor.numbers("I", n))
        if flags & _TAG:
            found[_TAG] = (tag_list, cursor.numbers("i", n))
        for flag in (_TIME, _EXPIRES):
            if flags & flag:
                found[flag] = cursor.numbers("q", n)
        if flags & _HEADERS:
            found[_HEADERS] = cursor.headers(n)
        if flags & _ORIGIN:
            found[_ORIGIN] = cursor.origins(n, bool(flags & _GENERATION))
        if cursor.at != len(cursor.view):
            raise BadBatch(f"columns end at {cursor.at:,}, the batch at {len(cursor.view):,}")
        return found

    def _locate_uncommon(self, cursor: Cursor, found: dict[int, object]) -> None:
        flags = self.header.columns
        if flags & _CHUNK:
            cursor.take(len(Piece(0, 0).pack()))
        if flags & _SCATTERED:
            cursor.take(Scattered.unpack(self.view[cursor.at :], self._parts_max).packed_size)
        if flags & _SLICED:
            found[_SLICED] = cursor.slice_of(self.header.count, self.header.packed_size)

    def _inflated(self, at: int) -> bytes:
        """Return what the compressed part, which begins at byte `at`, was made from."""
        header = self.header
        size = header.raw_size - (at - HEADER_SIZE)
        if size <= 0 or at + padded(header.packed_size) != header.total_size:
            raise BadBatch(f"{header.packed_size:,} compressed bytes do not lie from {at:,} on")
        return inflate(header.compression, self.view[at : at + header.packed_size], size)

    @property
    def piece(self) -> Piece | None:
        """Where a chunk's piece lies in its value; None for any other batch."""
        return piece_at(self.view, HEADER_SIZE) if self.header.columns & _CHUNK else None

    @property
    def references(self) -> References | None:
        """What a closing batch knows of its chunks; None for any other batch."""
        if not self.header.columns & _REFERENCES:
            return None
        return References.unpack(self.value_column.data)

    @property
    def publication(self) -> Publication | None:
        """Which staged batches it publishes; None for any other batch."""
        if not self.header.columns & _PUBLICATION:
            return None
        found = Publication.unpack(self.value_column.data)
        if found.messages != self.header.count:
            raise BadBatch(
                f"a publication of {found.messages:,} messages says {self.header.count:,}"
            )
        return found

    @property
    def scattered(self) -> Scattered | None:
        """What a part of a scattering knows of the whole; None for any other batch."""
        if not self.header.columns & _SCATTERED:
            return None
        cursor = Cursor(self.view, HEADER_SIZE)
        if self.header.columns & _TAG:
            cursor.tag_list()
        return Scattered.unpack(self.view[cursor.at :], self._parts_max)

    @property
    def slice_of(self) -> SliceOf | None:
        """Which batch it is a slice of, and which rows are here; None for a whole batch."""
        return self._column(_SLICED)  # type: ignore[return-value]

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each message."""
        first, part = self.header.first_offset, self.slice_of
        return range(first, first + len(self)) if part is None else part.offsets(first)

    @property
    def value_column(self) -> BytesColumn:
        """The values in place: int32 offsets [n+1] and data."""
        column: BytesColumn = self._column(_VALUE)  # type: ignore[assignment]
        return column

    @property
    def key_column(self) -> tuple[memoryview, BytesColumn, memoryview] | None:
        """Validity bitmap, keys, and u32 key hashes in place; None without keys."""
        return self._column(_KEY)  # type: ignore[return-value]

    @property
    def tag_column(self) -> tuple[list[str], memoryview] | None:
        """The tag list ("" stands for no tag) and int32 indices into it; None without tags."""
        return self._column(_TAG)  # type: ignore[return-value]

    @property
    def headers_column(self) -> tuple[memoryview, BytesColumn, BytesColumn] | None:
        """Offsets into the pairs, names, values; None without headers."""
        return self._column(_HEADERS)  # type: ignore[return-value]

    @property
    def is_verified(self) -> bool:
        """Whether devices sent it that proved who they are."""
        return bool(self.header.columns & _VERIFIED)

    @property
    def origins(self) -> Origins | None:
        """The origin column of a fan-in batch."""
        return self._column(_ORIGIN)  # type: ignore[return-value]

    def numbers(self, flag: Columns) -> memoryview | None:
        """Return the int64 column TIME, DUE or EXPIRES in place, in µs; None if it is not there."""
        return self._column(int(flag))  # type: ignore[return-value]

    def values(self, first: int = 0, behind: int | None = None) -> list[bytes]:
        """Split the values, one `bytes` a message: those of rows [first, behind), or all."""
        return self.value_column.to_list(first, behind)

    def keys(self, first: int = 0, behind: int | None = None) -> list[bytes | None]:
        """Split the keys; None where a message has none."""
        if (column := self.key_column) is None:
            return [None] * len(range(len(self))[first:behind])
        bits, keys = column[0], column[1].to_list(first, behind)
        if col.are_set(bits, first, first + len(keys)):
            return [*keys]
        return [key if bits[i >> 3] & (1 << (i & 7)) else None for i, key in enumerate(keys, first)]

    def tags(self) -> list[str | None]:
        """Return each message's tag, or None."""
        if (column := self.tag_column) is None:
            return [None] * len(self)
        names = [name or None for name in column[0]]
        return [names[i] for i in col.tag_indices(column[1], len(names))]

    def times(self) -> list[int]:
        """Return each message's time in µs since 1970."""
        column = self.numbers(Columns.TIME)
        return [self.header.base_time] * len(self) if column is None else column.tolist()

    def headers(self) -> list[Mapping[str, bytes]]:
        """Return each message's headers; the empty mapping where it has none."""
        if (column := self.headers_column) is None:
            return [_NO_HEADERS] * len(self)
        ends = col.rising(column[0])
        names = [col.text(name) for name in column[1].to_list()]
        values = column[2].to_list()
        return [dict(zip(names[a:b], values[a:b], strict=True)) for a, b in pairwise(ends)]

    def messages(
        self, topic: str = "", partition: int = -1, first: int = 0, behind: int | None = None
    ) -> Iterator[Message]:
        """Split into messages as people read them: those of rows [first, behind), or all."""
        part, references = slice(first, behind), self.references
        offsets = self.offsets[part]
        count = len(offsets)
        rows = zip(
            self.values(first, behind), self.keys(first, behind), self.tags()[part],
            self.times()[part], self.headers()[part], repeat(topic, count),
            repeat(partition, count), offsets, repeat(self.header.stamp, count),
            self._origins()[part] or repeat(None, count), repeat(self.header.schema, count),
            strict=True,
        )  # fmt: skip
        messages = map(_new_message, rows)
        if references is None:
            return messages
        return (LargeMessage(message, references.size) for message in messages)

    def _origins(self) -> list[Origin]:
        """Return who sent each message, where that is known; such batches have no references."""
        origins = self.origins
        if origins is None:
            return []
        verified = self.is_verified
        numbers = [None if one == NO_SEQUENCE else one for one in origins.sequences]
        generations = origins.generations or repeat(0, len(self))
        columns = origins.hubs, origins.sns, origins.boots, numbers, generations
        return [Origin(*row, verified) for row in zip(*columns, strict=True)]


def split(payload: Buffer, group: int) -> list[Batch]:
    """Open and check every batch of concatenated ones, in order. Raises `BadBatch`."""
    found, at = [], 0
    while at < len(payload):
        batch = Batch(payload, at).check(group)
        found.append(batch)
        at += batch.header.total_size
    return found
