"""What readers and consumers hand out: checked batches, trimmed to what was asked for by offset,
stamp, key and tag; and large values put together again from their chunks.

A batch is skipped by its stamp and by its tag list, which is never compressed, before a column is
opened. What is left is found in the columns of key hashes and tag indices, without splitting one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, pairwise
from typing import Protocol

import msgspec

from weir.codec import Buffer
from weir.errors import BadBatch, BadRequest, TooLarge
from weir.model.batch import Batch, Columns, split
from weir.model.columns import References, chained, key_hash, tag_indices, text
from weir.model.limits import TAGS_PER_FETCH_MAX
from weir.model.message import LargeMessage, Message, Pieces
from weir.model.slices import tags_of
from weir.order.clock import STAMP_MAX
from weir.protocol.client.messages import Fetched

_REFERENCES, _SLICED = int(Columns.REFERENCES), int(Columns.SLICED)
_ORIGIN = int(Columns.ORIGIN)
#: Columns of which all rows are split for one.
_SPLIT_WHOLE = int(Columns.TAG | Columns.TIME | Columns.HEADERS | Columns.ORIGIN | Columns.SLICED)
_WIDTH = 4
_HASH = struct.Struct("<I")
#: Below one message in so many, from the first to the last one, single rows are cheaper than
#: splitting all of them.
_RARE = 8
#: Runs of so many messages on the average are split one by one.
_LONG = 8
_NO_HEADERS: Mapping[str, bytes] = {}


class Source(Protocol):
    """Fetches the chunks of a large value."""

    def pieces(self, partition: int, references: References) -> Pieces:
        """Return the pieces; nothing is fetched yet."""


class Delivered(msgspec.Struct, frozen=True):
    """Messages [offset, next_offset) of one batch, whose first `skip` messages lie before them."""

    topic: str
    partition: int
    batch: Batch
    offset: int
    next_offset: int

    def __len__(self) -> int:
        """Return the number of messages."""
        return self.next_offset - self.offset

    @property
    def skip(self) -> int:
        """How many leading messages of the batch to ignore."""
        return self.offset - self.batch.header.first_offset

    def values(self) -> list[bytes]:
        """Split the values, one `bytes` a message. Raises `BadBatch`, which says how to go on."""
        return self.opened().values(self.skip, self.skip + len(self))

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them. Raises `BadBatch`, which says how to go on."""
        first = self.skip
        return self.opened().messages(self.topic, self.partition, first, first + len(self))

    def opened(self) -> Batch:
        """Return the batch, whose columns make sense.

        Its hash was right, and its broker looked into it: one that does not open is the work of a
        faulty broker, and asking for it again would not help.
        """
        try:
            self.batch.check_layout()
        except BadBatch as error:
            raise BadBatch(
                f"messages {self.offset} to {self.next_offset - 1} of {self.topic}/"
                f"{self.partition} cannot be opened: {error}. To skip them, read with "
                f"start={{{self.partition}: {self.next_offset}}}"
            ) from error
        return self.batch


class SlicedDelivered(Delivered, frozen=True):
    """Some messages of [offset, next_offset): those of a slice, `first` of which lie before."""

    first: int = 0
    behind: int = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return self.behind - self.first

    @property
    def skip(self) -> int:
        """How many leading messages of the slice to ignore."""
        return self.first


class LargeDelivered(Delivered, frozen=True):
    """One message whose value lies in chunks; `loaded` is the value once somebody fetched it."""

    source: Source | None = None
    loaded: bytes | None = None

    @property
    def references(self) -> References:
        """Where the chunks lie."""
        references = self.batch.references
        assert references is not None  # `deliver` looked
        return references

    def values(self) -> list[bytes]:
        """Return the one value. Raises `TooLarge` unless it was loaded."""
        if self.loaded is None:
            raise TooLarge(
                f"offset {self.offset} of {self.topic}/{self.partition} has a value of "
                f"{self.references.size:,} bytes: iterate messages() and stream its chunks()",
                self.references.size,
            )
        return [self.loaded]

    def messages(self) -> Iterator[Message]:
        """Yield the one message, a `LargeMessage` unless its value was loaded."""
        (message,) = self.opened().messages(self.topic, self.partition)
        if self.loaded is not None:
            yield Message(self.loaded, *message[1:])
            return
        references = self.references
        pieces = None if self.source is None else self.source.pieces(self.partition, references)
        yield LargeMessage(message, references.size, pieces)


def deliver(
    payloads: Sequence[Buffer],
    group: int,
    topic: str,
    partition: int,
    offset: int,
    behind: int,
    source: Source | None = None,
) -> list[Delivered]:
    """Open and check batches; return what of them lies in [offset, behind). Raises `BadBatch`.

    `source` fetches the chunks of large values, if somebody asks for them.
    """
    found: list[Delivered] = []
    for payload in payloads:
        for batch in split(payload, group):
            header = batch.header
            first, last = max(header.first_offset, offset), min(header.next_offset, behind)
            if first >= last:
                continue
            if header.columns & _REFERENCES:
                large = LargeDelivered(topic, partition, batch, first, last, source)
                found.append(large)
            elif header.columns & _SLICED:
                lies = batch.offsets
                rows = bisect_left(lies, first), bisect_left(lies, last)
                found.append(SlicedDelivered(topic, partition, batch, first, last, *rows))
            else:
                found.append(Delivered(topic, partition, batch, first, last))
            offset = last
    return found


