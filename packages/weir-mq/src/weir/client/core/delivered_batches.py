"""What readers and consumers hand out: checked batches, trimmed to what was asked for, and large
values put together again from their chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from weir.codec.fields import Buffer
from weir.errors import BadBatch, TooLarge
from weir.model.batch import Batch, split
from weir.model.chunks import References, chained
from weir.model.header import Columns
from weir.model.message import LargeMessage, Message, Pieces

_REFERENCES = int(Columns.REFERENCES)


class Source(Protocol):
    """Whoever can fetch the chunks of a large value."""

    def pieces(self, partition: int, references: References) -> Pieces:
        """Return the pieces; nothing is fetched yet."""


@dataclass(frozen=True, slots=True)
class Delivered:
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
        return self._opened().values()[self.skip : self.skip + len(self)]

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them. Raises `BadBatch`, which says how to go on."""
        whole = self._opened().messages(self.topic, self.partition)
        return islice(whole, self.skip, self.skip + len(self))

    def _opened(self) -> Batch:
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


@dataclass(frozen=True, slots=True)
class LargeDelivered(Delivered):
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
        (message,) = self._opened().messages(self.topic, self.partition)
        if self.loaded is not None:
            yield Message(self.loaded, *message[1:])
            return
        references = self.references
        pieces = None if self.source is None else self.source.pieces(self.partition, references)
        yield LargeMessage.of(message, references.size, pieces)


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
            else:
                found.append(Delivered(topic, partition, batch, first, last))
            offset = last
    return found


class Assembly:
    """A large value put together again from its chunks, without I/O.

    Asks for chunks in order, checks each, and the whole at the end; holds none of them."""

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
