"""Accepted connections: between asyncio's transports and `weir.host.connections`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Container
from typing import Protocol, cast

from weir.host.connections import UNSENT_BYTES_MAX, ClientConnection
from weir.host.shard_loop import EventQueue

_INTERNET = (socket.AF_INET, socket.AF_INET6)
#: The first byte of Linux's `struct tcp_info`, of a connection that neither side has ended.
_ESTABLISHED = 1


class Runner(Protocol):
    """Who does what a shard asks for."""

    def run(self) -> None:
        """Let the shard take what is in its queue, and do what comes of it."""


class LinkAcceptor(Protocol):
    """Who takes connections that other nodes made."""

    def accept(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take a connection over that began with `data`, in the link dialect."""


class NoLinks:
    """A host that has no links to other nodes."""

    def accept(self, transport: asyncio.Transport, data: bytes) -> None:
        """Hang up."""
        transport.abort()


class Network:
    """What a host on asyncio knows of its network."""

    def __init__(self, found: Container[str]) -> None:
        """`found` are the addresses of other nodes."""
        self.found = found

    def address(self, transport: asyncio.Transport) -> str:
        """Return the address of a peer; empty if it has none."""
        name = transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    def is_gone(self, transport: asyncio.Transport) -> bool:
        """Return whether a peer has hung up from which nothing is read."""
        sock = transport.get_extra_info("socket")
        if sock is None or sock.family not in _INTERNET:
            return False
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state[0] != _ESTABLISHED


class Peer(asyncio.Protocol):
    """Hands on what a transport says, and has the shard take it."""

    __slots__ = ("_links", "_queue", "_running", "_transport", "connection")

    def __init__(
        self, running: Runner, queue: EventQueue, connection: ClientConnection[asyncio.Transport],
        links: LinkAcceptor,
    ) -> None:  # fmt: skip
        """Tell `connection`, and have `running` run when that has put something into `queue`.
        Another node's connection goes to `links`.
        """
        self.connection = connection
        self._links = links
        self._running = running
        self._queue = queue

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or hang up if there are enough connections."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        if not self.connection.open(transport):
            # Later: uvloop begins to read behind connection_made.
            asyncio.get_running_loop().call_soon(self.connection.update)
        queue = self._queue
        if queue.events and not queue.waits:
            self._running.run()

    def moved(self, transport: asyncio.Transport) -> None:
        """Go on over another transport: the connection is the same."""
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.connection.move(transport)

    def update(self) -> None:
        """Read, or not, as it is to be."""
        self.connection.update()

    def data_received(self, data: bytes) -> None:
        """Hand bytes on."""
        if not self.connection.receive(data):
            self._links.accept(self._transport, data)
        queue = self._queue
        if queue.events and not queue.waits:
            self._running.run()

    def pause_writing(self) -> None:
        """The peer does not take its replies."""
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """The peer took its replies."""
        self.connection.resume_writing()
        if not self._queue.waits:
            self._running.run()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over."""
        self.connection.close()
        self._run()

    def _run(self) -> None:
        queue = self._queue
        if queue.events and not queue.waits:
            self._running.run()
