"""A peer of another shard, whose connection is there: what is sent to it goes over a trunk."""

from __future__ import annotations

from typing import Protocol

from weir.codec.fields import Buffer
from weir.protocol import trunk
from weir.protocol.trunk import Kind


class Writes(Protocol):
    """The end of a trunk."""

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write buffers as they are; `charged` bytes are given back once they are out."""

    def answer(self, remote: int, reply: bytes) -> None:
        """Write a small reply to a session of the shard at the other end."""


class Guest:
    """A peer of another shard, as the driver's effects reach it."""

    __slots__ = ("_end", "_remote")

    def __init__(self, end: Writes, remote: int) -> None:
        """Be session `remote` of the shard at the other end."""
        self._end = end
        self._remote = remote

    def send(self, buffers: tuple[Buffer, ...], charged: int) -> None:
        """Send replies."""
        self._end.write(trunk.encode(Kind.REPLIES, self._remote, *buffers), charged)

    def answer(self, reply: bytes) -> None:
        """Send a small reply, with those to others."""
        self._end.answer(self._remote, reply)

    def hang_up(self, reason: str) -> None:
        """Let the other shard close the connection."""
        self._end.write(trunk.encode(Kind.HANGUP, self._remote, reason.encode()))
