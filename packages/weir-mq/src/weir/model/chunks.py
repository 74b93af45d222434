"""Values too large for one batch (DESIGN §4): their pieces, and what closes them.

A large value is cut into pieces. Each is the value of a *chunk*, a batch with the flag CHUNK: one
sequence of its producer, one entry of the partition's log, no offset. Behind the last one the
*closing* batch, with the flag REFERENCES, takes the value's one offset and stamp, and holds its
key, tag, time and headers. Where its value would lie it has references (little-endian):

    u64 bytes of the whole value
    u64 hash of the whole value: that of its chunks in order, see `chained`
    then, in order, u64 Raft index of a chunk, u64 number of chunks in entries from there on

A producer has one open value in a partition: a piece at position 0 begins one, and any other
continues at the position behind the last piece.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from weir.codec.fields import Buffer
from weir.errors import BadBatch
from weir.model.limits import BATCH_BYTES_MAX, KIB

_PAIR = struct.Struct("<QQ")
_INDEX_MAX = (1 << 63) - 1
#: Left free in a batch of one message, for the header and what an estimate leaves out.
_SPARE_BYTES = 64 * KIB


class Piece(NamedTuple):
    """Where a chunk's piece lies in its value, and how long it is: the CHUNK column."""

    position: int
    size: int

    def pack(self) -> bytes:
        """Return the CHUNK column."""
        return _PAIR.pack(*self)


def piece_at(view: Buffer, at: int) -> Piece:
    """Read the CHUNK column at byte `at`. Raises `BadBatch` for an empty piece or one too long."""
    if len(view) - at < _PAIR.size:
        raise BadBatch("a chunk ends before its column")
    piece = Piece(*_PAIR.unpack_from(view, at))
    if not 0 < piece.size <= BATCH_BYTES_MAX or piece.position > _INDEX_MAX:
        raise BadBatch(f"a chunk says {piece.size:,} bytes from {piece.position:,}")
    return piece


class References(NamedTuple):
    """What a closing batch knows of its value; `runs` are (first Raft index, chunks) in order."""

    size: int
    hash: int
    runs: tuple[tuple[int, int], ...]

    @property
    def first_index(self) -> int:
        """The entry of the first chunk."""
        return self.runs[0][0]

    @property
    def chunks(self) -> int:
        """How many entries hold the value."""
        return sum(count for _, count in self.runs)

    def pack(self) -> bytes:
        """Return what lies where the value would."""
        return b"".join(
            (_PAIR.pack(self.size, self.hash), *(_PAIR.pack(*run) for run in self.runs))
        )

    @classmethod
    def unpack(cls, data: Buffer) -> References:
        """Read what `pack` gave. Raises `BadBatch` unless the runs rise and can hold the size."""
        if len(data) < 2 * _PAIR.size or len(data) % _PAIR.size:
            raise BadBatch(f"{len(data)} bytes make no references to chunks")
        (size, hash_), *runs = _PAIR.iter_unpack(data)
        behind = 1  # Raft indices begin at 1
        for first, count in runs:
            if first < behind or count < 1 or first + count > _INDEX_MAX:
                raise BadBatch(f"references name {count:,} entries from {first:,}: that is wrong")
            behind = first + count
        found = cls(size, hash_, tuple(runs))
        if not found.chunks <= size <= found.chunks * BATCH_BYTES_MAX:
            raise BadBatch(f"{size:,} bytes cannot lie in {found.chunks:,} chunks")
        return found


def chained(value: int, chunk: int) -> int:
    """Return a value's hash with one more chunk behind those that made hash `value`, 0 at first.

    `chunk` is the hash in the chunk's header: it covers the piece, its place, its producer and its
    partition. So whoever takes chunks knows their value's hash without reading them again. The
    result is the xxh3-64 of both numbers, u64 little-endian each.
    """
    return int(xxhash.xxh3_64_intdigest(_PAIR.pack(value, chunk)))


def runs_of(indices: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Gather rising Raft indices into runs (first, count)."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        extend(runs, index)
    return tuple(runs)


def extend(runs: list[tuple[int, int]], index: int) -> None:
    """Add the index of one more chunk to runs, in place."""
    if runs and sum(runs[-1]) == index:
        runs[-1] = (runs[-1][0], runs[-1][1] + 1)
    else:
        runs.append((index, 1))


def is_large(size: int, batch_bytes_max: int = BATCH_BYTES_MAX) -> bool:
    """Whether a message of about `size` bytes fits no batch, so that its value goes as chunks."""
    return size > min(batch_bytes_max, BATCH_BYTES_MAX) - _SPARE_BYTES
