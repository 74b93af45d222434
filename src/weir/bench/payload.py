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
    """The bytes of up to `count_max` messages of one producer, in a row."""

    def __init__(self, size: int, count_max: int) -> None:
        """Prepare everything that is the same in each message. Raises `ValueError` under 16 B."""
        if size < SIZE_MIN:
            raise ValueError(f"messages of {size} bytes: the check needs at least {SIZE_MIN}")
        self.size = size
        self.count_max = count_max
        self._bytes = np.empty((count_max, size), np.uint8)
        self._bytes[:, _HEAD.size :] = np.frombuffer(filler(size), np.uint8)
        row = np.dtype(
            {
                "names": ["sequence", "producer"],
                "formats": ["<u8", "<u4"],
                "offsets": [0, 8],
                "itemsize": size,
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
        """Return messages [first, first + count) as a producer takes them."""
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
    behind a later one of their producer; `corrupt` those that nobody sent.
    """

    def __init__(self, counts: Sequence[int], size: int) -> None:
        """Expect sequence 0 of every producer first."""
        self.received = 0
        self.repeated = 0
        self.reordered = 0
        self.corrupt = 0
        self._counts = counts
        self._size = size
        self._filler = filler(size)
        self._block = Block(size, _PIECE_MAX)
        self._uniform = np.arange(_PIECE_MAX + 1, dtype=np.int32) * np.int32(size)
        self._next = [0] * len(counts)
        self._seen = [bytearray(count) for count in counts]

    @property
    def lost(self) -> int:
        """How many messages did not arrive, so far."""
        return sum(seen.count(0) for seen in self._seen)

    def take(self, offsets: memoryview, data: memoryview) -> None:
        """Check a value column: int32 offsets [n + 1] and the data they point into."""
        n = len(offsets) - 1
        for first in range(0, n, _PIECE_MAX):
            count = min(_PIECE_MAX, n - first)
            self._take(offsets[first : first + count + 1], data, count)

    def _take(self, offsets: memoryview, data: memoryview, count: int) -> None:
        self.received += count
        start = offsets[0]
        piece = data[start : offsets[count]]
        if not self._is_next(offsets, piece, start, count):
            for at in range(count):
                self._take_one(bytes(data[offsets[at] : offsets[at + 1]]))

    def _is_next(self, offsets: memoryview, piece: memoryview, start: int, count: int) -> bool:
        """Take a piece that is exactly what one producer sends next; False for any other."""
        if len(piece) != count * self._size:
            return False
        if not np.array_equal(np.frombuffer(offsets, np.int32), self._uniform[: count + 1] + start):
            return False
        sequence, producer = _HEAD.unpack_from(piece)
        if producer >= len(self._counts) or sequence != self._next[producer]:
            return False
        behind = sequence + count
        if behind > self._counts[producer]:
            return False
        expected = self._block.bytes_of(producer, sequence, count)
        if not np.array_equal(np.frombuffer(piece, np.uint8), expected):
            return False
        self._seen[producer][sequence:behind] = b"\1" * count
        self._next[producer] = behind
        return True

    def _take_one(self, value: bytes) -> None:
        if len(value) != self._size or not value.endswith(self._filler):
            self.corrupt += 1
            return
        sequence, producer = _HEAD.unpack_from(value)
        if producer >= len(self._counts) or sequence >= self._counts[producer]:
            self.corrupt += 1
        elif self._seen[producer][sequence]:
            self.repeated += 1
        else:
            self._seen[producer][sequence] = 1
            if sequence < self._next[producer]:
                self.reordered += 1
            else:
                self._next[producer] = sequence + 1
