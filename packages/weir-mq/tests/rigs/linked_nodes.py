"""Drivers over real sockets, with shards that only note what they are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from msgspec.structs import replace

from rigs import drivers
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.host.links import ShardInfo
from weir.protocol import link
from weir.protocol.link import Lane, LinkHello
from weir.server.assembly import assemble
from weir.server.network.poller import listening
from weir.server.network.tls import LinksTls, TlsPolicy
from weir.tls.files import ServerTls

MIB = 1 << 20

SYSTEM = 7


class Noting:
    """A shard that notes what it is told."""

    ready = True

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.budget = Budget(64 * MIB)
        self.has_deferred = True
        self.heard: list[Any] = []
        self.news = asyncio.Event()

    def start(self) -> list[ef.Effect]:
        return []

    def step(self, *events: Any) -> list[ef.Effect]:
        self.heard += [event for event in events if not isinstance(event, ev.Ticked)]
        self.news.set()
        return []

    def run_deferred(self) -> list[ef.Effect]:
        return []

    def passed_on(self, shard: int, size: int) -> None:
        self.budget.release(size)


class Node:
    """A shard of a node, its driver, and its port."""

    def __init__(self, own: ShardInfo, links_tls: LinksTls = "off") -> None:
        self.shard = Noting(own.identity)
        self.driver = assemble(
            cast(Shard, self.shard), {}, None, own, policy=TlsPolicy(links=links_tls)
        )
        self.links = self.driver.links
        self.port = 0

    async def listen(self, port: int = 0) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self.driver.protocol, "127.0.0.1", port, reuse_port=True)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def heard(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.shard.heard if isinstance(event, kind)]

    async def until(self, kind: type[Any], count: int = 1) -> list[Any]:
        """Wait until so many events of a kind came; return them."""
        async with asyncio.timeout(20):
            while len(self.heard(kind)) < count:
                self.shard.news.clear()
                await self.shard.news.wait()
        return self.heard(kind)

    async def frames(self, count: int) -> list[tuple[int, int, int, bytes]]:
        """Wait for so many frames; return place, kind, group and body of each."""
        while True:
            found = [
                (event.place, frame.kind, frame.group, bytes(frame.body))
                for event in self.heard(ev.PeerSent)
                for frame in event.frames
            ]
            if len(found) >= count:
                return found
            await self.until(ev.PeerSent, len(self.heard(ev.PeerSent)) + 1)

    def connect(self, other: Node, port: int = 0) -> None:
        node = other.shard.identity.node
        self.do(ef.Connect(node, "127.0.0.1", port or other.port))

    def do(self, effect: ef.Effect) -> None:
        drivers.do(self.driver, effect)
        drivers.run(self.driver)

    def tick(self) -> None:
        self.links.check_silence()
        drivers.run(self.driver)

    def be_at(self, **changes: Any) -> None:
        """Say this of itself to those who link with it."""
        self.links._own = replace(self.links._own, **changes)

    @property
    def incoming(self) -> dict[int, Any]:
        """The links from other shards, by place."""
        return cast(dict[int, Any], self.links._in)

    def lane_from(self, place: int, lane: Lane) -> Any:
        return self.incoming[place]._lanes[lane]

    def lane_to(self, node: int, lane: Lane) -> Any:
        """Return a lane of the link to a node of one shard."""
        return self.links._out[node][0]._lanes[lane]

    def tls_to(self, node: int) -> list[str | None]:
        """Return the versions of TLS of the lanes to a node of one shard; None: without."""
        lanes = (self.lane_to(node, lane) for lane in (Lane.QUICK, Lane.BULK))
        return [lane._transport.get_extra_info("tls_version") for lane in lanes]

    def silence_to(self, node: int) -> int:
        """Return for how many ticks a node has said nothing on the quick lane."""
        return int(self.lane_to(node, Lane.QUICK)._silent)

    def stop_reading(self, place: int, lane: Lane) -> None:
        """Read nothing any more of what comes on a lane."""
        self.lane_from(place, lane)._transport.pause_reading()

    def be_linked_as(self, other: Node) -> None:
        """Let what links now end up at the links of another."""
        self.driver._node_links = other.driver._node_links

    def send(self, place: int, quick: bool, *body: bytes, charged: int = 0) -> None:
        self.shard.budget.take(charged)
        self.do(ef.SendToPeer(place, quick, link.encode(1, 5, *body), charged))


@asynccontextmanager
async def secured(
    *owns: tuple[ShardInfo, ServerTls | None, LinksTls],
) -> AsyncIterator[list[Node]]:
    """Run nodes that take TLS on their ports, each with its certificate and its word on links."""
    nodes = []
    async with AsyncExitStack() as stack:
        for own, serving, links_tls in owns:
            node = Node(own, links_tls)
            nodes.append(node)
            if serving is not None:
                node.driver.tls.serve(serving)
            listening_at = listening(node.driver, "127.0.0.1", 0)
            _, node.port = await stack.enter_async_context(listening_at)
        try:
            yield nodes
        finally:
            for node in nodes:
                node.links.close()
                node.driver._shard_connections.close()
                node.driver._connections.cut()
                drivers.end(node.driver)
            await asyncio.sleep(0.05)


def made_own(
    node: int, shard: int = 0, shards: int = 1, logs: int = 2, system: int = SYSTEM
) -> ShardInfo:
    return ShardInfo(Identity(system, 0, node, shard), logs, shards)


@asynccontextmanager
async def nodes_running(*owns: ShardInfo) -> AsyncIterator[list[Node]]:
    nodes = [Node(one) for one in owns]
    servers = [await node.listen() for node in nodes]
    try:
        yield nodes
    finally:
        for server in servers:
            server.close()
        for node in nodes:
            node.links.close()
            node.driver._connections.cut()
            drivers.end(node.driver)
        await asyncio.sleep(0)


def bounded(body: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await body()

    asyncio.run(within())


async def dial(port: int, hello: LinkHello | bytes) -> tuple[link.LinkAnswer, socket.socket]:
    """Dial by hand; return the answer and the connection."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    data = hello if isinstance(hello, bytes) else link.encode_greeting(hello)
    await loop.sock_sendall(sock, data)
    answer, stream = None, link.Greeting()
    while answer is None:
        try:
            data = await loop.sock_recv(sock, 4096)
        except ConnectionResetError:
            data = b""
        if not data:
            sock.close()
        assert data, "hung up without an answer"
        answer = stream.receive(data)
    return link.decode_answer(answer), sock


def made_hello(node: int = 2, to: int = 1, lane: Lane = Lane.QUICK, **changes: Any) -> LinkHello:
    said = LinkHello(1, SYSTEM, 0, node, 0, 1, 2, 1, 77, lane, to, 0)
    fields = {name: getattr(said, name) for name in said.__struct_fields__} | changes
    return LinkHello(**fields)
