"""Devices go to the shard that they name by a hatch; who cannot is served where it came in."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.server import hatch
from weir.server.crowd import Crowd, Door
from weir.server.doors import Doors
from weir.server.hatch import Hatches
from weir.wire import device
from weir.wire.device import DeviceHello

PING = device.frame(device.DeviceOpcode.PING, 1, b"")


def hello(shard: int) -> bytes:
    """A hello whose hub is the number of the shard that it belongs to, and a publish."""
    return device.hello(shard, 1, "locks") + device.publish(1, b"value", 0)


class Peer(asyncio.Protocol):
    """Answers with the number of its shard."""

    def __init__(self, shard: Shard, handed: bool) -> None:
        self.shard = shard
        self.handed = handed
        self.transport: Any = None
        self.data = b""
        self.over = ""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.transport.write(bytes([self.shard.number]))

    def left(self) -> None:
        self.over = "left"

    def connection_lost(self, error: Exception | None) -> None:
        self.over = "lost"


class Shard:
    """What hatches and a crowd ask of a driver, which is its own lobby."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.peers: list[Peer] = []
        self.lobby = self
        self.doors = Doors(connections_max=4)
        self.connections = 0
        self.tokens = 100
        self.hatches = Hatches(self)
        self.crowd = Crowd(self.protocol, self, self.hatches)
        self.door = Door(socket.AF_INET, socket.SOCK_STREAM)
        self.door.setblocking(False)
        self.door.bind(("127.0.0.1", 0))
        self.door.listen(1_000)
        self.crowd.open(self.door)

    def protocol(self, handed: bool = False) -> Peer:
        self.peers.append(Peer(self, handed))
        return self.peers[-1]

    def now(self) -> float:
        return 0.0

    def place_of(self, hello: DeviceHello) -> int:
        return hello.hub

    def admits(self, now: float) -> bool:
        return self.tokens > 0

    def take(self) -> None:
        self.tokens -= 1

    def gather(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self.hatches.close()
        self.crowd.shut()
        for peer in self.peers:
            if peer.over != "left":
                peer.transport.abort()


class Node:
    """Two shards; shard 0 gives devices to shard 1."""

    def __init__(self) -> None:
        self.zero, self.one = Shard(0), Shard(1)
        self.dialed: list[socket.socket] = []
        self.join()

    def join(self) -> None:
        giving, taking = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.zero.hatches.join(giving, 1, gives=True)
        self.one.hatches.join(taking, 0, gives=False)

    async def asks(self, *said: bytes) -> int:
        """Let a device say something to shard 0, piece by piece; return who answers."""
        loop = asyncio.get_running_loop()
        end = socket.socket()
        self.dialed.append(end)
        end.setblocking(False)
        await loop.sock_connect(end, self.zero.door.getsockname())
        for piece in said:
            await loop.sock_sendall(end, piece)
            await asyncio.sleep(0.02)
        async with asyncio.timeout(10):
            return (await loop.sock_recv(end, 100))[-1]


def play(body: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        node = Node()
        await body(node)
        node.zero.close()
        node.one.close()
        for end in node.dialed:
            end.close()
        await asyncio.sleep(0.01)

    asyncio.run(whole())


def test_a_device_goes_where_it_belongs_with_all_that_it_said() -> None:
    async def body(node: Node) -> None:
        assert await node.asks(b"", hello(1)) == 1
        assert await node.asks(hello(1)) == 1
        assert await node.asks(hello(0)) == 0
        assert [peer.data for peer in node.one.peers] == [hello(1)] * 2
        assert all(peer.handed for peer in node.one.peers)
        assert [peer.handed for peer in node.zero.peers if not peer.over] == [False]

    play(body)


def test_many_that_come_at_once_go_on_and_each_counts_where_it_came_in() -> None:
    async def body(node: Node) -> None:
        loop = asyncio.get_running_loop()
        count = 3 * hatch._TOGETHER_MAX
        node.zero.tokens = count
        for _ in range(count):
            node.dialed.append(socket.create_connection(node.zero.door.getsockname()))
            node.dialed[-1].sendall(hello(1))
        for end in node.dialed:
            end.setblocking(False)
            async with asyncio.timeout(10):
                assert await loop.sock_recv(end, 9) == b"\x01"
        gone_before = sum(peer.over == "left" for peer in node.zero.peers)
        assert node.zero.tokens == gone_before, "who was let in took its token then"

    play(body)


@pytest.mark.parametrize(
    "said",
    [
        [PING, hello(1)],
        [hello(1)[:9], hello(1)[9:]],
        [device.hello(1, 1, "t" * hatch.SAID_BYTES_MAX)],
        [device.hello(7, 1, "of a shard without a hatch")],
    ],
)
def test_others_stay(said: list[bytes]) -> None:
    async def body(node: Node) -> None:
        assert await node.asks(*said) == 0
        assert not node.one.peers

    play(body)


def test_nobody_is_read_or_handed_on_before_its_turn() -> None:
    async def body(node: Node) -> None:
        node.zero.tokens = 0
        end = socket.create_connection(node.zero.door.getsockname())
        node.dialed.append(end)
        end.sendall(hello(1))
        while not node.zero.peers:
            await asyncio.sleep(0)
        peer = node.zero.peers[0]
        assert (peer.over, peer.data) == ("", b"")
        while not node.one.peers:  # its own turn has come by its own transport
            await asyncio.sleep(0)
        assert (peer.over, node.zero.tokens) == ("left", 0)

    play(body)


def test_a_shard_that_is_nearly_full_says_so_and_when_there_is_room_again() -> None:
    async def body(node: Node) -> None:
        node.one.connections = 3
        node.one.hatches.tick()
        assert [await node.asks(hello(1)) for _ in range(2)] == [0, 0]
        node.one.connections = 2
        node.one.hatches.tick()
        node.one.hatches.tick()
        await asyncio.sleep(0.01)
        assert await node.asks(hello(1)) == 1

    play(body)


@pytest.mark.parametrize("how", ["it ends", "it stands still", "nobody reads"])
def test_a_shard_that_takes_none_leaves_them_where_they_are(how: str) -> None:
    async def body(node: Node) -> None:
        to = node.zero.hatches._to[1]
        if how == "it ends":
            node.one.hatches.close()
        elif how == "it stands still":
            node.zero.hatches.leave([1, 2])
        else:
            to._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            node.one.hatches._from[0]._loop.remove_reader(node.one.hatches._from[0]._end)
            while how:
                try:
                    to._end.send(bytes(1_000))
                except BlockingIOError:
                    break
        assert await node.asks(hello(1)) == 0
        assert node.zero.peers[-1].data == hello(1)
        assert not node.one.peers
        node.join()
        assert await node.asks(hello(1)) == 1

    play(body)


def test_what_is_handed_over_as_the_other_end_goes_stays() -> None:
    async def body(node: Node) -> None:
        to = node.zero.hatches._to[1]
        ours, theirs = socket.socketpair()
        with theirs:
            node.one.hatches._from[0]._end.shutdown(socket.SHUT_RDWR)
            to.add(ours, hello(1))
            to.close()
            assert node.zero.peers[-1].data == hello(1)
            assert node.zero.peers[-1].handed, "it has had its turn"

    play(body)


def test_a_connection_for_which_no_descriptor_is_free_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(node: Node) -> None:
        to, (ours, theirs) = node.zero.hatches._to[1], socket.socketpair()
        said = hatch._SAID.pack(socket.AF_UNIX, len(PING)) + PING
        with ours, theirs, caplog.at_level(logging.ERROR, "weir.server.hatch"):
            socket.send_fds(to._end, [said * 3], [ours.fileno()])
            while not caplog.records:
                await asyncio.sleep(0)
        assert "2 connections" in caplog.text
        assert [peer.data for peer in node.one.peers] == [PING]

    play(body)
