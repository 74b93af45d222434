"""A large value put together again from its chunks, without I/O: what to ask for, what came."""

from __future__ import annotations

from collections.abc import Sequence

from weir.codec.fields import Buffer
from weir.errors import BadBatch
from weir.model.batch import split
from weir.model.chunks import References, chained


class Assembly:
    """Asks for chunks in order, checks each, and the whole at the end; holds none of them."""

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
