"""Cutting frames out of a byte stream, for every dialect.

A `Reassembler` copies only what spans two reads; a frame that lies whole in one read is a view.
The size of a frame is known, and refused if too large, before its bytes are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntFlag

import msgspec

from weir.codec import Buffer, compact
from weir.errors import RemoteProtocolError

#: version u8 = 2, flags u8, opcode u16, length u32 of the body, correlation u64.
CLIENT_HEADER = struct.Struct("<BBHIQ")
CLIENT_VERSION = 2
#: version u8 = 1, length u32 of the body, opcode u16, sn u8; a check byte follows the body.
DEVICE_HEADER = struct.Struct(">BIHB")
#: So many bytes `xor` folds without making them fewer first.
_FOLDED_AT_ONCE = 64


class Flags(IntFlag):
    """Flags of a client frame."""

    RESPONSE = 1
    ERROR = 2


class ClientFrame(msgspec.Struct, frozen=True):
    """A client frame taken apart; `body` is a view that keeps its bytes alive."""

    flags: int
    opcode: int
    correlation: int
    body: memoryview


class AnswersHttp(RemoteProtocolError):
    """The peer answers over HTTP, so it is no broker, and will not become one."""


def check_no_http(view: Buffer, at: int) -> None:
    """Raise `AnswersHttp` if the bytes at `at` begin an answer over HTTP."""
    if bytes(memoryview(view)[at : at + 5]) == b"HTTP/":
        raise AnswersHttp(
            "this port answers over HTTP, so it is not a broker's port but perhaps that of its "
            "metrics: give the port that `weir serve` says it listens on (6800 unless it is set)"
        )


def take_client_frame(view: memoryview) -> ClientFrame:
    """Take apart one whole client frame."""
    _, flags, opcode, _, correlation = CLIENT_HEADER.unpack_from(view)
    return ClientFrame(flags, opcode, correlation, view[CLIENT_HEADER.size :])


class Reassembler:
    """Cuts a stream into whole frames.

    `header_size` bytes are enough for `size_of(view, at)` to tell a frame's size; it raises
    `RemoteProtocolError` for one that is not allowed, and the stream is dead after that.
    """

    __slots__ = ("_frame", "_header_size", "_size", "_size_of", "_start", "pending")

    def __init__(self, header_size: int, size_of: Callable[[memoryview, int], int]) -> None:
        """Start at the beginning of a frame."""
        self._header_size = header_size
        self._size_of = size_of
        self._start = b""  # fewer bytes than a header
        self._frame: bytearray | None = None  # a frame that spans reads, as far as it has come
        self._size = 0
        #: Bytes held for the frame under way: those that have come, not those it speaks of.
        self.pending = 0

    @property
    def claimed(self) -> int:
        """Bytes that the frame under way will take when it is whole; 0 until its header is."""
        return 0 if self._frame is None else self._size

    @property
    def header(self) -> bytes | None:
        """The header of the frame under way; None until it has come."""
        return None if self._frame is None else bytes(self._frame[: self._header_size])

    def receive(self, data: bytes) -> list[memoryview]:
        """Take the next bytes of the stream; return the frames that are whole now, in order."""
        frames: list[memoryview] = []
        view, at = memoryview(data), 0
        if self._frame is not None:
            at = self._top_up(view, frames)
        elif self._start:
            view = memoryview(self._start + data)
            self._start, self.pending = b"", 0
        end, header_size, size_of = len(view), self._header_size, self._size_of
        while end - at >= header_size:
            size = size_of(view, at)
            if size == end and not at:
                return [view]  # a frame a read, as small ones mostly come
            if size > end - at:
                # It grows with what comes: a peer that only speaks of a large frame costs nothing.
                self._frame, self._size = bytearray(view[at:]), size
                self.pending = end - at
                return frames
            frames.append(compact(view[at : at + size], end))
            at += size
        if at < end:
            self._start = bytes(view[at:])
            self.pending = end - at
        return frames

    def _top_up(self, view: memoryview, frames: list[memoryview]) -> int:
        frame = self._frame
        assert frame is not None
        step = min(self._size - len(frame), len(view))
        frame += view[:step]
        self.pending = len(frame)
        if self.pending == self._size:
            frames.append(memoryview(frame))
            self._frame, self.pending = None, 0
        return step


def xor(data: bytes | memoryview) -> int:
    """Return the XOR of all bytes, folding them as one number instead of going byte by byte.

    It is the check byte of a frame that holds these; that of a whole frame is 0.
    """
    folded, size = int.from_bytes(data, "little"), len(data)
    while size > _FOLDED_AT_ONCE:
        size -= size // 2
        folded = (folded >> (8 * size)) ^ (folded & ((1 << (8 * size)) - 1))
    # Written out: each frame of a crowd comes by here.
    folded ^= folded >> 256
    folded ^= folded >> 128
    folded ^= folded >> 64
    folded ^= folded >> 32
    folded ^= folded >> 16
    return (folded ^ folded >> 8) & 0xFF
