"""Connections on asyncio: those of peers, and those to other shards, between its transports and
`weir.host`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Container
from functools import partial
from typing import Protocol, cast

from weir.errors import Disconnected
from weir.host.connections import UNSENT_BYTES_MAX, ClientConnection
from weir.host.greeting import DialedConnection
from weir.host.links import Links
from weir.host.shard_connections import ShardConnection
from weir.host.shard_loop import EventQueue, ShardLoop
from weir.model.limits import LINK_HELLO_SECONDS
from weir.server.network.tls import TlsAcceptor
from weir.tls.dialling import Handshake

_INTERNET = (socket.AF_INET, socket.AF_INET6)
#: The first byte of Linux's `struct tcp_info`, of a connection that neither side has ended.
_ESTABLISHED = 1
#: A node that takes no TLS yet is linked to without for so long, where that is allowed.
_PLAIN_SECONDS = 10.0
#: Takes a transport that begins, and returns the connection that it is.
Begin = Callable[[asyncio.Transport], ShardConnection]


class Runner(Protocol):
    """Carries out the effects of a shard."""

    def run(self) -> None:
        """Let the shard take what is in its queue, and do what comes of it."""

    def run_soon(self, session: int, size: int) -> None:
        """Do that for `size` bytes that a peer said just now, together with what others say in this
        turn of the loop.
        """


class LinkAcceptor(Protocol):
    """Takes connections that other nodes made."""

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
            self._running.run_soon(self.connection.session, len(data))

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

    def __init__(self, connections: ShardConnections, links: Links, tls: TlsAcceptor) -> None:
        """Let `links` identify the peer, and `tls` check its certificate."""
        self._connections = connections
        self._links = links
        self._tls = tls

    def accept(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take a connection over that began with `data`, in the link dialect."""
        certified = self._tls.node_of(transport)
        self._connections.adopt(
            transport, lambda address: self._links.accept(transport, data, address, certified)
        )


class ShardConnections:
    """Makes connections to other shards, and takes those over that others made."""

    def __init__(
        self, turns: ShardLoop, queue: EventQueue, network: Network, found: set[str],
        tls: TlsAcceptor,
    ) -> None:  # fmt: skip
        """Add the addresses of other nodes to `found`. Dial them by `tls` as it says."""
        self._tls = tls
        #: Where nobody took TLS, until when it is not tried again.
        self._plain: dict[tuple[str, int], float] = {}
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
                    await self._begin(sock, host, port, dialled)
                except BaseException:
                    sock.close()
                    raise
        except (OSError, ValueError, Disconnected) as error:  # ValueError: no name at all
            self._act(partial(dialled.failed, in_words(error)))

    async def _begin(
        self, sock: socket.socket, host: str, port: int, dialled: DialedConnection
    ) -> None:
        """Give a connected socket its transport, by TLS if that is to be."""
        protocol = ShardProtocol(self._turns, self._queue, dialled.connected)
        tls, place = self._tls, (host, port)
        serving = None if tls.links == "off" else tls.serving
        is_plain = self._plain.get(place, 0.0) > self._loop.time()
        if serving is None or (is_plain and tls.links == "prefer"):
            await self._loop.create_connection(lambda: protocol, sock=sock)
            return
        check = partial(tls.check_node, node=dialled.hello.to_node)
        handshake = Handshake(serving.dialling, protocol, None, check)
        await self._loop.create_connection(handshake.layer, sock=sock)
        try:
            await handshake.done(LINK_HELLO_SECONDS)
        except ConnectionResetError:  # a node without a certificate hangs up
            self._plain[place] = self._loop.time() + _PLAIN_SECONDS
            raise

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
