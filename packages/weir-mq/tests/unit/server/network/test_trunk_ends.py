"""Both ends of a trunk over a real socket pair, with drivers that only note what they are told."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rigs.drivers import ends_of, remote_peers, writes_of
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.host.shard_loop import TURN_BYTES
from weir.host.trunks import RemotePeer, ServingEnd, Trunks
from weir.model.ids import place_of
from weir.protocol import trunk
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_request, encode_request
from weir.protocol.device import DeviceHello, DevicePing, DevicePublishes
from weir.protocol.trunk import Arrival, Kind
from weir.server.network.connections import ShardProtocol

MIB = 1 << 20


class Noting:
    """What a trunk asks of a shard and its host."""

    def __init__(self) -> None:
        self.held = self.waits = False
        self.charged = 0
        self.brought_sizes: list[int] = []
        self.events: list[Any] = []
        self.turns: list[list[str]] = [[]]
        self.sessions = count(1_000)
        self.queue = self.budget = self.connections = self.backlog = self.log = self
        self.unserved: deque[Any] = deque()
        self.loop = asyncio.get_running_loop()
        self.soon = self.loop.call_soon
        self.remote_peers: dict[int, RemotePeer] = {}
        self.lost: list[int] = []
        self.trunks = Trunks(cast(Any, self), self.remote_peers, self.lost.append)
        self.told = asyncio.Event()

    def put(self, event: Any) -> None:
        self.events.append(event)
        self.turns[-1].append(type(event).__name__)
        self.told.set()

    def run(self) -> None:
        while True:
            if self.turns[-1]:
                self.turns.append([])
            if not self.unserved:
                break
            one = self.unserved.popleft()
            one.queued = False
            one.serve()

    def receive(self, session: int, frames: Any) -> None:
        self.put(ev.Received(session, frames))

    def arrive(self, event: ev.Arrived) -> None:
        self.put(event)

    def error(self, text: str, *given: object) -> None:
        pass

    async def join(self, end: socket.socket, shard: int, asks: bool) -> None:
        begin = lambda transport: self.trunks.join(transport, shard, asks)  # noqa: E731
        protocol = ShardProtocol(cast(Any, self), cast(Any, self), begin)
        await self.loop.create_unix_connection(lambda: protocol, sock=end)

    def charge(self, size: int) -> None:
        self.charged += size

    def brought(self, lane: Any, size: int) -> None:
        self.brought_sizes.append(size)

    def release(self, size: int) -> None:
        self.charged -= size

    def passed_on(self, shard: int, size: int) -> None:
        assert shard == 1
        self.charged -= size

    def new_session(self) -> int:
        return next(self.sessions)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.told.clear()
            await asyncio.wait_for(self.told.wait(), 10)

    def hold(self, held: bool) -> None:
        self.held = held
        self.trunks.update()


def run(body: Callable[[Noting, Noting], Coroutine[Any, Any, None]]) -> None:
    """Play with shard 0, which asks shard 1, and shard 1."""

    async def whole() -> None:
        asking, serving = Noting(), Noting()
        one, other = socket.socketpair()
        await asking.join(one, 1, asks=True)
        await serving.join(other, 0, asks=False)
        try:
            await asyncio.wait_for(body(asking, serving), 20)
        finally:
            for end in (*ends_of(asking.trunks), *ends_of(serving.trunks)):
                end.cut()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(whole())


def passed(*buffers: Any, charged: int = 0) -> ef.Pass:
    return ef.Pass(1, tuple(buffers), charged)


def fetch(size: int = 0) -> tuple[Any, ...]:
    address = m.Address(1, 0, 9)
    request = m.Produce(address, 0, memoryview(bytes(size))) if size else m.Fetch(address, 0, 1)
    (frame,) = ClientStream().receive(b"".join(encode_request(request, 5)))
    return trunk.encode_client(7, frame)


def test_what_is_written_in_one_turn_of_the_loop_goes_out_together() -> None:
    """A write for each frame, and a read for each at the other end, cost more than the frames."""

    async def body(asking: Noting, serving: Noting) -> None:
        (end,) = ends_of(asking.trunks)
        with writes_of(end) as written:
            asking.charged += 10
            asking.trunks.send(passed(b"one", b"two", charged=7))
            asking.trunks.send(passed(b"three", charged=3))
            assert (written, asking.charged) == ([], 10), "nothing is given back before it is out"
            await asyncio.sleep(0)
            assert (written, asking.charged) == ([b"onetwothree"], 0)
            asking.trunks.send(passed(b"four"))
            end.flush()
            assert written == [b"onetwothree", b"four"]

    run(body)


def test_a_peer_of_one_shard_is_a_session_of_the_other() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        assert asking.events == [ev.TrunkOpened(1)]
        asking.trunks.send(passed(*trunk.encode(Kind.OPENED, 7, b"ada")))
        asking.trunks.send(passed(*fetch()))
        asking.trunks.send(passed(*trunk.encode_device(7, DevicePing(3))))
        await serving.until(lambda: len(serving.events) == 3)
        opened, first, second = serving.events
        assert opened == ev.Opened(1_000, "ada")
        assert (first.session, decode_request(first.frames[0])) == (
            1_000, m.Fetch(m.Address(1, 0, 9), 0, 1),
        )  # fmt: skip
        assert second == ev.Received(1_000, [DevicePing(3)])
        remote_peer = serving.remote_peers.get(1_000)
        assert remote_peer is not None
        serving.charge(5)  # as the shard does
        remote_peer.send((b"re", b"ply"), 5)
        remote_peer.hang_up("enough")
        await asking.until(lambda: sum(len(e.frames) for e in asking.events[1:]) == 2)
        frames = [frame for event in asking.events[1:] for frame in event.frames]
        assert [(kind, number, bytes(data)) for kind, number, data in frames] == [
            (Kind.REPLIES, 7, b"reply"),
            (Kind.HANGUP, 7, b"enough"),
        ]
        serving.trunks.flush()
        asking.trunks.send(passed(*trunk.encode(Kind.CLOSED, 7)))
        await serving.until(lambda: len(serving.events) == 4)
        assert serving.events[3] == ev.Closed(1_000)
        assert serving.remote_peers.get(1_000) is None
        assert (asking.charged, serving.charged) == (0, 0)

    run(body)


def arrival(session: int) -> Arrival:
    publishes = DevicePublishes([1], [0], [b"value"], [0])
    return Arrival(session, DeviceHello(0, session, 1, 0, "t"), publishes)


def test_devices_that_came_at_once_are_one_event_and_their_confirms_one_frame() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        asking.trunks.send(passed(*trunk.encode_arrivals("ada", [arrival(7), arrival(8)])))
        asking.trunks.send(passed(*trunk.encode_device(8, DevicePing(3))))
        await serving.until(lambda: len(serving.events) == 2)
        arrived, received = serving.events
        assert (arrived.principal, arrived.place) == ("ada", 0)
        assert [(one.session, one.hello.hub) for one in arrived.arrivals] == [
            (1_000, 7),
            (1_001, 8),
        ]
        assert received == ev.Received(1_001, [DevicePing(3)])
        first, second = serving.remote_peers.get(1_000), serving.remote_peers.get(1_001)
        assert first is not None
        assert second is not None
        first.answer(b"one")
        second.answer(b"two")
        second.send((b"pi", b"ng"), 0)
        first.answer(b"more")
        await asking.until(lambda: sum(len(e.frames) for e in asking.events[1:]) == 3)
        back = [frame for event in asking.events[1:] for frame in event.frames]
        assert [kind for kind, _, _ in back] == [Kind.ANSWERS, Kind.REPLIES, Kind.ANSWERS]
        assert back[0].body == [(7, b"one"), (8, b"two")]
        assert (back[1].session, bytes(back[1].body)) == (8, b"ping")
        assert back[2].body == [(7, b"more")]
        asking.trunks.send(passed(*trunk.encode(Kind.CLOSED, 7)))
        await serving.until(lambda: len(serving.events) == 3)
        assert serving.events[2] == ev.Closed(1_000)

    run(body)


def test_another_node_gets_answers_one_by_one() -> None:
    """It may run a release that knows no more."""
    written: list[Any] = []
    noting = cast(Any, SimpleNamespace())
    end = ServingEnd(noting, noting, place_of(2, 0), noting, lambda shard: None, 1)
    end.write = lambda *args: written.append(args)  # type: ignore[method-assign]
    end.answer(7, b"one")
    assert written == [(trunk.encode(Kind.REPLIES, 7, b"one"),)]


def test_a_shard_that_holds_serves_no_more_but_always_hears_replies() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        asking.trunks.send(passed(*trunk.encode(Kind.OPENED, 7, b"ada")))
        await serving.until(lambda: len(serving.events) == 1)
        serving.hold(True)
        asking.hold(True)
        asking.charge(2 * MIB)
        asking.trunks.send(passed(*fetch(2 * MIB), charged=2 * MIB))
        remote_peer = serving.remote_peers.get(1_000)
        assert remote_peer is not None
        remote_peer.send((bytes(2 * MIB),), 0)
        await asking.until(lambda: "PassedBack" in asking.kinds())
        assert serving.kinds() == ["Opened"]
        asking.trunks.flush()
        assert asking.charged > 0
        serving.hold(False)
        await serving.until(lambda: len(serving.events) == 2)
        while asking.charged:
            asking.trunks.flush()
            await asyncio.sleep(0)
        assert serving.charged == 0

    run(body)


def test_a_frame_that_was_begun_is_finished_while_the_shard_holds() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        asking.trunks.send(passed(*trunk.encode(Kind.OPENED, 7, b"ada")))
        data = b"".join(fetch(MIB - 1_024))
        asking.trunks.send(passed(data[:1_000]))
        while not serving.brought_sizes:
            await asyncio.sleep(0)
        assert serving.brought_sizes == [1_000], "what came counts, not what the frame claims"
        serving.hold(True)
        asking.trunks.send(passed(data[1_000:]))
        await serving.until(lambda: "Received" in serving.kinds())
        assert serving.brought_sizes[-1] == 0

    run(body)


def test_the_end_of_a_trunk_is_told_at_both_ends() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        for number in (7, 8):
            asking.trunks.send(passed(*trunk.encode(Kind.OPENED, number, b"ada")))
        await serving.until(lambda: len(serving.events) == 2)
        serving.trunks.close()
        await asking.until(lambda: asking.events[-1] == ev.TrunkClosed(1))
        await serving.until(lambda: len(serving.events) == 4)
        assert serving.events[2:] == [ev.Closed(1_000), ev.Closed(1_001)]
        asking.charge(10)
        asking.trunks.send(passed(b"lost", charged=10))
        assert asking.charged == 0

    run(body)


def test_a_new_trunk_replaces_the_old_one_at_once() -> None:
    async def body(asking: Noting, _: Noting) -> None:
        one, other = socket.socketpair()
        with other:
            await asking.join(one, 1, asks=True)
            assert asking.events == [ev.TrunkOpened(1), ev.TrunkClosed(1), ev.TrunkOpened(1)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(asking.events) == 3

    run(body)


def test_what_makes_no_sense_ends_the_trunk() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        asking.trunks.send(passed(b"\1\0\0\0\xff\xff\xff\xff" + bytes(8)))
        await asking.until(lambda: asking.events[-1] == ev.TrunkClosed(1))
        assert serving.events == []

    run(body)


@pytest.mark.parametrize("body", [b"", b"\x91\x01", b"\x92\xa1\xff\x90"])
def test_what_makes_no_sense_for_many_ends_the_trunk_before_anybody_hears_of_it(
    body: bytes,
) -> None:
    async def play(asking: Noting, serving: Noting) -> None:
        opened = trunk.encode(Kind.OPENED, 7, b"ada")
        asking.trunks.send(passed(*opened))
        await serving.until(lambda: len(serving.events) == 1)
        asking.trunks.send(passed(*opened, *trunk.encode(Kind.ARRIVALS, 0, body)))
        await asking.until(lambda: asking.events[-1] == ev.TrunkClosed(1))
        assert serving.kinds() == ["Opened", "Closed"]

    async def play_back(asking: Noting, serving: Noting) -> None:
        (end,) = ends_of(serving.trunks)
        end.write(trunk.encode(Kind.ANSWERS, 0, body))
        await asking.until(lambda: asking.events[-1] == ev.TrunkClosed(1))
        assert asking.kinds() == ["TrunkOpened", "TrunkClosed"]

    run(play)
    run(play_back)


def test_who_asks_hears_of_a_trunk_that_broke_so_that_there_may_be_another() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        asking.trunks.send(passed(*trunk.encode(Kind.OPENED, 7, b"ada")))
        await serving.until(lambda: len(serving.events) == 1)
        serving.trunks.leave([1])  # it serves another
        await asyncio.sleep(0)
        assert serving.kinds() == ["Opened"]
        serving.trunks.leave([0])
        await asking.until(lambda: asking.lost == [1])
        await serving.until(lambda: serving.kinds() == ["Opened", "Closed"])
        assert asking.events[-1] == ev.TrunkClosed(1)
        assert serving.lost == []

    run(body)


def test_a_shard_that_stands_still_is_left_at_once_and_once() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        asking.charge(MIB)
        asking.trunks.send(passed(bytes(MIB), charged=MIB))
        asking.trunks.leave([1])
        assert asking.events == [ev.TrunkOpened(1), ev.TrunkClosed(1)]
        while asking.charged:
            await asyncio.sleep(0)
        assert len(asking.events) == 2
        assert asking.lost == []

    run(body)


def turns_of(*buffers: Any) -> list[list[str]]:
    """Return what the shard that serves takes as one, of what comes in one read."""
    found: list[list[str]] = []

    async def body(asking: Noting, serving: Noting) -> None:
        opened = trunk.encode(Kind.OPENED, 7, b"shard:1.0")
        (end,) = ends_of(serving.trunks)
        end.receive(b"".join((*opened, *buffers, *trunk.encode(Kind.CLOSED, 7))))
        serving.run()
        found.extend(turn for turn in serving.turns if turn)

    run(body)
    return found


def test_what_peers_of_another_shard_ask_at_once_is_one_to_this_one() -> None:
    hello = trunk.encode_device(7, DeviceHello(0, 1, 2, 3, "locks"))
    for many in (1, 5):
        served = ["Opened", "Received", *["Received"] * many, "Closed"]
        assert turns_of(*hello, *fetch(100) * many) == [served]


def test_what_follows_a_request_for_messages_over_a_trunk_comes_behind_its_effects() -> None:
    """What it is answered may fill the trunk."""
    assert turns_of(*fetch(100), *fetch(), *fetch(100)) == [
        ["Opened", "Received", "Received"], ["Received", "Closed"],
    ]  # fmt: skip


def test_a_shard_takes_no_more_of_a_trunk_at_once_than_of_its_own_peers() -> None:
    """The memory budget is looked at behind each step."""
    half = fetch(TURN_BYTES // 2)
    assert turns_of(*half * 5) == [
        ["Opened", "Received", "Received"], ["Received"] * 2, ["Received", "Closed"],
    ]  # fmt: skip


def test_another_node_has_so_many_peers_here_and_no_more() -> None:
    async def body(asking: Noting, serving: Noting) -> None:
        mine, other = socket.socketpair()
        serving.trunks.remote_peers_max = 4
        loop = asyncio.get_running_loop()
        await serving.join(mine, place_of(2, 0), asks=False)
        other.setblocking(False)
        for session in range(1, 10):
            await loop.sock_sendall(other, b"".join(trunk.encode(Kind.OPENED, session, b"ada")))
        # Those who may not come in are hung up, and nothing is kept of them.
        stream, found = trunk.TrunkStream(), list[Any]()
        while len(found) < 4:
            found += stream.receive(await loop.sock_recv(other, 4_096))
        assert [(kind, session) for kind, session, _ in found] == [
            (Kind.HANGUP, session) for session in (6, 7, 8, 9)
        ]
        assert serving.kinds() == ["Opened"] * 5
        assert len(remote_peers(serving.trunks)) == 5
        # Whoever opens a session again has it once; one that leaves makes room.
        for kind, session in ((Kind.OPENED, 5), (Kind.CLOSED, 1), (Kind.OPENED, 6)):
            await loop.sock_sendall(
                other, b"".join(trunk.encode(kind, session, *[b"a"][kind - 1 :]))
            )
        await serving.until(lambda: serving.kinds().count("Opened") == 7)
        assert len(remote_peers(serving.trunks)) == 5
        hello, publishes = DeviceHello(0, 1, 1, 0, "t"), DevicePublishes([1], [0], [b"x"], [0])
        crowd = trunk.encode_arrivals("a", [Arrival(50, hello, publishes)])
        await loop.sock_sendall(other, b"".join(crowd))
        await serving.until(lambda: not remote_peers(serving.trunks))
        assert "Arrived" not in serving.kinds()
        other.close()

    run(body)
