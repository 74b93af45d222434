"""Batches as Arrow columns, both ways (DESIGN §1, §4 Batch). Needs the extra `weir-mq[arrow]`.

A batch is opened in place: values, keys, times and headers stay its own bytes; Arrow points into
them and keeps them alive. Only tags are copied, because a batch holds each of them once.

Arrow columns become batches without a Python object a row: values, keys and headers are copied as
whole buffers. Keys are hashed once for each distinct one, and tags are told apart by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from weir.codec import ALIGNMENT, Buffer, padding
from weir.errors import BadBatch, BadRequest, TooLarge
from weir.model import columns as col
from weir.model.batch import HEADER_SIZE, Batch, Columns
from weir.model.batch_builder import assembled
from weir.model.columns import BytesColumn
from weir.model.limits import (
    BATCH_MESSAGES_MAX,
    HEADERS_PER_BATCH_MAX,
    KEY_BYTES_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_BATCH_MAX,
)
from weir.model.topic import partition_for

_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.map_(pa.string(), pa.binary())
_PAIRS = _HEADERS.field(0).type
_NO_PAIRS = pa.nulls(0, _PAIRS)

#: What every batch opens as, columns in this order; topic and partition are the reader's.
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("stamp", pa.int64()),
        ("time", _TIME),
        ("key", pa.binary()),
        ("tag", pa.string()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)
#: The device that sent a message, null for what clients publish; `sequence` is null where it asked
#: for no check of repeats. A hub is a u64, for which Spark has no other type.
_ORIGIN = pa.struct(
    [
        ("hub", pa.decimal128(20, 0)),
        ("sn", pa.int16()),
        ("generation", pa.int32()),
        ("boot", pa.int64()),
        ("sequence", pa.int64()),
        ("verified", pa.bool_()),
    ]
)
#: Beside these, two that open only where they are named: the version of the topic's schema that
#: each value has, 0 for none; and the origin.
EVERY = SCHEMA.append(pa.field("schema", pa.int32())).append(pa.field("origin", _ORIGIN))
#: The columns that messages are made of; the others of `SCHEMA` are the leader's and are left out.
_USED = ("value", "key", "tag", "time", "headers")
#: What a row takes besides its bytes: offsets, key hash, time, tag index. An estimate for cutting.
_ROW_BYTES = 24
_PAIR_BYTES = 8


def record_batch(
    batch: Batch,
    topic: str,
    partition: int,
    skip: int = 0,
    take: int | None = None,
    large: bytes | None = None,
    names: tuple[str, ...] = tuple(SCHEMA.names),
) -> pa.RecordBatch:
    """Open `batch` as Arrow, without its first `skip` messages, and at most `take` of the rest.

    `large` is the value of a batch that holds references to its chunks; it is null without.
    `names` are the columns of `EVERY` to open; the others are not looked at.
    Every offset is checked at C speed: malformed columns raise `BadBatch`. A batch that does not
    begin on a multiple of 8 bytes in memory, which Arrow must not read in place, is copied once.
    """
    count = len(batch)
    if not 0 <= skip <= count or (take is not None and take < 0):
        raise ValueError(f"skip {skip} and take {take} do not fit a batch of {count} messages")
    if not batch.header.compression and pa.py_buffer(batch.view).address % ALIGNMENT:
        batch = Batch(bytes(batch.view))
    rows = count - skip if take is None else min(take, count - skip)
    try:
        columns = [_column(name, batch, topic, partition, large) for name in names]
        opened = [column.slice(skip, rows) for column in columns]
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        raise BadBatch(f"the columns of the batch make no sense: {error}") from None
    return pa.RecordBatch.from_arrays(opened, schema=schema_of(names))


@lru_cache(maxsize=64)
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """Return the columns of `EVERY` with these names, in their order."""
    return pa.schema([EVERY.field(name) for name in names])


def _column(name: str, batch: Batch, topic: str, partition: int, large: bytes | None) -> pa.Array:
    """Return a column of all messages, checked."""
    n = len(batch)
    match name:
        case "topic":
            return _repeated(topic, pa.string(), n)
        case "partition" | "schema":
            number = partition if name == "partition" else batch.header.schema
            return _repeated(number, pa.int32(), n)
        case "offset":
            return _opened_offsets(batch)
        case "stamp":
            return _numbers(pa.int64(), np.full(n, batch.header.stamp, dtype=np.int64))
        case "time":
            times = batch.numbers(Columns.TIME)
            if times is None:
                return _numbers(_TIME, np.full(n, batch.header.base_time, dtype=np.int64))
            return _numbers(_TIME, times)
        case "key":
            if (keys := batch.key_column) is None:
                return pa.nulls(n, pa.binary())
            return _bytes(pa.binary(), keys[1], keys[0])
        case "tag":
            return _opened_tags(batch)
        case "value":
            if batch.references is not None:
                return pa.nulls(n, pa.binary()) if large is None else made(pa.binary(), [large])
            return _bytes(pa.binary(), batch.value_column)
        case _:
            return _opened_origins(batch) if name == "origin" else _opened_headers(batch)


def _bytes(kind: pa.DataType, column: BytesColumn, validity: memoryview | None = None) -> pa.Array:
    buffers = [validity, column.offsets, column.data]
    array = pa.Array.from_buffers(
        kind,
        len(column.offsets) - 1,
        [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers],
    )
    array.validate(full=True)
    return array


def _opened_offsets(batch: Batch) -> pa.Array:
    first, part = batch.header.first_offset, batch.slice_of
    rows = np.arange(len(batch), dtype=np.int64) if part is None else np.array(part.rows, np.int64)
    return _numbers(pa.int64(), rows + first)


def _opened_tags(batch: Batch) -> pa.Array:
    if (column := batch.tag_column) is None:
        return pa.nulls(len(batch), pa.string())
    names, places = column
    indices = _numbers(pa.int32(), places)
    return made(pa.string(), [name.encode() or None for name in names]).take(indices)


def _opened_origins(batch: Batch) -> pa.Array:
    n = len(batch)
    if (origins := batch.origins) is None:
        return pa.nulls(n, _ORIGIN)
    hubs = np.zeros((n, 2), np.uint64)
    hubs[:, 0] = np.asarray(origins.hubs)
    sequences = np.asarray(origins.sequences).astype(np.int64)
    counted = np.packbits(sequences != col.NO_SEQUENCE, bitorder="little")
    verified = np.packbits(np.full(n, batch.is_verified), bitorder="little")
    generations = np.asarray(origins.generations or np.zeros(n), np.int32)
    data = [
        (None, hubs),
        (None, np.asarray(origins.sns).astype(np.int16)),
        (None, generations),
        (None, np.asarray(origins.boots).astype(np.int64)),
        (counted, sequences),
        (None, verified),
    ]
    columns = [
        pa.Array.from_buffers(
            field.type, n, [None if known is None else pa.py_buffer(known), pa.py_buffer(numbers)]
        )
        for field, (known, numbers) in zip(_ORIGIN, data, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_ORIGIN))


def _opened_headers(batch: Batch) -> pa.Array:
    if (column := batch.headers_column) is None:
        return _no_headers(len(batch))
    arrays = [_bytes(pa.string(), column[1]), _bytes(pa.binary(), column[2])]
    pairs = pa.StructArray.from_arrays(arrays, fields=list(_PAIRS))
    buffers = [None, pa.py_buffer(column[0])]
    array = pa.Array.from_buffers(_HEADERS, len(batch), buffers, children=[pairs])
    array.validate(full=True)
    return array


def made(kind: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    """Return few values as an array of strings or of bytes.

    Arrow's own functions that take Python objects look whether pandas knows those, and so import
    it: that takes a third of a second in each process of Spark that reads.
    """
    sizes = [0, *(len(value or b"") for value in values)]
    offsets = np.cumsum(np.array(sizes, dtype=np.int32), dtype=np.int32)
    known = None
    if any(value is None for value in values):
        known = np.packbits([value is not None for value in values], bitorder="little")
    return _joined(kind, offsets, b"".join(value or b"" for value in values), known)


def _joined(
    kind: pa.DataType, offsets: np.ndarray, data: bytes, known: np.ndarray | None = None
) -> pa.Array:
    buffers = [None if known is None else pa.py_buffer(known), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, [*buffers, pa.py_buffer(data)])


def _numbers(kind: pa.DataType, numbers: memoryview | np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


# Batches that follow one another are mostly of one partition and of one size. Arrow's arrays never
# change, so they can share what says the same. Few are kept: a large batch has many rows.
@lru_cache(maxsize=4)
def _repeated(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    if isinstance(value, int):
        return _numbers(kind, np.full(rows, value, dtype=np.int32))
    data = value.encode()
    return _joined(kind, np.arange(rows + 1, dtype=np.int32) * len(data), data * rows)


@lru_cache(maxsize=1)
def _no_headers(rows: int) -> pa.Array:
    buffers = [None, pa.py_buffer(bytes(4 * (rows + 1)))]
    return pa.Array.from_buffers(_HEADERS, rows, buffers, children=[_NO_PAIRS])


class Rows(msgspec.Struct, frozen=True):
    """Messages as checked columns of one length; those that are not there are None.

    `hashes` are the xxh3-64 of the keys, 0 where there is none; `times` µs since 1970.
    """

    values: Any
    keys: Any = None
    hashes: Any = None
    tags: Any = None
    times: Any = None
    headers: Any = None

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.values)

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Rows:
        """Check a record batch and take its columns by name.

        Raises `BadRequest` for a column of no use, of another type, or with nulls where a message
        must have something, and `TooLarge` for a key or tag over its limit.
        """
        names = batch.schema.names
        if "value" not in names:
            raise BadRequest(f"no column 'value' among {names}: rename the one that holds values")
        strange = [name for name in names if name not in SCHEMA.names]
        if strange:
            raise BadRequest(
                f"columns {strange} mean nothing here: drop them, or rename to {_USED}"
            )
        found = {name: batch.column(name) for name in _USED if name in names}
        keys = None if "key" not in found else _binary("key", found["key"])
        if keys is not None:
            _check_width("key", keys, KEY_BYTES_MAX)
        return cls(
            _whole("value", _binary("value", found["value"])),
            keys,
            None if keys is None else _hashes(keys),
            None if "tag" not in found else _checked_tags(found["tag"]),
            None if "time" not in found else _times(found["time"]),
            None if "headers" not in found else _checked_headers(found["headers"]),
        )

    def cuts(self, batch_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Cut into batches of up to so many bytes: (first, behind the last, bytes) each."""
        ends = np.cumsum(self.sizes())
        first, before = 0, 0
        while first < len(ends):
            last = int(np.searchsorted(ends, before + batch_bytes, side="right"))
            last = min(max(last, first + 1), first + BATCH_MESSAGES_MAX)
            while self._tags(first, last) > TAGS_PER_BATCH_MAX:
                last = (first + last) // 2
            size = int(ends[last - 1]) - before
            yield first, last, size
            first, before = last, before + size

    def by_partition(
        self, partitions: int, without_key: int, closed: Collection[int] = ()
    ) -> Iterator[tuple[int, Rows]]:
        """Yield each partition's messages in their order, by the hash of their keys; none is one
        of the `closed`.
        """
        if self.hashes is None:
            yield without_key, self
            return
        chosen = self.partitions(partitions, closed)
        chosen[chosen < 0] = without_key
        yield from self.parted(chosen)

    def partitions(self, count: int, closed: Collection[int] = ()) -> Any:
        """Return the partition of each message's key, of so many, none of the `closed`; -1 where
        there is no key. int64 [n].
        """
        if self.hashes is None:
            return np.full(len(self), -1, np.int64)
        chosen = (self.hashes % np.uint64(count)).astype(np.int64)
        for row in np.flatnonzero(np.isin(chosen, [*closed])) if closed else ():
            key = self.keys[int(row)].as_py()
            chosen[row] = partition_for(key or b"", count, closed)
        chosen[~self._has_key()] = -1
        return chosen

    def parted(self, chosen: Any) -> Iterator[tuple[int, Rows]]:
        """Yield the messages of each number in `chosen`, int64 [n], in their order; numbers rise.

        All columns are copied once, however many numbers there are.
        """
        if not len(self):
            return
        order = np.argsort(chosen, kind="stable")
        numbers = chosen[order]
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(self)]
        ordered = self if len(starts) == 2 else self.taken(order)
        for first, behind in pairwise(starts):
            yield int(numbers[first]), ordered.slice(first, behind)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return messages behind one another; all parts have the same columns (one copy)."""
        if len(parts) == 1:
            return parts[0]
        columns = [
            [getattr(part, name) for part in parts]
            for name in ("values", "keys", "hashes", "tags", "times", "headers")
        ]
        return cls(
            *(
                None if one[0] is None
                else np.concatenate(one) if isinstance(one[0], np.ndarray)
                else pa.concat_arrays(one)
                for one in columns
            )
        )  # fmt: skip

    @property
    def columns(self) -> tuple[bool, ...]:
        """Which columns there are: values, keys, tags, times, headers."""
        each = (self.values, self.keys, self.tags, self.times, self.headers)
        return tuple(one is not None for one in each)

    def taken(self, rows: Any) -> Rows:
        """Return some rows, by their numbers."""
        indices = pa.array(rows)
        return self._each(lambda column: column.take(indices), lambda numbers: numbers[rows])

    def slice(self, first: int, behind: int) -> Rows:
        """Return rows [first, behind); nothing is copied."""
        return self._each(
            lambda column: column.slice(first, behind - first),
            lambda numbers: numbers[first:behind],
        )

    def _each(self, arrow: Callable[[Any], Any], numpy: Callable[[Any], Any]) -> Rows:
        columns = (self.values, self.keys, self.hashes, self.tags, self.times, self.headers)
        return Rows(
            *(
                None if c is None else numpy(c) if isinstance(c, np.ndarray) else arrow(c)
                for c in columns
            )
        )

    def encode(
        self,
        *,
        group: int,
        producer: int = 0,
        epoch: int = 0,
        sequence: int = 0,
        base_time: int = 0,
        compression: int = 0,
        level: int | None = None,
        schema: int = 0,
    ) -> bytearray:
        """Return the sealed batch that `weir.model.batch_builder.encode` makes of the same rows."""
        n, flags = len(self), Columns.VALUE
        if not 1 <= n <= BATCH_MESSAGES_MAX:
            raise TooLarge(
                f"{n:,} messages in a batch: 1 to {BATCH_MESSAGES_MAX:,}", BATCH_MESSAGES_MAX
            )
        bare: list[Buffer] = [bytes(HEADER_SIZE)]
        parts: list[Buffer] = []
        _put_binary(parts, self.values)
        if self.keys is not None:
            flags |= Columns.KEY
            _put_fixed(parts, np.packbits(self._has_key(), bitorder="little"))
            _put_binary(parts, self.keys.fill_null(b""))
            _put_fixed(parts, self.hashes.astype(np.uint32))
        if self.tags is not None:
            flags |= Columns.TAG
            names, indices = _listed(self.tags)
            col.put_tag_list(bare, names)
            _put_fixed(parts, indices)
        if self.times is not None:
            flags |= Columns.TIME
            _put_fixed(parts, self.times)
        if self.headers is not None:
            flags |= Columns.HEADERS
            _put_headers(parts, self.headers)
        fields = (int(flags), producer, epoch, n, sequence, base_time)
        return assembled(bare, parts, fields, group, compression, level, schema)

    def _tags(self, first: int, behind: int) -> int:
        """Return at least how many tags these rows have; no tag is one."""
        if self.tags is None or behind - first <= TAGS_PER_BATCH_MAX:
            return 0
        some = self.tags.slice(first, behind - first)
        return int(pc.count_distinct(some, mode="all").as_py())

    def _has_key(self) -> Any:
        return np.asarray(self.keys.is_valid())

    def sizes(self) -> Any:
        """Return about how many bytes of a batch each message takes. int64 [n]."""
        sizes = np.full(len(self), _ROW_BYTES, np.int64)
        for column in (self.values, self.keys):
            if column is not None:
                sizes += _widths(column)
        if self.headers is not None:
            offsets = np.asarray(self.headers.offsets)
            first, last = int(offsets[0]), int(offsets[-1])
            bytes_of = np.zeros(last - first + 1, np.int64)
            for part in (self.headers.keys, self.headers.items):
                bytes_of[1:] += _widths(part.slice(first, last - first)) + _PAIR_BYTES
            ends = np.cumsum(bytes_of)
            sizes += ends[offsets[1:] - first] - ends[offsets[:-1] - first]
        return sizes


def _binary(name: str, column: Any) -> Any:
    """Return a column as binary; text is UTF-8."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    kinds = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
        pa.types.is_fixed_size_binary, pa.types.is_null,
    )  # fmt: skip
    if not any(fits(kind) for fits in kinds):
        raise BadRequest(f"column {name!r} is {kind}: cast it to binary or string")
    try:
        return column.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise BadRequest(f"column {name!r}: {error}; give smaller record batches") from None


