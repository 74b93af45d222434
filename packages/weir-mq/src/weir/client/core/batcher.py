"""Messages of one partition, gathered into the columns of batches, or taken as columns.

There is no object per message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Container, Mapping, Sequence, Sized
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from weir.codec import Buffer, deflate
from weir.errors import BadRequest, MissingLibrary
from weir.model.batch import Compression
from weir.model.batch_builder import encode
from weir.model.limits import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    KIB,
    TAG_BYTES_MAX,
    TAG_RUN_BYTES,
    TAGS_PER_BATCH_MAX,
)
from weir.model.topic import partition_for

if TYPE_CHECKING:
    from weir.model.arrow import Rows

#: What a message takes beside its own bytes: offsets, key hash, padding. An estimate for cutting.
MESSAGE_OVERHEAD = 8
BATCH_BYTES = 256 * 1024
#: What columns take of a message beside its bytes, at most: also of one that has none of its own,
#: where another message of the batch has a key, a tag, a time or headers.
_KEY_BYTES, _TAG_BYTES, _TIME_BYTES, _HEADERS_BYTES = 9, 4, 8, 4
#: When it is due, and when it expires.
TIMING_BYTES = 16
_COLUMNS_BYTES = _KEY_BYTES + _TAG_BYTES + _TIME_BYTES + _HEADERS_BYTES + TIMING_BYTES
#: What a batch of several messages is cut for at most, whatever its producer chose: the rest is for
#: its tag list, which is longer than estimated where tags are not ASCII, and for padding.
_BATCH_BYTES_MAX = BATCH_BYTES_MAX - TAGS_PER_BATCH_MAX * TAG_BYTES_MAX - 64 * KIB
#: One less than a batch may have: no tag counts as one.
_TAGS_MAX = TAGS_PER_BATCH_MAX - 1

O = TypeVar("O")  # noqa: E741  # gets the outcome of the batch
T = TypeVar("T")

_NO_HEADERS: Mapping[str, bytes] = {}


class Packing(msgspec.Struct, frozen=True):
    """How a producer compresses: a number of `weir.model.batch.Compression`, and a level; and the
    version of the topic's schema that its values have, 0 for none.
    """

    kind: int = 0
    level: int | None = None
    schema: int = 0

    @classmethod
    def named(cls, name: str, level: int | None = None) -> Packing:
        """Return what users call "none", "lz4" or "zstd". Raises `BadRequest`, `MissingLibrary`."""
        if name not in _NAMES:
            raise BadRequest(f'compression={name!r}: give "none", "lz4" or "zstd"')
        kind = _NAMES[name]
        lowest, highest = _LEVELS[kind]
        if level is not None and not lowest <= level <= highest:
            raise BadRequest(f"level {level} of {name}: give {lowest} to {highest}, or none")
        if kind:
            deflate(kind, b"weir", level)  # raises now rather than with the first batch
        return cls(kind, level)


_NAMES = {kind.name.lower(): int(kind) for kind in Compression}
_LEVELS = {0: (0, 0), 1: (1, 12), 2: (-7, 22)}
PLAIN = Packing()


class Whole(Protocol[O]):
    """A batch to be, complete: its owner, its number of sequences, and how to encode it."""

    owner: O

    def __len__(self) -> int:
        """Return how many sequences it takes."""

    def encode(
        self, group: int, producer: int, epoch: int, sequence: int, packing: Packing = ...
    ) -> bytearray:
        """Return the sealed batch. Raises as `weir.model.batch.encode`."""


class Gathered(msgspec.Struct, Generic[O], eq=False):
    """The columns of one batch to be; a column other than `values` is None until one is given.

    A message without a time of its own has `base_time`, when the first of them was gathered.
    """

    owner: O
    base_time: int
    values: Sequence[bytes] = msgspec.field(default_factory=list)
    keys: Sequence[bytes | None] | None = None
    tags: Sequence[str | None] | None = None
    times: Sequence[int] | None = None
    headers: Sequence[Mapping[str, bytes]] | None = None
    dues: Sequence[int] | None = None
    expires: Sequence[int] | None = None
    size: int = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.values)

    def encode(
        self, group: int, producer: int, epoch: int, sequence: int, packing: Packing = PLAIN
    ) -> bytearray:
        """Return the sealed batch. Raises as `weir.model.batch.encode`."""
        return encode(
            self.values,
            group=group,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            base_time=self.base_time,
            keys=self.keys,
            tags=self.tags,
            times=self.times,
            dues=self.dues,
            expires=self.expires,
            headers=self.headers,
            compression=packing.kind,
            level=packing.level,
            schema=packing.schema,
        )


def grown(column: Sequence[T] | None, item: T | None, nothing: T, before: int) -> list[T] | None:
    """Return a column with `item` behind `before` others; it begins with the first item given."""
    if column is None:
        if item is None:
            return None
        column = [nothing] * before
    assert isinstance(column, list)
    column.append(nothing if item is None else item)
    return column


def size_of(
    value: Buffer, key: bytes | None, tag: str | None, headers: Mapping[str, bytes] | None
) -> int:
    """Return about how many bytes a message takes in a batch."""
    size = MESSAGE_OVERHEAD + len(value)
    if key is not None:
        size += len(key)
    if tag is not None:
        size += len(tag)
    if headers:
        size += sum(len(name) + len(text) + MESSAGE_OVERHEAD for name, text in headers.items())
    return size


class Batcher(Generic[O]):
    """Gathers messages into batches by bytes and count; what is cut waits in order."""

    __slots__ = ("_batch_bytes", "_batch_messages", "_tags", "gathering", "ready")

    def __init__(
        self, batch_bytes: int = BATCH_BYTES, batch_messages: int = BATCH_MESSAGES_MAX
    ) -> None:
        """Cut a batch when one more message would take it over one of the two."""
        self._batch_bytes = batch_bytes
        self._batch_messages = batch_messages
        #: Batches cut and not taken, in order.
        self.ready: deque[Whole[O]] = deque()
        #: The batch that takes the next message if it fits; None after a cut.
        self.gathering: Gathered[O] | None = None
        self._tags: set[str] = set()

    @property
    def waiting(self) -> int:
        """The number of batches cut and not taken."""
        return len(self.ready)

    def fits(self, size: int, tag: str | None = None) -> bool:
        """Whether a message of `size` bytes goes into the batch that is being gathered. One with
        another tag than the last does not once that has `TAG_RUN_BYTES`: a reader of one tag then
        need not get the others.
        """
        if self.gathering is None:
            return False
        if self.gathering.size >= TAG_RUN_BYTES:
            tags = self.gathering.tags
            if tag != (tags[-1] if tags else None):
                return False
        size += self.gathering.size
        columns = (len(self.gathering) + 1) * _COLUMNS_BYTES
        return size <= self._batch_bytes and size + columns <= _BATCH_BYTES_MAX

    def begin(self, owner: O, now: int) -> Gathered[O]:
        """Cut what was gathered and begin a batch of `owner`; `now` is in µs since 1970."""
        if self.gathering is not None:
            self.cut()
        gathering = self.gathering = Gathered(owner, now)
        return gathering

    def add(
        self,
        size: int,
        value: bytes,
        key: bytes | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        due: int | None = None,
        expires: int | None = None,
    ) -> int:
        """Add a message of `size_of` bytes to the batch begun; return its place in there."""
        batch = self.gathering
        assert batch is not None
        assert isinstance(batch.values, list)
        place = len(batch.values)
        batch.values.append(value)
        # Most messages are values alone.
        if key is not None or batch.keys is not None:
            batch.keys = grown(batch.keys, key, None, place)
        if tag is not None or batch.tags is not None:
            batch.tags = grown(batch.tags, tag, None, place)
        if time is not None or batch.times is not None:
            batch.times = grown(batch.times, time, batch.base_time, place)
        if headers is not None or batch.headers is not None:
            batch.headers = grown(batch.headers, headers, _NO_HEADERS, place)
        if due is not None or batch.dues is not None:
            batch.dues = grown(batch.dues, due, 0, place)
        if expires is not None or batch.expires is not None:
            batch.expires = grown(batch.expires, expires, 0, place)
        batch.size += size
        if tag is not None:
            self._tags.add(tag)
        full = batch.size >= self._batch_bytes or place + 1 >= self._batch_messages
        if full or len(self._tags) >= _TAGS_MAX:
            self.cut()
        return place

    def put(self, whole: Whole[O]) -> None:
        """Queue a batch that was packed elsewhere, behind all messages added so far."""
        self.cut()
        self.ready.append(whole)

    def cut(self) -> None:
        """Close the batch that is being gathered, if there is one."""
        if self.gathering is not None:
            self.ready.append(self.gathering)
            self.gathering = None
            if self._tags:
                self._tags.clear()

    def take(self) -> Whole[O] | None:
        """Return the next batch that was cut, or None."""
        return self.ready.popleft() if self.ready else None


def cuts(
    values: Sequence[bytes],
    batch_bytes: int,
    batch_messages: int = BATCH_MESSAGES_MAX,
    *,
    keys: Sequence[bytes | None] | None = None,
    tags: Sequence[str | None] | None = None,
    times: Sequence[int] | None = None,
    timed: bool = False,
) -> list[tuple[int, int, int]]:
    """Cut many messages into batches: (first, behind the last, bytes) each; one over alone.

    With `timed` they are due, or expire, at a time.
    """
    n = len(values)
    batch_bytes = min(batch_bytes, _BATCH_BYTES_MAX)
    overhead = MESSAGE_OVERHEAD + timed * TIMING_BYTES
    overhead += (keys is not None) * _KEY_BYTES + (times is not None) * _TIME_BYTES
    overhead += (tags is not None) * _TAG_BYTES
    columns = (values, *(column for column in (keys, tags) if column is not None))
    size = sum(sum(map(_length, column)) for column in columns) + n * overhead
    whole = batch_bytes if tags is None else min(batch_bytes, TAG_RUN_BYTES)
    if size <= whole and n <= min(batch_messages, _TAGS_MAX):  # the usual case costs one pass
        return [(0, n, size)] if n else []
    rows = zip(*(map(_length, column) for column in columns), strict=True)
    ends = list(accumulate((sum(row) + overhead for row in rows), initial=0))
    found = []
    first = 0
    while first < n:
        last = bisect_right(ends, ends[first] + batch_bytes, first + 1) - 1
        last = min(max(last, first + 1), first + batch_messages, n)
        while tags is not None and len(set(tags[first:last])) > _TAGS_MAX:
            last = first + (last - first) // 2
        if tags is not None:
            start = bisect_left(ends, ends[first] + TAG_RUN_BYTES, first + 1, last)
            last = next((at for at in range(start, last) if tags[at] != tags[at - 1]), last)
        found.append((first, last, ends[last] - ends[first]))
        first = last
    return found


def _length(item: Sized | None) -> int:
    return 0 if item is None else len(item)


def rows_by_partition(
    keys: Sequence[bytes | None], partitions: int, without_key: int, closed: Container[int] = ()
) -> dict[int, list[int]]:
    """Return, by partition, the places of the messages whose keys belong there, in order; none is
    one of the `closed`.
    """
    found: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        partition = without_key if key is None else partition_for(key, partitions, closed)
        found.setdefault(partition, []).append(place)
    return found


def picked(column: Sequence[T] | None, rows: Sequence[int]) -> list[T] | None:
    """Return these rows of a column; None if there is no such column."""
    return None if column is None else [column[row] for row in rows]


class ColumnRows(msgspec.Struct, frozen=True):
    """Many messages, column by column; `due` and `expires` are those of all of them."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    tags: Sequence[str | None] | None
    times: Sequence[int] | None
    due: int | None
    expires: int | None

    def taken(self, rows: Sequence[int]) -> ColumnRows:
        """Return some of them."""
        return replace(
            self,
            values=[self.values[row] for row in rows],
            keys=picked(self.keys, rows),
            tags=picked(self.tags, rows),
            times=picked(self.times, rows),
        )

    def gathered(self, owner: O, *, first: int, last: int, now: int, size: int) -> Gathered[O]:
        """Return the batch of messages [first, last)."""
        # A slice is also a copy: what the caller does to his list changes nothing here.
        return Gathered(
            owner,
            now,
            self.values[first:last],
            None if self.keys is None else self.keys[first:last],
            None if self.tags is None else self.tags[first:last],
            None if self.times is None else self.times[first:last],
            dues=None if self.due is None else [self.due] * (last - first),
            expires=None if self.expires is None else [self.expires] * (last - first),
            size=size,
        )


class ArrowBatch(msgspec.Struct, Generic[O], eq=False):
    """A batch to be, of rows that stay where they are until it is encoded."""

    owner: O
    base_time: int
    rows: Rows

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.rows)

    def encode(
        self, group: int, producer: int, epoch: int, sequence: int, packing: Packing = PLAIN
    ) -> bytearray:
        """Return the sealed batch. Raises as `weir.model.arrow.Rows.encode`."""
        return self.rows.encode(
            group=group,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            base_time=self.base_time,
            compression=packing.kind,
            level=packing.level,
            schema=packing.schema,
        )


def arrow_rows(data: Any) -> list[Rows]:
    """Return the checked rows of a record batch or table: all of them, or nothing is sent.

    Raises `TypeError`, `MissingLibrary`, and as `weir.model.arrow.Rows.of`.
    """
    try:
        import pyarrow as pa

        from weir.model.arrow import Rows
    except ImportError:
        raise MissingLibrary("pyarrow is not installed: pip install 'weir-mq[arrow]'") from None
    if isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, pa.Table):
        batches = data.to_batches()
    else:
        raise TypeError(f"give a pyarrow.RecordBatch or Table, not {type(data).__name__}")
    return [Rows.of(batch) for batch in batches if batch.num_rows]
