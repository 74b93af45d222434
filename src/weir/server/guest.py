"""A peer of another shard, whose connection is there: what is sent to it goes over a trunk."""

from __future__ import annotations

from typing import Protocol

from weir.codec.fields import Buffer
from weir.wire import trunk
from weir.wire.trunk import Kind


class Writes(Protocol):
    """The end of a trunk."""

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write buffers as they are; `charged` bytes are given back once they are out."""


class Guest:
    """A peer of another shard, as the driver's effects reach it."""

    __slots__ = ("_end", "_remote", "_welcome", "greeting")

    def __init__(self, end: Writes, remote: int) -> None:
        """Be session `remote` of the shard at the other end."""
        #: Whether the next reply is a welcome, and another one follows it soon.
        self.greeting = False
        self._end = end
        self._remote = remote
        self._welcome: tuple[Buffer, ...] = ()  # waits for that one: a packet less for a device

    def send(self, buffers: tuple[Buffer, ...], charged: int) -> None:
        """Send replies."""
        greeting, self.greeting = self.greeting, False
        if greeting and not charged:
            self._welcome = buffers
            return
        welcome, self._welcome = self._welcome, ()
        self._end.write(trunk.encode(Kind.REPLIES, self._remote, *welcome, *buffers), charged)

    def hang_up(self, reason: str) -> None:
        """Let the other shard close the connection."""
        self.let_out()
        self._end.write(trunk.encode(Kind.HANGUP, self._remote, reason.encode()))

    def let_out(self) -> None:
        """Send a welcome that waits."""
        self.greeting = False
        if self._welcome:
            welcome, self._welcome = self._welcome, ()
            self._end.write(trunk.encode(Kind.REPLIES, self._remote, *welcome))
