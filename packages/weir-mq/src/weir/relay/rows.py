"""What a scanned range of offsets consists of, told so that it has no gap and no overlap.

A range [first, next) is a list of rows. Each row says how many offsets it covers and what became of
them, so rows lie end to end by construction; a skipped message and a lost one never look the same
(docs/COUNTEREXAMPLES.md 25). Batches are opaque bytes here: `Batches` looks into them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Annotated, NamedTuple, Protocol

from msgspec import Meta

from weir.codec import Buffer
from weir.errors import BadBatch, MissingLibrary
from weir.model.batch import Batch, Columns, check_whole, stored_header
from weir.model.ids import LIMIT_MAX, PARTITIONS_MAX, Natural
from weir.model.limits import (
    BATCH_BYTES_MAX,
    FILTER_TAGS_MAX,
    RELAY_ROWS_MAX,
    ROSTER_ENTRIES_TOLD_MAX,
    ROSTER_ENTRY_BYTES_MAX,
    TAG_BYTES_MAX,
)
from weir.model.slices import part_with

#: The tags that a filter lets through; "" stands for messages without a tag, None for all messages.
Tags = frozenset[str] | None
#: Tags as they travel: sorted, each once.
PackedTags = (
    Annotated[
        tuple[Annotated[str, Meta(max_length=TAG_BYTES_MAX)], ...],
        Meta(max_length=FILTER_TAGS_MAX),
    ]
    | None
)


class RowKind(IntEnum):
    """What became of the offsets of a row."""

    BATCH = 1  # a batch, or a slice of one: the last one of its stamp
    BATCH_MORE = 2  # the same, and more batches of its stamp follow
    SKIPPED = 3  # messages that the filter excludes
    VOID = 4  # offsets that hold no message, for anybody


class Row(NamedTuple):
    """One part of a scanned range.

    `stamp` is that of a batch; of skipped messages the highest one of which all lies below the end
    of the row, 0 if that is not known. `size` are the bytes of a batch, else 0.
    """

    kind: Annotated[int, Meta(ge=1, le=4)]
    count: Annotated[int, Meta(ge=1, le=LIMIT_MAX)]  # type: ignore[assignment]  # hides tuple.count
    stamp: Natural = 0
    size: Annotated[int, Meta(ge=0, le=BATCH_BYTES_MAX)] = 0


Rows = Annotated[tuple[Row, ...], Meta(max_length=RELAY_ROWS_MAX)]


class RosterEntry(NamedTuple):
    """An entry of partition 0: a partition belongs to the order of its topic. Messages that need it
    lie at `offset` or behind it. All filters let it through. Entries are numbered from 0 on without
    a hole. `data` begins with the number of partitions, u32, little-endian; later releases may add
    to it.
    """

    number: Natural
    offset: Natural
    data: Annotated[bytes, Meta(max_length=ROSTER_ENTRY_BYTES_MAX)]

    @property
    def partitions(self) -> int:
        """How many partitions belong to the order from here on, at least."""
        return int.from_bytes(self.data[:_COUNT_BYTES], "little")


def roster_entry(number: int, offset: int, partitions: int) -> RosterEntry:
    """Return the entry that says of how many partitions the order is."""
    return RosterEntry(number, offset, partitions.to_bytes(_COUNT_BYTES, "little"))


RosterEntries = Annotated[tuple[RosterEntry, ...], Meta(max_length=ROSTER_ENTRIES_TOLD_MAX)]

#: Those of the number of partitions in the data of a roster entry.
_COUNT_BYTES = 4
_BATCH, _MORE = int(RowKind.BATCH), int(RowKind.BATCH_MORE)
_SKIPPED, _VOID = int(RowKind.SKIPPED), int(RowKind.VOID)
_CHUNK, _REFERENCES = int(Columns.CHUNK), int(Columns.REFERENCES)
HOLDS_BATCH = (_BATCH, _MORE)


class Facts(NamedTuple):
    """What a relay has to know of a batch: the offsets that it covers, its stamp, and the runs
    (first index, number) of the chunks of the large value that it closes, by the core's Raft index.
    """

    first: int
    next: int
    stamp: int
    chunks: tuple[tuple[int, int], ...] = ()


class Batches(Protocol):
    """Looks into batches: the product's, or those of a model."""

    def check(self, data: Buffer, group: int) -> Facts:
        """Check CRC and hash of a batch that was sent to a group. Raises `BadBatch`."""

    def check_chunk(self, data: Buffer, group: int) -> None:
        """Check CRC and hash of a chunk of a large value. Raises `BadBatch`."""

    def chunks(self, data: Buffer) -> tuple[tuple[int, int], ...]:
        """Return the runs of chunks that a batch of the log refers to, as in `Facts`."""

    def select(self, data: Buffer, tags: frozenset[str], group: int) -> Buffer | None:
        """Return the batch, or a slice of it, if messages of it have such tags; else None."""


class StoredBatches:
    """Looks into the batches of the product. Where most of a batch matches, it goes whole: readers
    filter what is left by its tags.
    """

    def check(self, data: Buffer, group: int) -> Facts:
        """Check CRC and hash of a batch that was sent to a group. Raises `BadBatch`."""
        header = check_whole(data, group)
        columns = header.columns
        if header.total_size != len(data) or columns & _CHUNK:
            raise BadBatch("a row of one batch holds something else")
        runs = self.chunks(data) if columns & _REFERENCES else ()
        return Facts(header.first_offset, header.next_offset, header.stamp, runs)

    def check_chunk(self, data: Buffer, group: int) -> None:
        """Check CRC and hash of a chunk of a large value. Raises `BadBatch`."""
        header = check_whole(data, group)
        if header.total_size != len(data) or not header.columns & _CHUNK:
            raise BadBatch("what should be a chunk of a large value is none")

    def chunks(self, data: Buffer) -> tuple[tuple[int, int], ...]:
        """Return the runs of chunks that a batch of the log refers to, as in `Facts`."""
        if not stored_header(data).columns & _REFERENCES:
            return ()
        references = Batch(data).references
        return references.runs if references is not None else ()

    def select(self, data: Buffer, tags: frozenset[str], group: int) -> Buffer | None:
        """Return the batch, or a slice of it, if messages of it have such tags; else None."""
        try:
            return part_with(Batch(data), tags, group).bytes or None
        except MissingLibrary:
            return data  # it is compressed: readers can open it, or are told what is missing