def _whole(name: str, column: Any) -> Any:
    if column.null_count:
        raise BadRequest(f"column {name!r} has {column.null_count:,} nulls: fill them first")
    return column


def _widths(column: Any) -> Any:
    return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)


def _check_width(name: str, column: Any, limit: int) -> None:
    widest = pc.max(pc.binary_length(column)).as_py()
    if widest is not None and widest > limit:
        raise TooLarge(f"a {name} has {widest:,} bytes, {limit:,} are allowed: shorten it", limit)


def _hashes(keys: Any) -> Any:
    """Return the xxh3-64 of each key, 0 for nulls; one call a distinct key."""
    distinct = keys.dictionary_encode()
    known = [xxhash.xxh3_64_intdigest(key) for key in distinct.dictionary.to_pylist()]
    places = np.asarray(distinct.indices.fill_null(len(known)))
    return np.array([*known, 0], np.uint64)[places]


def _checked_tags(column: Any) -> Any:
    _binary("tag", column)  # raises unless it is text, or what can be
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid:
        raise BadRequest("column 'tag' is not UTF-8: give text") from None
    _check_width("tag", text, TAG_BYTES_MAX)
    return text


def _listed(tags: Any) -> tuple[list[str], Any]:
    """Return a batch's tag list and indices into it; no tag is the empty one."""
    distinct = tags.fill_null("").dictionary_encode()
    names = distinct.dictionary.to_pylist()
    if len(names) > TAGS_PER_BATCH_MAX:
        raise TooLarge(f"{len(names):,} tags in a batch", TAGS_PER_BATCH_MAX)
    return names, np.asarray(distinct.indices).astype(np.int32)


