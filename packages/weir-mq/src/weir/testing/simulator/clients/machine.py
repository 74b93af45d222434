"""The machine that a simulated client process runs on: names, and connections that it dials."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.clients.sockets import Socket
from weir.testing.simulator.clients.transport import Transport
from weir.testing.simulator.process import PORT, SHARD_PORT
from weir.testing.simulator.world import MS, SECOND, World

_ROUND = (100, 6 * MS)
#: How often a connection is asked for again where nobody says anything.
_AGAIN = 1 * SECOND
_NODE = re.compile(r"node(\d+)")


class Machine:
    """The network of one process, as long as it lives."""

    def __init__(self, world: World, brokers: BrokerSet, site: int) -> None:
        """Be at a place of the network."""
        self._world = world
        self._brokers = brokers
        self._site = site
        self._sockets: list[Socket] = []
        self._cut = False

    def cut(self, silent: bool) -> None:
        """Cut all connections, and make no more."""
        self._cut = True
        for socket in self._sockets:
            socket.cut(silent)

    def links(self) -> int:
        """Return how many connections are open."""
        return sum(not socket.ended for socket in self._sockets)

    async def connect(
        self, loop: VirtualLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection to a node. Raises `OSError` if it refuses, or has no such name."""
        named = _NODE.fullmatch(host)
        if self._cut or named is None or int(named[1]) not in self._brokers.hosts:
            raise OSError(f"{host} has no address")
        socket = Socket(loop, self._world.dice, (host, port))
        self._sockets = [one for one in self._sockets if not one.ended]
        self._sockets.append(socket)
        waiter: asyncio.Future[None] = loop.create_future()
        self._world.after(self._round(), self._dial, loop, socket, int(named[1]), port, waiter)
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
        return self._world.between(*_ROUND)

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
            self._world.after(_AGAIN, self._dial, loop, socket, node, port, waiter)
            return
        listening = [one for one in host.running if one.serves] if host is not None else []
        if port != PORT:
            listening = [one for one in listening if one.number == port - SHARD_PORT]
        error: OSError | None = None
        if listening:
            socket.join(brokers, self._world.dice.choice(listening), self._site)
        else:
            error = ConnectionRefusedError(111, "Connection refused")
        loop.enter(_settle, waiter, error)


def _settle(waiter: asyncio.Future[None], error: OSError | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
