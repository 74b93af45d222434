"""Sets of offsets as sorted, disjoint runs [first, next): never flat bits (counterexample 21).

A run is two boundaries: where it begins, and where it ends. The set is the rising row of all its
boundaries, in blocks of up to 2,048: arrays of the distance from the block's base, as narrow as
they can be. Ten million runs of one message each take 40 MB that way, and a change costs two
searches and a move within one block.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from weir.broker.records.snapshots import Frozen, opened
from weir.codec import Buffer
from weir.errors import UnknownVersion

#: Boundaries in a block at most. It is even: a run lies in one block.
_BLOCK_MAX = 2_048
#: A block with fewer joins its neighbour, if both fit into half a block.
_BLOCK_MIN = 256
#: How wide distances are, narrowest first: array's type code, and what lies beyond.
_BEYOND = {"H": 1 << 16, "I": 1 << 32, "Q": 1 << 64}
#: Of a block, in front of its distances: base, how many they are, bytes of each.
_HEAD = struct.Struct("<QII")
_CODES = {array(code).itemsize: code for code in _BEYOND}
#: So many are packed at once, where a snapshot is packed beside other work.
_BLOCKS_PER_PART = 64


class Ranges:
    """A set of whole numbers; memory grows with the number of runs, not of members."""

    __slots__ = ("_bases", "_blocks", "_count", "_shared")

    def __init__(self, runs: Sequence[tuple[int, int]] = ()) -> None:
        """Hold `runs`, in any order, overlapping or not."""
        #: No boundary of a block lies below its base, and none of those before it at or above.
        self._bases: list[int] = []
        self._blocks: list[array[int]] = []
        self._count = 0
        #: Blocks that a snapshot holds too, by identity: they are copied before they change.
        self._shared: set[int] = set()
        for first, behind in runs:
            self.add(first, behind)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for base, block in list(zip(self._bases, self._blocks, strict=True)):
            row = block.tolist()
            for at in range(0, len(row), 2):
                yield base + row[at], base + row[at + 1]

    def __len__(self) -> int:
        return sum(map(len, self._blocks)) // 2

    def __bool__(self) -> bool:
        return bool(self._blocks)

    @property
    def count(self) -> int:
        """How many numbers are in the set."""
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, first: int, behind: int) -> None:
        """Add [first, behind), joining the runs that it touches."""
        if first < behind:
            self._change(first, behind, 0)

    def discard(self, first: int, behind: int) -> None:
        """Take [first, behind) out."""
        if first < behind:
            self._change(first, behind, 1)

    def covers(self, first: int, behind: int) -> bool:
        """Return whether all of [first, behind) is in the set."""
        if first >= behind:
            return True
        at = bisect_right(self._bases, first) - 1
        if at < 0:
            return False
        block, base = self._blocks[at], self._bases[at]
        inner = bisect_right(block, first - base)
        return inner % 2 == 1 and block[inner] >= behind - base

    def within(self, first: int, behind: int) -> list[tuple[int, int]]:
        """Return the runs that lie in [first, behind), cut off at its ends."""
        found: list[tuple[int, int]] = []
        if first >= behind:
            return found
        at = max(bisect_right(self._bases, first) - 1, 0)
        for place in range(at, bisect_left(self._bases, behind)):
            base, block = self._bases[place], self._blocks[place]
            lo = bisect_right(block, first - base) & ~1
            hi = bisect_left(block, behind - base)
            row = [base + one for one in block[lo : hi + hi % 2]]
            found += zip(row[::2], row[1::2], strict=True)
        if found:
            found[0] = (max(found[0][0], first), found[0][1])
            found[-1] = (found[-1][0], min(found[-1][1], behind))
        return found

    def first_run(self) -> tuple[int, int] | None:
        """Return the lowest run."""
        if not self._blocks:
            return None
        base, block = self._bases[0], self._blocks[0]
        return base + block[0], base + block[1]

    def gap_from(self, first: int, limit: int) -> tuple[int, int]:
        """Return the first run of numbers at or above `first` that are not in the set, cut off at
        `limit`; empty if there is none.
        """
        behind, at = limit, bisect_right(self._bases, first) - 1
        if at >= 0:
            base, block = self._bases[at], self._blocks[at]
            inner = bisect_right(block, first - base)
            if inner % 2:
                first = base + block[inner]
                inner += 1
            if inner < len(block):
                return min(first, limit), min(base + block[inner], limit)
        if at + 1 < len(self._blocks):
            behind = min(self._bases[at + 1] + self._blocks[at + 1][0], limit)
        return min(first, limit), behind

    # -- changes -----------------------------------------------------------------------------

    def _change(self, first: int, behind: int, odd: int) -> None:
        """Put all of [first, behind) in (`odd` 0) or out (1).

        Boundaries within it go. Its ends become boundaries where those that are left need them:
        behind an even number of them, for what is put in; behind an odd one, for what is taken out.
        """
        if not self._blocks:  # most sets are of one run at most, and live as long as a grant
            if not odd:
                self._bases, self._blocks = [first], [_narrow([first, behind])]
                self._count = behind - first
            return
        if odd and first <= self._bases[0]:
            if behind >= self._bases[-1] + self._blocks[-1][-1]:
                self._bases, self._blocks, self._count = [], [], 0
                return
            first = self._bases[0]
            if behind <= first:
                return
        lowest = max(bisect_right(self._bases, first) - 1, 0)
        highest = max(bisect_right(self._bases, behind) - 1, 0)
        if lowest == highest and first >= self._bases[lowest]:
            block, base = self._blocks[lowest], self._bases[lowest]
            if behind - base < _BEYOND[block.typecode]:
                if id(block) in self._shared:
                    block = self._blocks[lowest] = block[:]
                self._count += _splice(block, first - base, behind - base, odd)
                if not block or len(block) > _BLOCK_MAX or self._joins(lowest, len(block)):
                    self._repack(lowest, lowest, [base + one for one in block])
                return
        row: list[int] = []
        for place in sorted({lowest, highest}):
            base = self._bases[place]
            row += [base + one for one in self._blocks[place]]
        for block in self._blocks[lowest + 1 : highest]:
            self._count -= _members(block)
        self._count += _splice(row, first, behind, odd)
        self._repack(lowest, highest, row)

    def _repack(self, lowest: int, highest: int, row: list[int]) -> None:
        """Let `row` stand for the blocks from `lowest` to `highest`."""
        if row and self._joins(highest, len(row)):
            highest += 1
            base = self._bases[highest]
            row = row + [base + one for one in self._blocks[highest]]
        size = _BLOCK_MAX
        if highest + 1 < len(self._blocks):
            # One that appends leaves full blocks behind; one that fills gaps has room left.
            size = -(-len(row) // (len(row) // _BLOCK_MAX + 1))
            size += size % 2
        parts = [row[at : at + size] for at in range(0, len(row), max(size, 1))]
        self._bases[lowest : highest + 1] = [part[0] for part in parts]
        self._blocks[lowest : highest + 1] = [_narrow(part) for part in parts]

    def _joins(self, place: int, boundaries: int) -> bool:
        """Return whether a block with so few boundaries is to be one with the block behind it."""
        if boundaries >= _BLOCK_MIN or place + 1 >= len(self._blocks):
            return False
        return boundaries + len(self._blocks[place + 1]) <= _BLOCK_MAX // 2

    # -- snapshots ---------------------------------------------------------------------------

    def encode(self) -> tuple[int, list[Frozen]]:
        """Return the set for a snapshot: how many members it has, and its blocks, some a part."""
        self._shared = set(map(id, self._blocks))
        size = _BLOCKS_PER_PART
        return self._count, [
            Frozen(partial(_packed, self._bases[at : at + size], self._blocks[at : at + size]))
            for at in range(0, len(self._blocks), size)
        ]

    @classmethod
    def decode(cls, count: int, parts: Sequence[Any]) -> Ranges:
        """Return the set of a snapshot."""
        self = cls()
        self._count = count
        for part in map(opened, parts):
            view, at = memoryview(part), 0
            while at < len(view):
                base, boundaries, width = _HEAD.unpack_from(view, at)
                if width not in _CODES:
                    raise UnknownVersion(f"a set of offsets with distances of {width} bytes")
                at += _HEAD.size
                block = array(_CODES[width])
                block.frombytes(view[at : at + boundaries * width])
                at += boundaries * width
                self._bases.append(base)
                self._blocks.append(block)
        return self


def _packed(bases: list[int], blocks: list[array[int]]) -> bytes:
    """Return blocks as bytes, little-endian."""
    parts: list[Buffer] = []
    for base, block in zip(bases, blocks, strict=True):
        parts += (_HEAD.pack(base, len(block), block.itemsize), memoryview(block).cast("B"))
    return b"".join(parts)


def _splice(row: list[int] | array[int], first: int, behind: int, odd: int) -> int:
    """Change a row of boundaries; return how many members it has more than before."""
    lo, hi = bisect_left(row, first), bisect_right(row, behind)
    kept = [first] if lo % 2 == odd else []
    if hi % 2 == odd:
        kept.append(behind)
    old = row[lo:hi]
    # Members between the first and the last place are the same distance apart before and after.
    sign = 1 if lo % 2 else -1
    before = after = 0
    for one in old:
        before += sign * one
        sign = -sign
    sign = 1 if lo % 2 else -1
    for one in kept:
        after += sign * one
        sign = -sign
    if isinstance(row, array):
        row[lo:hi] = array(row.typecode, kept)
    else:
        row[lo:hi] = kept
    return after - before


def _members(block: array[int]) -> int:
    return sum(block[1::2]) - sum(block[::2])


def _narrow(row: list[int]) -> array[int]:
    """Return a block of boundaries as distances from the first of them."""
    base = row[0]
    span = row[-1] - base
    code = "H" if span < _BEYOND["H"] else "I" if span < _BEYOND["I"] else "Q"
    return array(code, [one - base for one in row])
