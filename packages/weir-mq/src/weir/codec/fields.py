"""Fixed-width fields and 8-byte alignment, shared by every binary format of weir."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

#: Anything that can be read as bytes without a copy.
Buffer = bytes | bytearray | memoryview

#: Numbers of so many bits: what a field of a binary dialect holds, where MessagePack carries it.
Unsigned8 = Annotated[int, Meta(ge=0, le=0xFF)]
Unsigned16 = Annotated[int, Meta(ge=0, le=0xFFFF)]
Unsigned32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
#: MessagePack has no larger one.
Unsigned64 = Annotated[int, Meta(ge=0)]

ALIGNMENT = 8
_PADS = tuple(bytes(n) for n in range(ALIGNMENT))


def padding(size: int) -> bytes:
    """Return the zero bytes (0 to 7) that bring `size` bytes to a multiple of 8."""
    return _PADS[-size % ALIGNMENT]


def padded(size: int) -> int:
    """Return `size` rounded up to a multiple of 8."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def total(buffers: Sequence[Buffer]) -> int:
    """Return the number of bytes in all `buffers` together."""
    return sum(map(len, buffers))


def joined(buffers: Sequence[Buffer]) -> Buffer:
    """Return `buffers` as one; a lone one as it is, without a copy."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def compact(view: memoryview, backing: int) -> memoryview:
    """Return `view`, copied if it would keep a `backing` of more than four times its bytes alive.

    A small message cut out of a large network read would otherwise pin the whole read for as long
    as the message is cached, outside every byte budget. Batches of a producer under load come two
    or three a read; those stay where they are, for together they are most of it.
    """
    return view if len(view) * 4 >= backing else memoryview(bytes(view))


U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
