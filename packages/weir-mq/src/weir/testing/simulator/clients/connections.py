"""Connections of a simulated client process: sockets, asyncio's transports over them, and the
machine with its names, which dials them.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable, Iterable
from contextvars import copy_context
from random import Random
from typing import Any

from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.clients.loop import Source, VirtualLoop
from weir.testing.simulator.network import End, Link, Way
from weir.testing.simulator.process import PORT, SHARD_PORT
from weir.testing.simulator.world import MS, SECOND, World

#: What the machine takes of a connection's bytes before they have arrived.
_TAKES = (600, 8_000, 64 * 1024)
#: What is read at most at a time, as asyncio does.
_READ_MAX = 256 * 1024
#: How likely a read brings less than what is there.
_CUT = 0.15
#: From how many bytes on that the socket does not take yet a protocol is asked to pause.
_HIGH = (0, 2_000, 64 * 1024)
#: How likely what came before a connection broke is lost with it.
_RESET = 0.2
_ROUND = (100, 6 * MS)
#: How often a connection is asked for again where nobody says anything.
_AGAIN = 1 * SECOND
_NODE = re.compile(r"node(\d+)")


class Socket:
    """One connection below asyncio: what has come and was not read, and how much may be sent."""

    def __init__(self, loop: VirtualLoop, dice: Random, peer: tuple[str, int]) -> None:
        """Be on its way; `join` connects it."""
        self.came = bytearray()
        #: Whether nothing comes any more behind that.
        self.ended = False
        self.dice = dice
        self.peer = peer
        self._loop = loop
        self._takes = dice.choice(_TAKES)
        self._link: Link | None = None
        self._source: Source | None = None
        self._gone = False

    def join(self, link: Link) -> None:
        """Be connected."""
        self._link = link
        link.on_arrival(self, self._arrived)

    def serve(self, source: Source) -> None:
        """Tell of what has come, and comes, from now on."""
        self._source = source
        if self.came or self.ended:
            self._loop.notice(source)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Take bytes; return how many."""
        if self._gone or self._link is None:
            return len(data)  # as into a connection that is broken: that is heard of later
        size = min(max(self._takes - self._link.unsent(self), 0), len(data))
        if size:
            self._link.send(self, bytes(data[:size]))
        return size

    def finish(self) -> None:
        """End once all that was sent has arrived."""
        self._gone = True
        if self._link is not None:
            self._link.finish_from(self)

    def cut(self, silent: bool = False) -> None:
        """End at once; nobody here hears of it."""
        self._gone = True
        if self._link is not None:
            self._link.cut(self, silent)

    def received(self, link: Link, data: bytes) -> None:
        """Keep what came until it is read."""
        if not self._gone:
            self.came += data
            self._notice()

    def lost(self, link: Link) -> None:
        """Nothing comes any more."""
        if not self._gone:
            self.ended = self._gone = True
            self._notice()

    def _arrived(self) -> None:
        if not self._gone:
            self._notice()

    def _notice(self) -> None:
        if self._source is not None:
            self._loop.notice(self._source)