def _times(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    elif not pa.types.is_integer(column.type):
        raise BadRequest(f"column 'time' is {column.type}: give timestamps, or whole µs since 1970")
    return np.asarray(_whole("time", column).cast(pa.int64()))


def _checked_headers(column: Any) -> Any:
    wanted = pa.map_(pa.string(), pa.binary())
    try:
        found = column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadRequest(f"column 'headers' is {column.type}: give map<string, binary>") from None
    lengths = np.diff(np.asarray(found.offsets))
    if found.null_count and lengths[~np.asarray(found.is_valid())].any():
        raise BadRequest("column 'headers' has nulls that hold pairs: fill them with empty maps")
    pairs = found.items
    if pairs.null_count:
        raise BadRequest("column 'headers' has pairs without a value: fill them first")
    return found


def _put_fixed(parts: list[Buffer], numbers: Any) -> None:
    data = numbers.tobytes()
    parts += (data, padding(len(data)))


def _put_binary(parts: list[Buffer], column: Any) -> None:
    """Append a bytes column: offsets from 0 on, then the data that they span."""
    _, offsets, data = column.buffers()
    n = len(column)
    ends = (
        np.frombuffer(offsets, np.int32, n + 1, column.offset * 4) if n else np.zeros(1, np.int32)
    )
    first, last = int(ends[0]), int(ends[-1])
    col.check_size(last - first)
    _put_fixed(parts, ends - np.int32(first))
    if data is not None:
        parts += (memoryview(data).cast("B")[first:last], padding(last - first))


def _put_headers(parts: list[Buffer], headers: Any) -> None:
    offsets = np.asarray(headers.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first > HEADERS_PER_BATCH_MAX:
        raise TooLarge(f"over {HEADERS_PER_BATCH_MAX:,} headers", HEADERS_PER_BATCH_MAX)
    _put_fixed(parts, (offsets - first).astype(np.int32))
    _put_binary(parts, headers.keys.slice(first, last - first).cast(pa.binary()))
    _put_binary(parts, headers.items.slice(first, last - first))
