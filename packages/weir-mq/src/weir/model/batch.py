"""The batch: one binary form for wire, disk, replication and Spark (DESIGN §1 and §4).

`encode` packs messages into columns; `Batch` opens the bytes in place and splits only what is
asked for. Nothing here is called per message by the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import pairwise

from weir.codec.compression import deflate, inflate
from weir.codec.fields import Buffer, padded, padding, total
from weir.errors import BadBatch, TooLarge
from weir.model import columns as col
from weir.model.chunks import Piece, References, piece_at
from weir.model.columns import NO_SEQUENCE, BytesColumn, Cursor, Origins
from weir.model.header import (
    HEADER_SIZE,
    Columns,
    Header,
    Packed,
    check,
    check_batches,
    check_whole,
    headers,
    parse,
    seal,
)
from weir.model.limits import (
    BATCH_MESSAGES_MAX,
    HEADERS_PER_BATCH_MAX,
    INFLATION_MAX,
    KEY_BYTES_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_BATCH_MAX,
)
from weir.model.message import LargeMessage, Message, Origin
from weir.model.scattering import Scattered

__all__ = ["Batch", "check_batches", "encode", "headers", "split"]

_ROOM = bytes(HEADER_SIZE)
# Plain numbers: flag arithmetic would cost more than all else that finding a column takes.
_VALUE, _KEY, _TAG = int(Columns.VALUE), int(Columns.KEY), int(Columns.TAG)
_TIME, _DUE, _EXPIRES = int(Columns.TIME), int(Columns.DUE), int(Columns.EXPIRES)
_HEADERS, _ORIGIN, _CHUNK = int(Columns.HEADERS), int(Columns.ORIGIN), int(Columns.CHUNK)
_REFERENCES, _SCATTERED = int(Columns.REFERENCES), int(Columns.SCATTERED)
#: What is checked beside the values, where a batch has it.
_MORE = _CHUNK | _REFERENCES | _SCATTERED | _KEY | _TAG | _HEADERS
_NO_HEADERS: Mapping[str, bytes] = {}

#: Value, key, tag, time and headers of a message.
_Row = tuple[bytes, bytes | None, str | None, int, Mapping[str, bytes]]


def encode(
    values: Sequence[Buffer],
    *,
    group: int,
    producer: int = 0,
    epoch: int = 0,
    sequence: int = 0,
    base_time: int = 0,
    keys: Sequence[bytes | None] | None = None,
    tags: Sequence[str | None] | None = None,
    times: Sequence[int] | None = None,
    dues: Sequence[int] | None = None,
    expires: Sequence[int] | None = None,
    headers: Sequence[Mapping[str, bytes]] | None = None,
    origins: Origins | None = None,
    chunk_at: int | None = None,
    references: References | None = None,
    scattered: Scattered | None = None,
    compression: int = 0,
    level: int | None = None,
) -> bytearray:
    """Return the sealed batch of `values` and whichever columns are given, one item a message.

    Times are microseconds since 1970. `chunk_at`: the one value is a piece of a larger one, from
    that byte on; `references`: it stands for a value of chunks, and `values` is left empty;
    `scattered`: it is a part of a scattering.
    `compression` is kept only where it makes the batch smaller, and not over 256 times smaller.
    Raises `TooLarge` over 8 MiB or 1,048,576 messages, `MissingLibrary`, and `ValueError` where a
    column's length is not that of `values`.
    """
    flags = _VALUE
    if references is not None:
        values, flags = [references.pack()], _VALUE | _REFERENCES
    if not 1 <= (n := len(values)) <= BATCH_MESSAGES_MAX:
        raise TooLarge(
            f"{n:,} messages in a batch: 1 to {BATCH_MESSAGES_MAX:,}", BATCH_MESSAGES_MAX
        )
    _check_lengths(n, origins, keys, tags, times, dues, expires, headers)
    bare: list[Buffer] = [_ROOM]
    parts: list[Buffer] = []
    tag_indices = None if tags is None else _put_tag_list(bare, tags)
    if chunk_at is not None:
        flags |= _CHUNK
        bare.append(Piece(chunk_at, len(values[0])).pack())
    if scattered is not None:
        flags |= _SCATTERED
        bare.append(scattered.pack())
    flags |= _put_numbers(bare, (_DUE, dues))
    col.put_bytes(parts, values)
    if keys is not None:
        flags |= _KEY
        _put_keys(parts, keys)
    if tag_indices is not None:
        flags |= _TAG
        col.put_fixed(parts, "i", tag_indices)
    if times is not None or expires is not None:
        flags |= _put_numbers(parts, (_TIME, times), (_EXPIRES, expires))
    if headers is not None:
        flags |= _HEADERS
        _put_headers(parts, headers)
    if origins is not None:
        flags |= _ORIGIN
        col.put_origins(parts, origins)
    if references is not None or origins is not None:
        compression = 0
    fields = (flags, producer, epoch, n, sequence, base_time)
    return assembled(bare, parts, fields, group, compression, level)


def assembled(
    bare: Sequence[Buffer],
    parts: Sequence[Buffer],
    fields: tuple[int, ...],
    group: int,
    compression: int = 0,
    level: int | None = None,
) -> bytearray:
    """Return the sealed batch of its buffers, each padded to 8 bytes; `fields` as for `seal`.

    `bare` begins with room for the header, and lies as it is; `parts` are compressed where that
    makes them smaller, and where readers may inflate it (`INFLATION_MAX`).
    Raises `TooLarge` and `MissingLibrary`.
    """
    if compression:
        col.check_size(total(bare) + total(parts))
        raw = b"".join(parts)
        packed = deflate(compression, raw, level)
        size = total(bare) + padded(len(packed))
        raw_size = total(bare) - HEADER_SIZE + len(raw)
        if padded(len(packed)) < len(raw) and raw_size <= INFLATION_MAX * size:
            batch = bytearray().join((*bare, packed, padding(len(packed))))
            seal(batch, fields, group, Packed(compression, raw_size, len(packed)))
            return batch
        parts = [raw]
    batch = bytearray().join((*bare, *parts))
    col.check_size(len(batch))
    seal(batch, fields, group)
    return batch


def _put_keys(parts: list[Buffer], keys: Sequence[bytes | None]) -> None:
    if any(key is not None and len(key) > KEY_BYTES_MAX for key in keys):
        raise TooLarge(f"a key is over {KEY_BYTES_MAX:,} bytes: shorten it", KEY_BYTES_MAX)
    col.put_keys(parts, keys)


def _put_numbers(parts: list[Buffer], *columns: tuple[int, Sequence[int] | None]) -> int:
    """Append those int64 columns that are there; return their flags."""
    flags = 0
    for flag, numbers in columns:
        if numbers is not None:
            flags |= flag
            col.put_fixed(parts, "q", numbers)
    return flags


def _put_headers(parts: list[Buffer], headers: Sequence[Mapping[str, bytes]]) -> None:
    if sum(map(len, headers)) > HEADERS_PER_BATCH_MAX:
        raise TooLarge(f"over {HEADERS_PER_BATCH_MAX:,} headers", HEADERS_PER_BATCH_MAX)
    col.put_headers(parts, headers)


def _check_lengths(n: int, origins: Origins | None, *columns: Sized | None) -> None:
    if origins is not None:
        columns += (origins.hubs, origins.epochs, origins.sequences, origins.sns)
    for column in columns:
        if column is not None and len(column) != n:
            raise ValueError(f"a column of {len(column)} for {n} values: give one for each")


def _put_tag_list(parts: list[Buffer], tags: Sequence[str | None]) -> list[int]:
    """Append the list of tags; return each message's index into it."""
    places: dict[str, int] = {}
    indices = [places.setdefault(tag or "", len(places)) for tag in tags]
    if len(places) > TAGS_PER_BATCH_MAX:
        raise TooLarge(f"{len(places):,} tags in a batch", TAGS_PER_BATCH_MAX)
    if any(len(tag.encode()) > TAG_BYTES_MAX for tag in places):
        raise TooLarge(f"a tag is over {TAG_BYTES_MAX} bytes of UTF-8: shorten it", TAG_BYTES_MAX)
    col.put_tag_list(parts, list(places))
    return indices


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
        self.header: Header = parse(view, at) if sent_to < 0 else check_whole(view, sent_to, at)
        self.view = memoryview(view)[at : at + self.header.total_size]
        self._found: dict[int, object] | None = None

    def __len__(self) -> int:
        return self.header.count

    def __repr__(self) -> str:
        h = self.header
        return f"<Batch {h.count} messages from offset {h.first_offset}, {h.total_size} bytes>"

    def check(self, group: int) -> Batch:
        """Raise `BadBatch` unless CRC and hash hold for `group`; return the batch itself."""
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
        if self._found is None:
            self._found = self._locate()
        self._found[_VALUE].check()  # type: ignore[attr-defined]
        if not self.header.columns & _MORE:
            return
        if (piece := self.piece) is not None and piece.size != len(self.value_column.data):
            raise BadBatch(f"a chunk says {piece.size:,} bytes and holds others")
        _ = self.references, self.scattered  # they raise for what makes no sense
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

    def _locate(self) -> dict[int, object]:
        flags, n = self.header.columns, self.header.count
        cursor = Cursor(self.view, HEADER_SIZE)
        found: dict[int, object] = {}
        tag_list = cursor.tag_list() if flags & _TAG else []
        if flags & _CHUNK:
            cursor.take(len(Piece(0, 0).pack()))
        if flags & _SCATTERED:
            cursor.take(Scattered.unpack(self.view[cursor.at :]).packed_size)
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
            found[_ORIGIN] = cursor.origins(n)
        if cursor.at != len(cursor.view):
            raise BadBatch(f"columns end at {cursor.at:,}, the batch at {len(cursor.view):,}")
        return found

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
    def scattered(self) -> Scattered | None:
        """What a part of a scattering knows of the whole; None for any other batch."""
        if not self.header.columns & _SCATTERED:
            return None
        cursor = Cursor(self.view, HEADER_SIZE)
        if self.header.columns & _TAG:
            cursor.tag_list()
        return Scattered.unpack(self.view[cursor.at :])

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
    def origins(self) -> Origins | None:
        """The origin column of a fan-in batch."""
        return self._column(_ORIGIN)  # type: ignore[return-value]

    def numbers(self, flag: Columns) -> memoryview | None:
        """Return the int64 column TIME, DUE or EXPIRES in place, in µs; None if it is not there."""
        return self._column(int(flag))  # type: ignore[return-value]

    def values(self) -> list[bytes]:
        """Split the values, one `bytes` a message."""
        return self.value_column.to_list()

    def keys(self) -> list[bytes | None]:
        """Split the keys; None where a message has none."""
        if (column := self.key_column) is None:
            return [None] * len(self)
        bits = column[0]
        return [
            key if bits[i >> 3] & (1 << (i & 7)) else None
            for i, key in enumerate(column[1].to_list())
        ]

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

    def messages(self, topic: str = "", partition: int = -1) -> Iterator[Message]:
        """Split into messages as people read them."""
        stamp, references = self.header.stamp, self.references
        rows = zip(
            self.values(), self.keys(), self.tags(), self.times(), self.headers(), strict=True
        )
        origins = self.origins
        if origins is not None:
            yield from self._from_devices(rows, origins, topic, partition)
            return
        for offset, (value, key, tag, time, pairs) in enumerate(rows, self.header.first_offset):
            message = Message(value, key, tag, time, pairs, topic, partition, offset, stamp)
            yield message if references is None else LargeMessage.of(message, references.size)

    def _from_devices(
        self, rows: Iterable[_Row], origins: Origins, topic: str, partition: int
    ) -> Iterator[Message]:
        """Split a batch of devices' messages, which never has references."""
        stamp = self.header.stamp
        senders = zip(origins.hubs, origins.sns, origins.epochs, origins.sequences, strict=True)
        pairs = zip(rows, senders, strict=True)
        for offset, (row, (hub, sn, boot, number)) in enumerate(pairs, self.header.first_offset):
            sequence = None if number == NO_SEQUENCE else number
            origin = Origin(hub, sn, boot, sequence)
            yield Message(*row, topic, partition, offset, stamp, origin)


def split(payload: Buffer, group: int) -> list[Batch]:
    """Open and check every batch of concatenated ones, in order. Raises `BadBatch`."""
    found, at = [], 0
    while at < len(payload):
        batch = Batch(payload, at).check(group)
        found.append(batch)
        at += batch.header.total_size
    return found
