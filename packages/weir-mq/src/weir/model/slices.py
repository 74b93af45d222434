"""Slices: some messages of a batch as a batch, made where it is served (docs/adr/0102).

A slice has the columns of the original, with the rows that were picked alone, and the column SLICED
behind the tag list: the original's hash, and where each message lay in it. Sequence, base time,
schema, producer, epoch, stamp and first offset are the original's. Its header says how many
messages are here, and in bytes 52 to 56, where compressed batches have the size of their compressed
part, how many the original has: so its offsets reach over the whole of that one. It has a hash of
its own, over the bytes that the hash of any batch covers, and is never compressed. Its tag list has
the tags of its own messages.

A slice can be sliced again: rows, hash and number of messages stay those of the first original.
Nobody publishes a slice, and none is stored where messages are published: relays store them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from itertools import accumulate, compress
from typing import NamedTuple, Protocol

from weir.codec import Buffer, padded
from weir.errors import BadBatch
from weir.model import columns as col
from weir.model.batch import HEADER_SIZE, Batch, Columns, Header, Packed, seal, stamped
from weir.model.columns import BytesColumn, Code, Cursor, Origins, SliceOf

_TAG, _SLICED = int(Columns.TAG), int(Columns.SLICED)
_PUBLICATION = int(Columns.PUBLICATION)
#: Sent whole, or not at all: one message, or messages of another protocol.
WHOLE = int(Columns.CHUNK | Columns.REFERENCES | Columns.PUBLICATION | Columns.FOREIGN)
#: A tag list with more tags is not read: where an entry lies says "look inside".
_LISTED_MAX = 32
_ROOM = bytes(HEADER_SIZE)
#: Makes the same bytes with Arrow. Loading that takes a second, which no event loop has: it is used
#: where somebody has loaded it already.
_FAST = "weir.model.arrow_slices"


Rows = Sequence[int]


class Gatherer(Protocol):
    """Copies rows of columns. Two do, and give the same bytes: see `gatherer`."""

    def matching(self, names: Sequence[str], places: memoryview, tags: Collection[str]) -> Rows:
        """Return the rows whose tags are wanted, by a batch's tag list and indices into it."""

    def put_bytes(self, parts: list[Buffer], column: BytesColumn, rows: Rows) -> None:
        """Append these rows of a bytes column."""

    def put_numbers(self, parts: list[Buffer], code: Code, column: memoryview, rows: Rows) -> None:
        """Append these rows of a column of numbers."""


class Plain:
    """Copies rows without any library."""

    def matching(self, names: Sequence[str], places: memoryview, tags: Collection[str]) -> Rows:
        """See `Gatherer`."""
        wanted = [name in tags for name in names]
        indices = col.tag_indices(places, len(names))
        return list(compress(range(len(indices)), map(wanted.__getitem__, indices)))

    def put_bytes(self, parts: list[Buffer], column: BytesColumn, rows: Rows) -> None:
        """See `Gatherer`."""
        data, ends = column.data, col.rising(column.offsets)
        col.put_bytes(parts, [data[ends[row] : ends[row + 1]] for row in rows])

    def put_numbers(self, parts: list[Buffer], code: Code, column: memoryview, rows: Rows) -> None:
        """See `Gatherer`."""
        col.put_fixed(parts, code, map(column.__getitem__, rows))


_PLAIN = Plain()


def gatherer() -> Gatherer:
    """Return what copies rows: with Arrow where it is loaded."""
    fast = sys.modules.get(_FAST)
    found: Gatherer = fast.GATHERER if fast is not None else _PLAIN
    return found


def tags_of(batch: Batch) -> list[str]:
    """Return the tags that a batch lists, "" for messages without one; no column is opened.

    Raises `BadBatch`.
    """
    if not batch.header.columns & _TAG:
        return [""]
    return Cursor(batch.view, HEADER_SIZE).tag_list()


def few_tags_of(batch: Buffer, columns: int, at: int = 0) -> tuple[str, ...]:
    """Return what `tags_of` does of the batch at byte `at`, whose header says `columns`; nothing
    where it lists so many that reading them takes long, or none that can be read, or its messages
    lie elsewhere.
    """
    if not columns & _TAG:
        return () if columns & _PUBLICATION else ("",)
    at += HEADER_SIZE
    if int.from_bytes(batch[at : at + 4], "little") > _LISTED_MAX:
        return ()
    try:
        return tuple(Cursor(memoryview(batch), at).tag_list())
    except BadBatch:
        return ()


def tags_within(payload: Buffer, headers: Sequence[Header]) -> tuple[str, ...]:
    """Return the tags that the batches of an entry list, by their headers, as `few_tags_of` does;
    nothing as soon as one lists too many.
    """
    found: list[tuple[str, ...]] = []
    at = 0
    for header in headers:
        found.append(few_tags_of(payload, header.columns, at))
        at += header.total_size
    return united(found)


