"""What the messages of a measurement hold, made and checked by the column. Pure.

    offset size field
    0      8    sequence of its producer, from 0 on, little-endian
    8      4    producer, little-endian
    12     -    filler, the same in every message of a size

Both sides work on whole batches: a producer fills two columns of a block that stays, a checker
makes the batch it expects and compares all bytes at once. Only a batch that differs is opened.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
from numpy.typing import NDArray

_HEAD = struct.Struct("<QI")
#: Room for the numbers, and some filler to compare.
SIZE_MIN = 16
_SEED = 0x77656972


def filler(size: int) -> bytes:
    """Return what stands behind the numbers in each message of `size` bytes: it looks random."""
    return Random(_SEED).randbytes(size - _HEAD.size)


class Block:
    """The bytes of up to `count_max` messages of one producer, in a row.

    A protocol that frames each message by itself gives what stands before and behind each.
    """

    def __init__(self, size: int, count_max: int, head: bytes = b"", tail: bytes = b"") -> None:
        """Prepare everything that is the same in each message. Raises `ValueError` under 16 B."""
        if size < SIZE_MIN:
            raise ValueError(f"messages of {size} bytes: the check needs at least {SIZE_MIN}")
        self.size = size
        self.count_max = count_max
        whole = head + bytes(_HEAD.size) + filler(size) + tail
        self._bytes = np.empty((count_max, len(whole)), np.uint8)
        self._bytes[:] = np.frombuffer(whole, np.uint8)
        row = np.dtype(
            {
                "names": ["sequence", "producer"],
                "formats": ["<u8", "<u4"],
                "offsets": [len(head), len(head) + 8],
                "itemsize": len(whole),
            }
        )
        rows = self._bytes.reshape(-1).view(row)
        self._sequences, self._producers = rows["sequence"], rows["producer"]
        self._steps = np.arange(count_max, dtype=np.uint64)
        self._producer = -1
        self._split = struct.Struct(f"{size}s" * count_max)

    def bytes_of(self, producer: int, first: int, count: int) -> NDArray[np.uint8]:
        """Return messages [first, first + count) as one row of bytes, valid until the next call."""
        if producer != self._producer:
            self._producers[:] = self._producer = producer
        np.add(self._steps[:count], np.uint64(first), out=self._sequences[:count])
        return self._bytes[:count].reshape(-1)

    def values_of(self, producer: int, first: int, count: int) -> list[bytes]:
        """Return messages [first, first + count), unframed, as a producer takes them."""
        data = self.bytes_of(producer, first, count).tobytes()
        split = self._split
        if count != self.count_max:
            split = struct.Struct(f"{self.size}s" * count)
        return list(split.unpack(data))


#: Batches above this are compared piece by piece.
_PIECE_MAX = 4_096


class Checker:
    """Counts what arrives against what `counts` producers send, `counts[p]` messages each.

    `received` counts every message; `repeated` those that had been here before; `reordered` those
    behind a later one of their producer; `corrupt` those that nobody sent. Where it shows only in
    the end how many were sent, give upper bounds first and `expect` the counts then.
    """

    def __init__(self, counts: Sequence[int], size: int) -> None:
        """Expect sequence 0 of every producer first."""
        self.received = 0
        self.repeated = 0
        self.reordered = 0
        self.corrupt = 0
        self._counts = [*counts]
        self._size = size
        self._filler = filler(size)
        self._filler_row = np.frombuffer(self._filler, np.uint8)
        self._block = Block(size, _PIECE_MAX)
        self._uniform = np.arange(_PIECE_MAX + 1, dtype=np.int32) * np.int32(size)
        self._next = [0] * len(counts)
        #: By producer, a byte for each sequence up to the last that was here.
        self._seen = [bytearray() for _ in counts]

    @property
    def lost(self) -> int:
        """How many messages did not arrive, so far."""
        return sum(self._counts) - sum(seen.count(1) for seen in self._seen)

    def expect(self, counts: Sequence[int]) -> None:
        """Say how many messages each producer has sent; later ones than those count as corrupt."""
        for producer, count in enumerate(counts):
            seen = self._seen[producer]
            self.corrupt += seen.count(1, count)
            del seen[count:]
        self._counts = [*counts]

    def take(self, offsets: memoryview, data: memoryview) -> None:
        """Check a value column: int32 offsets [n + 1] and the data they point into."""
        n = len(offsets) - 1
        for first in range(0, n, _PIECE_MAX):
            count = min(_PIECE_MAX, n - first)
            self._take(offsets[first : first + count + 1], data, count)

    def _take(self, offsets: memoryview, data: memoryview, count: int) -> None:
        start = offsets[0]
        piece = data[start : offsets[count]]
        uniform = len(piece) == count * self._size and np.array_equal(
            np.frombuffer(offsets, np.int32), self._uniform[: count + 1] + start
        )
        if uniform and (self._is_next(piece, count) or self._is_mixture(piece, count)):
            self.received += count
            return
        for at in range(count):
            self.take_one(bytes(data[offsets[at] : offsets[at + 1]]))

    def _is_next(self, piece: memoryview, count: int) -> bool:
        """Take a piece that is exactly what one producer sends next; False for any other."""
        sequence, producer = _HEAD.unpack_from(piece)
        if producer >= len(self._counts) or sequence != self._next[producer]:
            return False
        behind = sequence + count
        if behind > self._counts[producer]:
            return False
        expected = self._block.bytes_of(producer, sequence, count)
        if not np.array_equal(np.frombuffer(piece, np.uint8), expected):
            return False
        self._mark(producer, sequence, count)
        return True

    def _is_mixture(self, piece: memoryview, count: int) -> bool:
        """Take a piece in which each producer's messages are what it sends next; else False."""
        rows = np.frombuffer(piece, np.uint8).reshape(count, self._size)
        if not (rows[:, _HEAD.size :] == self._filler_row).all():
            return False
        heads = np.ascontiguousarray(rows[:, : _HEAD.size]).view([("s", "<u8"), ("p", "<u4")])
        by_producer = np.argsort(heads["p"][:, 0], kind="stable")
        producers, sequences = heads["p"][by_producer, 0], heads["s"][by_producer, 0]
        if int(producers[-1]) >= len(self._counts):
            return False
        edges = [0, *(np.flatnonzero(np.diff(producers)) + 1).tolist(), count]
        runs = [(int(producers[a]), a, b) for a, b in pairwise(edges)]
        for producer, first, behind in runs:
            begin = self._next[producer]
            expected = np.arange(begin, begin + behind - first, dtype=np.uint64)
            if begin + behind - first > self._counts[producer]:
                return False
            if not np.array_equal(sequences[first:behind], expected):
                return False
        for producer, first, behind in runs:
            self._mark(producer, self._next[producer], behind - first)
        return True

    def _mark(self, producer: int, first: int, count: int) -> None:
        seen = self._seen[producer]
        if len(seen) < first:
            seen.extend(bytes(first - len(seen)))
        seen[first : first + count] = b"\1" * count
        self._next[producer] = first + count

    def take_one(self, value: bytes) -> None:
        """Check one message."""
        self.received += 1
        if len(value) != self._size or not value.endswith(self._filler):
            self.corrupt += 1
            return
        sequence, producer = _HEAD.unpack_from(value)
        if producer >= len(self._counts) or sequence >= self._counts[producer]:
            self.corrupt += 1
            return
        seen = self._seen[producer]
        if sequence < len(seen) and seen[sequence]:
            self.repeated += 1
        elif sequence < self._next[producer]:
            seen[sequence] = 1
            self.reordered += 1
        else:
            self._mark(producer, sequence, 1)