def check_covered(
    fetched: Fetched, delivered: Sequence[Delivered], behind: int, tags: Collection[str]
) -> None:
    """Raise `BadBatch` unless an answer that is filtered by these tags covers all up to `behind`,
    once: what is in no batch, and was neither skipped nor void, is lost.
    """
    if not fetched.is_filtered:
        return
    runs = [(part.offset, part.next_offset) for part in delivered]
    cut = ((first, min(last, behind)) for first, last in (*fetched.skipped, *fetched.voids))
    at = fetched.offset
    for first, last in sorted((*runs, *(run for run in cut if run[0] < behind))):
        if first != at or not tags:
            raise BadBatch(f"an answer leaves out the messages between offsets {at} and {first}")
        at = last
    if at != behind:
        raise BadBatch(f"an answer that reaches up to offset {behind} covers those up to {at}")


class Assembly:
    """A large value put together again from its chunks, without I/O.

    Asks for chunks in order, checks each, and the whole at the end; holds none of them.
    """

    __slots__ = ("_at", "_coming", "_group", "_hash", "_position", "_references", "_run")

    def __init__(self, references: References, group: int) -> None:
        """Begin with the first chunk of a value of partition `group`."""
        self._references = references
        self._group = group
        self._hash = 0
        #: What the hash is once the pieces that came last are taken.
        self._coming = 0
        self._position = 0
        self._run = 0
        self._at = references.first_index

    def wanted(self) -> tuple[int, int] | None:
        """Return Raft index and number of the next chunks in a row; None once all have come.

        Raises `BadBatch` then, unless they make the value that was published.
        """
        runs = self._references.runs
        if self._run < len(runs):
            first, count = runs[self._run]
            return self._at, first + count - self._at
        size, hash_ = self._references.size, self._references.hash
        if (self._position, self._hash) != (size, hash_):
            raise BadBatch(
                f"{self._position:,} bytes of chunks are not the value of {size:,} bytes that was "
                "published: read it again"
            )
        return None

    def opened(self, payloads: Sequence[Buffer]) -> list[memoryview]:
        """Check what came for `wanted`; return its pieces, which count once `took` has them.

        Raises `BadBatch`: ask again then.
        """
        wanted = self.wanted()
        batches = [batch for payload in payloads for batch in split(payload, self._group)]
        if wanted is None or not 0 < len(batches) <= wanted[1]:
            raise BadBatch(f"{len(batches)} chunks came, which is not what was asked for")
        pieces, position, hash_ = [], self._position, self._hash
        for batch in batches:
            batch.check_columns()
            if batch.piece is None or batch.piece.position != position:
                raise BadBatch(f"what came for byte {position:,} of a value is another's")
            pieces.append(batch.value_column.data)
            position += batch.piece.size
            hash_ = chained(hash_, batch.header.hash)
        self._coming = hash_
        return pieces

    def took(self, pieces: Sequence[memoryview]) -> None:
        """Go on behind the pieces that `opened` returned last."""
        self._hash = self._coming
        self._position += sum(map(len, pieces))
        self._at += len(pieces)
        if self._at == sum(self._references.runs[self._run]):
            self._run += 1
            if self._run < len(self._references.runs):
                self._at = self._references.runs[self._run][0]