class Transport(asyncio.Transport):
    """Reads are cut where chance would have it; what the socket does not take waits here."""

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol, socket: Socket) -> None:
        """Be connected; `connection_made` is called in the next turn of the loop."""
        super().__init__({"peername": socket.peer, "tls_version": "simulated"})
        self.context = copy_context()
        self._loop = loop
        self._protocol = protocol
        self._socket = socket
        self._dice = socket.dice
        self._unsent = bytearray()
        self._closing = False
        #: Whether the protocol was told, or will be, that the connection is gone.
        self._over = False
        self._reading = True
        self._paused = False
        self._high = self._dice.choice(_HIGH)
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(socket.serve, self)

    # -- readiness -----------------------------------------------------------------------------

    def ready(self) -> None:
        """Write what the socket takes by now, then read what has come."""
        if self._unsent and not self._over:
            self._flush()
        if self._reading and not self._closing:
            self._read()

    def _read(self) -> None:
        socket, dice = self._socket, self._dice
        size = min(len(socket.came), _READ_MAX)
        if size > 1 and dice.random() < _CUT:
            size = dice.randint(1, size - 1)
        if socket.ended and size and dice.random() < _RESET:
            socket.came.clear()
            size = 0
        if size:
            data = bytes(socket.came[:size])
            del socket.came[:size]
            try:
                self._protocol.data_received(data)
            except Exception as error:
                context = {"message": "data_received raised", "exception": error}
                self._loop.call_exception_handler(context)
                self._end(error)
                return
            if socket.came or socket.ended:
                self._loop.notice(self)
        elif socket.ended:
            self._end(ConnectionResetError(104, "Connection reset by peer"))

    def _flush(self) -> None:
        taken = self._socket.send(self._unsent)
        del self._unsent[:taken]
        if self._paused and len(self._unsent) <= self._high // 4:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and not self._unsent and not self._over:
            self._finish()

    # -- what a protocol asks for --------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep them until the socket takes them."""
        if self._closing or not data:
            return
        taken = 0 if self._unsent else self._socket.send(data)
        if taken < len(data):
            self._unsent += memoryview(data)[taken:]
            if len(self._unsent) > self._high and not self._paused:
                self._paused = True
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send several pieces as one."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for the socket."""
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return at how many bytes the protocol may write again, and above how many it may not."""
        return self._high // 4, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ask the protocol to pause above `high` bytes."""
        self._high = 64 * 1024 if high is None else high

    def can_write_eof(self) -> bool:
        """Return that there is no end of what is sent but that of the connection."""
        return False

    def is_closing(self) -> bool:
        """Whether it was closed, or is gone."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether what comes is read."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Let what comes wait in the socket."""
        self._reading = False

    def resume_reading(self) -> None:
        """Read again."""
        self._reading = True
        self._loop.notice(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Serve another protocol from now on."""
        assert isinstance(protocol, asyncio.Protocol)  # there is no other kind here
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that it serves."""
        return self._protocol

    def close(self) -> None:
        """Send what waits, then end."""
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._finish()

    def abort(self) -> None:
        """End at once."""
        self._end(None)

    def _finish(self) -> None:
        self._over = True
        self._socket.finish()
        self._loop.call_soon(self._protocol.connection_lost, None)

    def _end(self, error: Exception | None) -> None:
        if not self._over:
            self._closing = self._over = True
            self._unsent.clear()
            self._socket.cut()
            self._loop.call_soon(self._protocol.connection_lost, error)


class Machine:
    """The network of one process, as long as it lives."""

    def __init__(self, world: World, brokers: BrokerSet, site: int, name: str) -> None:
        """Be at a place of the network, under a name that others find it by."""
        self.world = world
        self.name = name
        self._brokers = brokers
        self._site = brokers.sites[name] = site
        self._sockets: list[Socket] = []
        self._ports: list[int] = []
        self._cut = False

    def cut(self, silent: bool) -> None:
        """Cut all connections, and make no more."""
        self._cut = True
        for port in list(self._ports):
            self.unlisten(port)
        for socket in self._sockets:
            socket.cut(silent)

    def listen(
        self, loop: VirtualLoop, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> asyncio.AbstractServer:
        """Take connections to a port from now on. Raises `OSError` if it is taken."""
        if self._cut or port in self._ports:
            raise OSError(errno.EADDRINUSE, f"port {port} of {self.name} is taken")
        server = PortServer(self, loop, factory, port)
        self._brokers.servers[self.name, port] = server
        self._ports.append(port)
        return server

    def unlisten(self, port: int) -> None:
        """Refuse connections to a port from now on."""
        if port in self._ports:
            self._ports.remove(port)
            del self._brokers.servers[self.name, port]

    def keep(self, socket: Socket) -> None:
        """Have a connection until it ends."""
        self._sockets = [one for one in self._sockets if not one.ended]
        self._sockets.append(socket)

    def links(self) -> int:
        """Return how many connections are open."""
        return sum(not socket.ended for socket in self._sockets)

    async def connect(
        self, loop: VirtualLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection to a node. Raises `OSError` if it refuses, or has no such name."""
        named = _NODE.fullmatch(host)
        node = 0 if named is None else int(named[1])
        if self._cut or (node not in self._brokers.hosts and host not in self._brokers.sites):
            raise OSError(f"{host} has no address")
        socket = Socket(loop, self.world.dice, (host, port))
        self.keep(socket)
        waiter: asyncio.Future[None] = loop.create_future()
        if node in self._brokers.hosts:
            self.world.after(self._round(), self._dial, loop, socket, node, port, waiter)
        else:
            self.world.after(self._round(), self._dial_process, loop, socket, host, port, waiter)
        try:
            await waiter
        except BaseException:
            socket.cut()
            raise
        protocol = factory()
        assert isinstance(protocol, asyncio.Protocol)  # there is no other kind here
        transport = Transport(loop, protocol, socket)
        made: asyncio.Future[None] = loop.create_future()
        loop.call_soon(_settle, made, None)
        try:
            await made
        except BaseException:
            transport.abort()
            raise
        return transport, protocol

    def _round(self) -> int:
        return self.world.between(*_ROUND)

    def _dial(
        self, loop: VirtualLoop, socket: Socket, node: int, port: int, waiter: asyncio.Future[None]
    ) -> None:
        if self._cut or waiter.done():
            return
        brokers = self._brokers
        # Its name may lead to another node, or to a machine on which no node runs.
        found = brokers.misled.get(node, node)
        host = brokers.hosts.get(found)
        if not brokers.net.joined(self._site, found or node) or (
            brokers.far and host is not None and not host.up
        ):
            self.world.after(_AGAIN, self._dial, loop, socket, node, port, waiter)
            return
        listening = [one for one in host.running if one.serves] if host is not None else []
        if port != PORT:
            listening = [one for one in listening if one.number == port - SHARD_PORT]
        error: OSError | None = None
        if listening:
            process, net = self.world.dice.choice(listening), brokers.net
            up, down = net.way(self._site, process.node), net.way(process.node, self._site)
            socket.join(process.sockets.connect(socket, up, down))
        else:
            error = _refused()
        loop.enter(_settle, waiter, error)

    def _dial_process(
        self, loop: VirtualLoop, socket: Socket, name: str, port: int, waiter: asyncio.Future[None]
    ) -> None:
        """Connect to a port of another process than a node."""
        if self._cut or waiter.done():
            return
        brokers = self._brokers
        net, site = brokers.net, brokers.sites[name]
        if not net.joined(self._site, site):
            self.world.after(_AGAIN, self._dial_process, loop, socket, name, port, waiter)
            return
        server, error = brokers.servers.get((name, port)), None
        if server is not None:
            socket.join(server.accept(socket, net.way(self._site, site), net.way(site, self._site)))
        else:
            error = _refused()
        loop.enter(_settle, waiter, error)


class PortServer(asyncio.AbstractServer):
    """Listens on a port of a process."""

    def __init__(
        self, machine: Machine, loop: VirtualLoop, factory: Callable[[], asyncio.BaseProtocol],
        port: int,
    ) -> None:  # fmt: skip
        """Serve each connection by a protocol that `factory` makes, in the context of now."""
        self._machine = machine
        self._loop = loop
        self._factory = factory
        self._port = port
        self._context = copy_context()
        self._closed = False

    @property
    def sockets(self) -> tuple[PortServer, ...]:
        """What it listens on."""
        return () if self._closed else (self,)

    def getsockname(self) -> tuple[str, int]:
        """Return the name of the process, and the port."""
        return self._machine.name, self._port

    def accept(self, client: End, up: Way, down: Way) -> Link:
        """Take a connection, and serve it in a turn of the loop."""
        machine = self._machine
        socket = Socket(self._loop, machine.world.dice, ("client", 0))
        link = Link(machine.world, client, socket, up, down)
        socket.join(link)
        machine.keep(socket)
        self._loop.enter(self._context.run, self._serve, socket)
        return link

    def close(self) -> None:
        """Take no more connections."""
        if not self._closed:
            self._closed = True
            self._machine.unlisten(self._port)

    def is_serving(self) -> bool:
        """Whether it takes connections."""
        return not self._closed

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the process."""
        return self._loop

    async def start_serving(self) -> None:
        """Return at once: it serves since it was made."""

    async def serve_forever(self) -> None:
        """Refuse: a process of a world ends by itself, or is killed."""
        raise RuntimeError("wait for what ends your program instead")

    async def wait_closed(self) -> None:
        """Return at once: connections are closed one by one."""

    def _serve(self, socket: Socket) -> None:
        protocol = self._factory()
        assert isinstance(protocol, asyncio.Protocol)  # there is no other kind here
        Transport(self._loop, protocol, socket)


def _refused() -> OSError:
    return ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def _settle(waiter: asyncio.Future[None], error: OSError | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
