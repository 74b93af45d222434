"""Connections to other shards: between asyncio and `weir.host.shard_connections`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from weir.host.connections import UNSENT_BYTES_MAX
from weir.host.greeting import DialedConnection
from weir.host.links import Links
from weir.host.shard_connections import ShardConnection
from weir.host.shard_loop import EventQueue, ShardLoop
from weir.model.limits import LINK_HELLO_SECONDS
from weir.server.network.connections import Network

#: Takes a transport that begins, and returns the connection that it is.
Begin = Callable[[asyncio.Transport], ShardConnection]


class ShardProtocol(asyncio.Protocol):
    """Hands on what a transport says, and has the shard take what comes of it."""

    __slots__ = ("_begin", "_connection", "_queue", "_turns")

    _connection: ShardConnection

    def __init__(self, turns: ShardLoop, queue: EventQueue, begin: Begin) -> None:
        """Tell the connection that `begin` returns; `turns` runs what is put in `queue`."""
        self._turns = turns
        self._queue = queue
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._connection = self._begin(transport)
        self._run()

    def data_received(self, data: bytes) -> None:
        """Hand bytes on."""
        self._connection.handler.receive(data)
        if not self._queue.waits:
            self._turns.run()

    def pause_writing(self) -> None:
        """The other side does not take what it is sent."""
        self._connection.handler.pause_writing()

    def resume_writing(self) -> None:
        """It took it."""
        self._connection.handler.resume_writing()
        self._run()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over."""
        self._connection.handler.lost("" if error is None else in_words(error))
        self._run()

    def _run(self) -> None:
        if not self._queue.waits:
            self._turns.run()


class NodeLinks:
    """Takes connections that other nodes made: they become links."""

    def __init__(self, connections: ShardConnections, links: Links) -> None:
        """Have `links` say who is there."""
        self._connections = connections
        self._links = links

    def accept(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take a connection over that began with `data`, in the link dialect."""
        self._connections.adopt(
            transport, lambda address: self._links.accept(transport, data, address)
        )


class ShardConnections:
    """Makes connections to other shards, and takes those over that others made."""

    def __init__(
        self, turns: ShardLoop, queue: EventQueue, network: Network, found: set[str]
    ) -> None:
        """Add the addresses of other nodes to `found`."""
        self._turns = turns
        self._queue = queue
        self._network = network
        self._found = found
        self._loop = asyncio.get_running_loop()
        self._dialling: set[asyncio.Task[None]] = set()

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` after a while, and have the shard take what comes of it. Return what to call
        if that is not wanted any more.
        """
        return self._loop.call_later(seconds, self._act, act).cancel

    def dial(self, host: str, port: int, tries: int, dialled: DialedConnection) -> None:
        """Connect, and tell `dialled` what comes of that."""
        task = self._loop.create_task(self._dial(host, port, tries, dialled), name="weir link")
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def adopt(self, transport: asyncio.Transport, begin: Callable[[str], ShardConnection]) -> None:
        """Take a connection over that was another protocol's until now. `begin` is given where it
        comes from.
        """
        if (sock := transport.get_extra_info("socket")) is not None:
            _tune(sock)
        address = self._network.address(transport)
        protocol = ShardProtocol(self._turns, self._queue, lambda _: begin(address))
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    async def join(self, end: socket.socket, begin: Begin) -> None:
        """Take one end of a socket pair."""
        protocol = ShardProtocol(self._turns, self._queue, begin)
        await self._loop.create_unix_connection(lambda: protocol, sock=end)

    def close(self) -> None:
        """Dial no more."""
        for task in self._dialling:
            task.cancel()

    def _act(self, act: Callable[[], None]) -> None:
        act()
        if not self._queue.waits:
            self._turns.run()

    async def _dial(self, host: str, port: int, tries: int, dialled: DialedConnection) -> None:
        try:
            async with asyncio.timeout(LINK_HELLO_SECONDS):
                sock = await self._connected(host, port, tries)
                try:
                    await self._loop.create_connection(
                        lambda: ShardProtocol(self._turns, self._queue, dialled.connected),
                        sock=sock,
                    )
                except BaseException:
                    sock.close()
                    raise
        except (OSError, ValueError) as error:  # ValueError: no name at all
            self._act(partial(dialled.failed, in_words(error)))

    async def _connected(self, host: str, port: int, tries: int) -> socket.socket:
        infos = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._found.update(str(address[0]) for *_, address in infos)
        family, kind, protocol, _, address = infos[tries % len(infos)]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            _tune(sock)
            await self._loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        return sock


def in_words(error: Exception) -> str:
    """Return what a reader makes most of."""
    if isinstance(error, TimeoutError):
        return f"no answer within {LINK_HELLO_SECONDS:g} s"
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    return str(error) or type(error).__name__


def _tune(sock: socket.socket) -> None:
    """Set what a lane needs: frames go at once, and the system looks for a peer that is gone."""
    with contextlib.suppress(OSError):  # a test's connection may be no internet one
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
