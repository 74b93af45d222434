"""What a load generator must know of a broker's protocol, as two small state machines. Pure.

A protocol frames every message between the same bytes, so a producer writes a thousand of them from
one block of memory, and Python is never the limit. Confirms are counted by a marker, not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from weir.errors import WeirError


class PeerRefused(WeirError):
    """A peer answered with an error; the message holds what it said."""


class Publishing(Protocol):
    """One producer's connection: `head` and `tail` stand around every value."""

    head: bytes
    tail: bytes
    #: How many messages were confirmed so far.
    confirmed: int

    @property
    def ready(self) -> bool:
        """Whether messages may be sent."""

    def opening(self) -> bytes:
        """Return what is sent as soon as the connection is there."""

    def before(self, count: int) -> bytes:
        """Return what stands before `count` messages that go out at once."""

    def receive(self, data: bytes) -> bytes:
        """Take what arrived; return what has to be answered. Raises `PeerRefused`."""


class OneByOne:
    """A protocol in which nothing stands before several messages."""

    def before(self, count: int) -> bytes:
        """Return nothing."""
        return b""


class Consuming(Protocol):
    """One consumer's connection."""

    @property
    def ready(self) -> bool:
        """Whether messages may be asked for."""

    def opening(self) -> bytes:
        """Return what is sent as soon as the connection is there; it asks for no message."""

    def begin(self) -> bytes:
        """Return what asks for the first messages, once it is `ready`."""

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Take what arrived; return the values in it, and acks and requests to send."""


class Sharing(Consuming, Protocol):
    """The connection of one of several workers that share a topic."""

    @property
    def settled(self) -> bool:
        """Whether the peer has said that it knows all acks; it may have to be asked by `end`."""

    def end(self) -> bytes:
        """Return what asks, behind the last ack, whether the peer knows all of them."""


class Client(Protocol):
    """A connection by a client that is shipped for a peer: the one that its users have."""

    async def open(self, port: int) -> None:
        """Connect to a peer on this machine."""

    async def publish(self, topic: str, value: bytes) -> None:
        """Send a message and return when it is confirmed."""

    async def work(
        self, topic: str, number: int, grant: int, take: Callable[[list[bytes]], None]
    ) -> None:
        """Take messages as worker `number`, up to `grant` at a time, and ack them, for ever."""

    async def settled(self) -> None:
        """Return when the peer knows all acks."""

    async def close(self) -> None:
        """End the connection."""


class Marker:
    """Counts how often a marker occurs in a stream, wherever the stream is cut."""

    def __init__(self, marker: bytes, before: bytes = b"") -> None:
        """Look for `marker`; `before` stands ahead of the stream, for one that begins a line."""
        self._marker = marker
        self._rest = before[len(before) - len(marker) + 1 :] if len(marker) > 1 else b""

    def count(self, data: bytes) -> int:
        """Return how many markers end in `data`."""
        whole = self._rest + data
        keep = len(self._marker) - 1
        self._rest = whole[-keep:] if keep else b""
        return whole.count(self._marker)


class Records:
    """Cuts records of one pattern out of a stream; what is not whole yet is kept."""

    def __init__(self, pattern: bytes) -> None:
        """Take the pattern of one record, whose groups are returned."""
        self._pattern = re.compile(pattern, re.DOTALL)
        self.rest = b""

    def take(self, data: bytes) -> list[tuple[bytes, ...]]:
        """Return the groups of all records that are whole now."""
        whole = self.rest + data
        found = []
        behind = 0
        for match in self._pattern.finditer(whole):
            found.append(match.groups())
            behind = match.end()
        self.rest = whole[behind:]
        return found


def refused(peer: str, data: bytes) -> PeerRefused:
    """Return the error that says what a peer answered."""
    said = " ".join(data[:300].decode("utf-8", "replace").split())
    return PeerRefused(f"{peer} refused: {said}")
