"""Links between drivers over real sockets, with shards that only note what they are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.admission import Budget
from weir.broker.identity import Identity
from weir.broker.shard import Shard
from weir.model.ids import place_of
from weir.model.limits import LINK_FRAME_BYTES_MAX, LINK_STALLED_MS, LINK_UNSENT_BYTES_MAX
from weir.server.driver import Driver
from weir.server.links import Own
from weir.wire import link, trunk
from weir.wire.link import Lane, LinkHello, Verdict

MIB = 1 << 20
SYSTEM = 7
MANY_TICKS = 70


class Noting:
    """A shard that notes what it is told."""

    ready = True

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.budget = Budget(64 * MIB)
        self.heard: list[Any] = []
        self.news = asyncio.Event()

    def start(self) -> list[ef.Effect]:
        return []

    def handle(self, event: Any) -> list[ef.Effect]:
        if not isinstance(event, ev.Ticked):
            self.heard.append(event)
            self.news.set()
        return []

    def passed_on(self, shard: int, size: int) -> None:
        self.budget.release(size)


class Node:
    """A shard of a node, its driver, and its port."""

    def __init__(self, own: Own, shared: int = 0) -> None:
        self.shard = Noting(own.identity)
        self.driver = Driver(cast(Shard, self.shard), {}, None, own)
        self.links = self.driver.links
        self._own = own
        self._shared = shared
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
                (event.place, kind, group, bytes(body))
                for event in self.heard(ev.PeerSent)
                for kind, group, body in event.frames
            ]
            if len(found) >= count:
                return found
            await self.until(ev.PeerSent, len(self.heard(ev.PeerSent)) + 1)

    def connect(self, other: Node, port: int = 0) -> None:
        node = other.shard.identity.node
        self.links.connect(ef.Connect(node, "127.0.0.1", port or other.port))

    def send(self, place: int, quick: bool, *body: bytes, charged: int = 0) -> None:
        self.shard.budget.take(charged)
        self.links.send(ef.SendToPeer(place, quick, link.encode(1, 5, *body), charged))


def own(node: int, shard: int = 0, shards: int = 1, logs: int = 2, system: int = SYSTEM) -> Own:
    return Own(Identity(system, 0, node, shard), logs, shards)


@asynccontextmanager
async def running(*owns: Own) -> AsyncIterator[list[Node]]:
    nodes = [Node(one) for one in owns]
    servers = [await node.listen() for node in nodes]
    try:
        yield nodes
    finally:
        for server in servers:
            server.close()
        for node in nodes:
            node.links.close()
            for peer in list(node.driver._peers.values()):
                peer.cut()
            node.driver._pool.shutdown()
        await asyncio.sleep(0)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await body()

    asyncio.run(bounded())


async def greet(port: int, hello: LinkHello | bytes) -> tuple[link.LinkAnswer, socket.socket]:
    """Dial by hand; return the answer and the connection."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    data = hello if isinstance(hello, bytes) else link.encode_greeting(hello)
    await loop.sock_sendall(sock, data)
    answer, stream = None, link.Greeting()
    while answer is None:
        data = await loop.sock_recv(sock, 4096)
        assert data, "hung up without an answer"
        answer = stream.receive(data)
    return link.decode_answer(answer), sock


def hello(node: int = 2, to: int = 1, lane: Lane = Lane.QUICK, **changes: Any) -> LinkHello:
    said = LinkHello(1, SYSTEM, 0, node, 0, 1, 2, 1, 77, lane, to, 0)
    fields = {name: getattr(said, name) for name in said.__struct_fields__} | changes
    return LinkHello(**fields)


def test_frames_go_both_ways_on_lanes_of_their_own() -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            two.connect(one)
            opened = (await one.until(ev.LinkOpened))[0]
            assert opened == ev.LinkOpened(place_of(2, 0), 1, two.links.run)
            await two.until(ev.LinkOpened)
            await one.until(ev.TrunkOpened)
            one.send(place_of(2, 0), True, b"vote")
            one.send(place_of(2, 0), False, bytes(2 * MIB), b"end", charged=2 * MIB)
            found = await two.frames(2)
            assert sorted(len(body) for *_, body in found) == [4, 2 * MIB + 3]
            assert {place for place, *_ in found} == {place_of(1, 0)}
            two.send(place_of(1, 0), True, b"granted")
            assert await one.frames(1) == [(place_of(2, 0), 1, 5, b"granted")]
            one.links.tick()
            assert one.shard.budget.used == 0
            assert two.shard.budget.used == 0

    run(body)


def test_requests_are_passed_on_by_the_trunk_lane() -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            (opened,) = await one.until(ev.TrunkOpened)
            assert opened.shard == place_of(2, 0)
            frame = trunk.encode(trunk.Kind.OPENED, 4, b"alice")
            one.driver.trunks.send(ef.Pass(place_of(2, 0), frame))
            (session,) = await two.until(ev.Opened)
            assert (session.principal, session.place) == ("alice", place_of(1, 0))
            two.driver._do([ef.Send(session.session, (b"\2reply",))])
            (back,) = await one.until(ev.PassedBack)
            assert back.shard == place_of(2, 0)
            assert bytes(back.frames[0].body) == b"\2reply"
            one.links.disconnect(ef.Disconnect(2))
            await one.until(ev.TrunkClosed)
            await two.until(ev.Closed)

    run(body)


def test_the_shards_that_share_a_port_are_found_by_their_own() -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            ones = [Node(own(2, shard, 2)) for shard in (0, 1)]
            servers = [await node.listen() for node in ones]
            ports = tuple(node.port for node in ones)
            for node in ones:
                node.links._own = replace(node.links._own, ports=ports)
            # Whoever answers the shared port, here always shard 1, says where the others are.
            one.connect(ones[1])
            opened = await one.until(ev.LinkOpened, 2)
            assert {event.place for event in opened} == {place_of(2, 0), place_of(2, 1)}
            assert {event.shards for event in opened} == {2}
            for shard, node in enumerate(ones):
                one.send(place_of(2, shard), False, b"%d" % shard)
                assert (await node.frames(1))[0][3] == b"%d" % shard
            for server, node in zip(servers, ones, strict=True):
                server.close()
                node.links.close()

    run(body)


def test_entries_go_only_between_shards_that_share_a_log() -> None:
    async def body() -> None:
        async with running(own(1, 0, 2, logs=4), own(2, 1, 2, logs=4)) as (one, two):
            hellos = own(1, 0, 2, logs=4)
            assert hellos.shards == 2
            at = one.links._nodes.setdefault
            del at
            from weir.server.link_out import Whereabouts

            places = Whereabouts(2)
            places.shards = 2
            assert one.links.lanes_to(places, 0) == [Lane.QUICK, Lane.BULK, Lane.TRUNK]
            assert one.links.lanes_to(places, 1) == [Lane.QUICK, Lane.TRUNK]
            places.shards = 3
            assert Lane.BULK in one.links.lanes_to(places, 2)
            assert Lane.BULK not in two.links.lanes_to(places, 2)

    run(body)
