"""Scatterings (DESIGN §5): what their batches say of the whole, and how their parts are called.

A part is a number: the group of a partition · 2, + 1 if it is acks there and not a batch. The
SCATTERED column of a batch lies bare behind the tag list, little-endian u64 each: the number that
its producer gave the scattering, how many parts it has, and these, rising.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from weir.codec.fields import Buffer
from weir.errors import BadBatch
from weir.model.limits import SCATTER_PARTS_MAX

_HEAD = struct.Struct("<QQ")
_LIMIT = 1 << 63


def batch_part(group: int) -> int:
    """Return the part that is a batch in a group."""
    return group << 1


def acks_part(group: int) -> int:
    """Return the part that is acks in a group."""
    return group << 1 | 1


def part_group(part: int) -> int:
    """Return the group of a part."""
    return part >> 1


def is_acks(part: int) -> bool:
    """Return whether a part is acks."""
    return bool(part & 1)


class Scattered(NamedTuple):
    """What a batch says of its scattering: its producer's number for it, and all its parts."""

    number: int
    parts: tuple[int, ...]

    @property
    def packed_size(self) -> int:
        """Bytes of the column."""
        return _HEAD.size + 8 * len(self.parts)

    def pack(self) -> bytes:
        """Return the SCATTERED column."""
        return _HEAD.pack(self.number, len(self.parts)) + struct.pack(
            f"<{len(self.parts)}Q", *self.parts
        )

    @classmethod
    def unpack(cls, data: Buffer) -> Scattered:
        """Read the column that begins with `data`. Raises `BadBatch` unless its parts rise."""
        if len(data) < _HEAD.size:
            raise BadBatch("a batch of a scattering ends before its column")
        number, count = _HEAD.unpack_from(data)
        if not 1 <= count <= SCATTER_PARTS_MAX or len(data) < _HEAD.size + 8 * count:
            raise BadBatch(f"a scattering of {count:,} parts: 1 to {SCATTER_PARTS_MAX}")
        found = cls(number, struct.unpack_from(f"<{count}Q", data, _HEAD.size))
        if number >= _LIMIT or not are_parts(found.parts):
            raise BadBatch(f"scattering {number} has parts that do not rise")
        return found


def are_parts(parts: Iterable[int]) -> bool:
    """Return whether these rise, and may be parts."""
    last = 0
    for part in parts:
        if not last < part < _LIMIT:
            return False
        last = part
    return True


class Attempt(NamedTuple):
    """One try of a scattering: all its parts are to be stamped `stamp`."""

    producer: int
    epoch: int
    number: int
    stamp: int
