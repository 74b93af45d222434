"""Payloads of recent entries, so that a reader at the tail costs no disk."""

from __future__ import annotations

from collections import OrderedDict

from weir.codec.fields import Buffer

#: What keeping a payload takes besides its own bytes.
ENTRY_BYTES = 256


class Cache:
    """The latest payloads by log position, up to a number of bytes; the oldest leave first."""

    __slots__ = ("_bytes", "_bytes_max", "_kept")

    def __init__(self, bytes_max: int) -> None:
        """Hold at most `bytes_max` bytes, what it takes to keep them included."""
        self._bytes_max = bytes_max
        self._bytes = 0
        # Not a plain dict: taking its first key again and again walks over all removed ones.
        self._kept: OrderedDict[int, tuple[tuple[Buffer, ...], int]] = OrderedDict()

    def put(self, position: int, payload: tuple[Buffer, ...], length: int) -> None:
        """Keep a payload of `length` bytes; one over the whole budget is not kept."""
        size = length + ENTRY_BYTES
        if size > self._bytes_max:
            return
        self._kept[position] = (payload, size)
        self._bytes += size
        while self._bytes > self._bytes_max:
            self._bytes -= self._kept.popitem(last=False)[1][1]

    def get(self, position: int) -> tuple[Buffer, ...] | None:
        """Return the payload of the frame at a position, if it is still here."""
        kept = self._kept.get(position)
        return kept[0] if kept else None
