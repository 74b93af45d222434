"""The check byte of device frames: the XOR of all bytes before it, so that of the frame is 0."""

from __future__ import annotations

#: So many bytes are folded without making them fewer first.
_SMALL = 64


def xor(data: bytes | memoryview) -> int:
    """Return the XOR of all bytes, folding them as one number instead of going byte by byte."""
    folded, size = int.from_bytes(data, "little"), len(data)
    while size > _SMALL:
        size -= size // 2
        folded = (folded >> (8 * size)) ^ (folded & ((1 << (8 * size)) - 1))
    # Written out: each frame of a crowd comes by here.
    folded ^= folded >> 256
    folded ^= folded >> 128
    folded ^= folded >> 64
    folded ^= folded >> 32
    folded ^= folded >> 16
    return (folded ^ folded >> 8) & 0xFF