def united(lists: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """Return all tags that an entry's batches list; nothing if that is not known of one of them."""
    if len(set(lists)) == 1:
        return next(iter(lists))
    return tuple({tag: None for tags in lists for tag in tags}) if all(lists) else ()


class Part(NamedTuple):
    """What of a batch has wanted tags: nothing (empty), all of it, or a slice of it."""

    bytes: Buffer
    #: How many messages were looked at to tell.
    examined: int


def part_with(batch: Batch, tags: frozenset[str], group: int, by: Gatherer | None = None) -> Part:
    """Return what is served of a batch to who wants messages with one of these tags.

    It is a slice where the values that match have less than half of the bytes, and the slice is
    shorter than the batch; else the whole batch. Raises `BadBatch` for one that does not open.
    """
    listed = tags_of(batch)
    matching = [tag for tag in listed if tag in tags]
    if not matching:
        return Part(b"", 0)
    header = batch.header
    if len(matching) == len(listed) or header.columns & WHOLE:
        return Part(batch.view, 0)
    by = by or gatherer()
    column = batch.tag_column
    assert column is not None  # it lists tags
    rows = by.matching(*column, tags)
    if not len(rows):
        return Part(b"", len(batch))
    if len(rows) == len(batch) or 2 * _bytes_of(batch.value_column, rows) >= len(
        batch.value_column.data
    ):
        return Part(batch.view, len(batch))
    made = bytes(slice_of(batch, rows, group, by))
    return Part(made if len(made) < header.total_size else batch.view, len(batch))


def _bytes_of(column: BytesColumn, rows: Rows) -> int:
    ends = column.offsets
    return sum(map(ends.__getitem__, [row + 1 for row in rows])) - sum(map(ends.__getitem__, rows))


def slice_of(batch: Batch, rows: Rows, group: int, by: Gatherer | None = None) -> bytearray:
    """Return the stamped slice of these rows of a batch, at least one, rising; sealed for `group`.

    Raises `BadBatch`.
    """
    by = by or gatherer()
    header = batch.header
    bare: list[Buffer] = [_ROOM]
    parts: list[Buffer] = []
    by.put_bytes(parts, batch.value_column, rows)
    if (keys := batch.key_column) is not None:
        _put_bits(parts, keys[0], rows)
        by.put_bytes(parts, keys[1], rows)
        by.put_numbers(parts, "I", keys[2], rows)
    if (tags := batch.tag_column) is not None:
        _put_tags(bare, parts, tags, rows)
    if (scattered := batch.scattered) is not None:
        bare.append(scattered.pack())
    before = batch.slice_of
    whole = header.count if before is None else header.packed_size
    hash_ = header.hash if before is None else before.hash
    numbers = rows if before is None else [before.rows[row] for row in rows]
    bare.append(SliceOf(hash_, numbers).pack())
    if (dues := batch.numbers(Columns.DUE)) is not None:
        by.put_numbers(bare, "q", dues, rows)
    for flag in (Columns.TIME, Columns.EXPIRES):
        if (column := batch.numbers(flag)) is not None:
            by.put_numbers(parts, "q", column, rows)
    if (headers := batch.headers_column) is not None:
        _put_headers(parts, headers, rows, by)
    if (origins := batch.origins) is not None:
        _put_origins(parts, origins, rows)
    made = bytearray().join((*bare, *parts))
    fields = (
        header.columns | _SLICED, header.producer, header.epoch, len(rows), header.sequence,
        header.base_time,
    )  # fmt: skip
    seal(made, fields, group, Packed(0, len(made) - HEADER_SIZE, whole), header.schema)
    made[:HEADER_SIZE] = stamped(memoryview(made), header.stamp, header.first_offset)
    return made


def _put_bits(parts: list[Buffer], bits: memoryview, rows: Rows) -> None:
    picked = bytearray(padded((len(rows) + 7) // 8))
    for at, row in enumerate(rows):
        if bits[row >> 3] & 1 << (row & 7):
            picked[at >> 3] |= 1 << (at & 7)
    parts.append(bytes(picked))


def _put_tags(
    bare: list[Buffer], parts: list[Buffer], tags: tuple[list[str], memoryview], rows: Rows
) -> None:
    """Append the tag list, of the tags that these rows have, and the indices into it."""
    names, places = tags
    indices = list(map(places.__getitem__, rows))
    used = sorted(set(indices))
    numbers = {place: number for number, place in enumerate(used)}
    col.put_tag_list(bare, [names[place] for place in used])
    col.put_fixed(parts, "i", map(numbers.__getitem__, indices))


def _put_headers(
    parts: list[Buffer],
    headers: tuple[memoryview, BytesColumn, BytesColumn],
    rows: Rows,
    by: Gatherer,
) -> None:
    ends, names, values = headers
    pairs = [pair for row in rows for pair in range(ends[row], ends[row + 1])]
    sizes = (ends[row + 1] - ends[row] for row in rows)
    col.put_fixed(parts, "i", accumulate(sizes, initial=0))
    by.put_bytes(parts, names, pairs)
    by.put_bytes(parts, values, pairs)


def _put_origins(parts: list[Buffer], origins: Origins, rows: Rows) -> None:
    each = (origins.hubs, origins.boots, origins.sequences, origins.sns, origins.generations)
    col.put_origins(
        parts, Origins(*([column[row] for row in rows] if column else () for column in each))
    )