def pack_tags(tags: Tags) -> tuple[str, ...] | None:
    """Return tags as they travel."""
    return None if tags is None else tuple(sorted(tags))


def unpack_tags(packed: tuple[str, ...] | None) -> Tags:
    """Return tags that travelled."""
    return None if packed is None else frozenset(packed)


def are_sound(packed: tuple[str, ...] | None) -> bool:
    """Whether tags are sorted, each once, and not too long."""
    if packed is None:
        return True
    rises = all(one < other for one, other in pairwise(packed))
    return rises and all(len(tag.encode()) <= TAG_BYTES_MAX for tag in packed)


def covers(tags: Tags, wanted: Tags) -> bool:
    """Whether a filter lets through all that another one does."""
    return tags is None or (wanted is not None and wanted <= tags)


def merged(one: Tags, other: Tags) -> Tags:
    """Return the tags that either filter lets through."""
    return None if one is None or other is None else one | other


def wrong_rows(first: int, next_: int, rows: Sequence[Row], size: int) -> str:
    """Return what is wrong with the rows of a range whose batches have `size` bytes; "" if all is
    well.
    """
    offsets = sizes = 0
    for kind, count, stamp, bytes_ in rows:
        if (kind in HOLDS_BATCH) != (bytes_ > 0):
            return f"a row of kind {kind} has {bytes_} bytes"
        if kind == _VOID and stamp:
            return "void offsets have a stamp"
        offsets += count
        sizes += bytes_
    if not first <= next_ <= LIMIT_MAX or offsets != next_ - first:
        return f"rows of {offsets:,} offsets do not make [{first}, {next_})"
    if sizes != size:
        return f"rows of {sizes:,} bytes of batches beside {size:,}"
    return ""


def wrong_roster(first: int, next_: int, entries: Sequence[RosterEntry]) -> str:
    """Return what is wrong with roster entries that came with a range; "" if all is well."""
    for at, entry in enumerate(entries):
        if entry.number != entries[0].number + at or not entry.offset <= next_:
            return f"roster entry {entry.number} at {entry.offset} came with [{first}, {next_})"
        if len(entry.data) < _COUNT_BYTES or not 1 <= entry.partitions <= PARTITIONS_MAX:
            return f"roster entry {entry.number} does not say how many partitions there are"
    return ""


class RowsBuilder:
    """Gathers rows in order, and the bytes of their batches. Neighbours of a kind become one row,
    unless they are batches.
    """

    __slots__ = ("data", "next", "rows", "size")

    def __init__(self, first: int) -> None:
        """Begin at an offset."""
        self.next = first
        self.size = 0
        self.rows: list[Row] = []
        self.data: list[Buffer] = []

    def batch(self, row: Row, data: Buffer) -> None:
        """Add a batch."""
        size = len(data)
        self.rows.append(row if row.size == size else row._replace(size=size))
        self.data.append(data)
        self.size += size
        self.next += row.count

    def skip(self, count: int, stamp: int = 0) -> None:
        """Add messages that the filter excludes; all up to `stamp` lies at or before them."""
        last = self.rows[-1] if self.rows else None
        if last is not None and last.kind == _SKIPPED:
            self.rows[-1] = Row(_SKIPPED, last.count + count, max(last.stamp, stamp))
        else:
            self.rows.append(Row(_SKIPPED, count, stamp))
        self.next += count

    def void(self, count: int) -> None:
        """Add offsets that hold no message for anybody."""
        last = self.rows[-1] if self.rows else None
        if last is not None and last.kind == _VOID:
            self.rows[-1] = Row(_VOID, last.count + count)
        else:
            self.rows.append(Row(_VOID, count))
        self.next += count

    def add(self, row: Row, kept: Buffer | None) -> None:
        """Add a row of another range; `kept` is what a filter left of its batch, if it has one."""
        if row.kind == _VOID:
            self.void(row.count)
        elif row.kind == _SKIPPED:
            self.skip(row.count, row.stamp)
        elif kept is not None:
            self.batch(row, kept)
        else:
            self.skip(row.count, row.stamp if row.kind == _BATCH else 0)


def within(
    first: int, rows: Sequence[Row], data: memoryview, since: int, until: int
) -> Iterator[tuple[int, Row, memoryview | None]]:
    """Return the rows of a range that begins at `first`, cut off at [since, until): each with the
    offset at which it begins, and its batch. A batch that is cut off keeps all its bytes: readers
    take of it what the row covers.
    """
    at, place = first, 0
    for row in rows:
        behind, size = at + row.count, row.size
        begin, end = max(at, since), min(behind, until)
        if begin < end:
            stamp, kind = row.stamp, row.kind
            if end < behind:  # its stamp, or all that is skipped at it, goes on behind the cut
                stamp = 0 if kind == _SKIPPED else stamp
                kind = _MORE if kind == _BATCH else kind
            batch = data[place : place + size] if size else None
            is_whole = end - begin == row.count
            yield begin, row if is_whole else Row(kind, end - begin, stamp, size), batch
        at, place = behind, place + size