class Picked(Delivered, frozen=True):
    """Some messages of a batch or a slice: `rows` counts from the first one there."""

    rows: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.rows)

    def values(self) -> list[bytes]:
        """Split the values, one `bytes` a message."""
        first, behind = self.rows[0], self.rows[-1] + 1
        if self._is_rare:
            at = self.opened().value_column.at
            return [at(row) for row in self.rows]
        return [*compress(self.opened().values(first, behind), self._wanted)]

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them."""
        if self._is_rare and not self.batch.header.columns & _ORIGIN:
            return self._each()
        first, behind = self.rows[0], self.rows[-1] + 1
        if len(self.rows) == behind - first:
            return self.opened().messages(self.topic, self.partition, first, behind)
        batch = self.opened()
        if not batch.header.columns & _SPLIT_WHOLE and len(runs := self._runs) * _LONG <= len(self):
            return chain.from_iterable(
                batch.messages(self.topic, self.partition, *run) for run in runs
            )
        return compress(batch.messages(self.topic, self.partition, first, behind), self._wanted)

    @property
    def _is_rare(self) -> bool:
        return len(self.rows) * _RARE < self.rows[-1] + 1 - self.rows[0]

    @property
    def _runs(self) -> list[tuple[int, int]]:
        """The rows as runs [first, behind)."""
        rows = self.rows
        ends = [at for at, (one, other) in enumerate(pairwise(rows), 1) if other != one + 1]
        bounds = [0, *ends, len(rows)]
        return [(rows[a], rows[b - 1] + 1) for a, b in pairwise(bounds)]

    @property
    def _wanted(self) -> bytearray:
        """Say of each row from the first to the last one whether it is picked."""
        first = self.rows[0]
        wanted = bytearray(self.rows[-1] + 1 - first)
        for row in self.rows:
            wanted[row - first] = 1
        return wanted

    def _each(self) -> Iterator[Message]:
        batch, header = self.opened(), self.batch.header
        offsets = batch.offsets
        keys, tags = batch.key_column, batch.tag_column
        times, pairs = batch.numbers(Columns.TIME), batch.headers_column
        for row in self.rows:
            key = keys[1].at(row) if keys and _is_set(keys[0], row) else None
            headers = _NO_HEADERS
            if pairs:
                ends, names, values = pairs
                inside = range(ends[row], ends[row + 1])
                headers = {text(names.at(i)): values.at(i) for i in inside}
            yield Message(
                batch.value_column.at(row),
                key,
                (tags[0][tags[1][row]] or None) if tags else None,
                times[row] if times else header.base_time,
                headers,
                self.topic,
                self.partition,
                offsets[row],
                header.stamp,
                schema=header.schema,
            )


class Pick:
    """What a reader wants: stamps in [floor, ceiling), one of some keys, one of some tags, "" among
    them for no tag.
    """

    __slots__ = ("_hashes", "ceiling", "floor", "keys", "tags")

    def __init__(
        self,
        keys: Iterable[bytes] | None = None,
        tags: Iterable[str] | None = None,
        floor: int = 0,
        ceiling: int = STAMP_MAX,
    ) -> None:
        """Take keys and tags, None for whichever; stamps as `weir.order.clock` has them."""
        self.keys = None if keys is None else frozenset(keys)
        self.tags = None if tags is None else frozenset(tags)
        self.floor = floor
        self.ceiling = ceiling
        if self.keys == frozenset() or self.tags == frozenset():
            raise BadRequest("an empty list of keys or tags picks nothing: leave it out for all")
        self._hashes = {_HASH.pack(key_hash(key)) for key in self.keys or ()}

    @property
    def asked(self) -> tuple[str, ...]:
        """The tags to ask a broker for; none where all are wanted, or too many to be asked for."""
        if self.tags is None or len(self.tags) > TAGS_PER_FETCH_MAX:
            return ()
        return tuple(sorted(self.tags))

    def between(self, floor: int, ceiling: int) -> Pick:
        """Return what is wanted of the same keys and tags, with other stamps."""
        return Pick(self.keys, self.tags, floor, ceiling)

    @property
    def wants_all(self) -> bool:
        """Whether no message is left out."""
        bounded = self.floor > 0 or self.ceiling < STAMP_MAX
        return self.keys is None and self.tags is None and not bounded

    def passes(self, delivered: list[Delivered]) -> tuple[list[Delivered], int | None]:
        """Return what may be wanted, by its stamp alone, so that nothing is opened yet; and the
        offset of the first message at the ceiling, if it came.
        """
        found: list[Delivered] = []
        for part in delivered:
            stamp = part.batch.header.stamp
            if stamp >= self.ceiling:
                return found, part.offset
            if stamp >= self.floor:
                found.append(part)
        return found, None

    def wanted(self, part: Delivered) -> Delivered | None:
        """Return what is wanted of a batch by key and tag; None if nothing is."""
        batch = part.batch
        rows: Iterable[int] = range(part.skip, part.skip + len(part))
        if self.tags is not None:
            listed = set(tags_of(batch))
            if not listed & self.tags:
                return None
            if not listed <= self.tags:
                rows = self._tagged(part.opened(), rows)
        if self.keys is not None:
            within = frozenset(rows)
            rows = [row for row in self._keyed(part.opened()) if row in within]
        chosen = tuple(rows)
        if not chosen:
            return None
        if len(chosen) == len(part):
            return part
        return Picked(part.topic, part.partition, batch, part.offset, part.next_offset, chosen)

    def _tagged(self, batch: Batch, rows: Iterable[int]) -> list[int]:
        column = batch.tag_column
        assert self.tags is not None
        assert column is not None  # it has a tag list
        names, numbers = column
        wanted = {number for number, name in enumerate(names) if name in self.tags}
        indices = tag_indices(numbers, len(names))
        return [row for row in rows if indices[row] in wanted]

    def _keyed(self, batch: Batch) -> list[int]:
        column = batch.key_column
        if column is None:
            return []
        validity, keys, hashes = column
        data = hashes.tobytes()
        assert self.keys is not None  # asked only where keys are wanted
        return sorted(
            row
            for pattern in self._hashes
            for row in _where(data, pattern)
            if _is_set(validity, row) and keys.at(row) in self.keys
        )


def _where(data: bytes, pattern: bytes) -> Iterator[int]:
    """Yield each place of a number in a column of four bytes each, found at C speed."""
    at = data.find(pattern)
    while at >= 0:
        place, odd = divmod(at, _WIDTH)
        if not odd:
            yield place
        at = data.find(pattern, (place + 1) * _WIDTH)


def _is_set(bits: memoryview, row: int) -> bool:
    return bool(bits[row >> 3] & (1 << (row & 7)))
