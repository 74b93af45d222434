"""What peers' own Python clients are asked to do, with clients of our own making in their place."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from weir_lab.bench.harness.payload import Block
from weir_lab.bench.harness.produce import Done
from weir_lab.bench.sides.peers.dialect import Client, PeerRefused
from weir_lab.bench.sides.peers.produce import PeerPlan, produce
from weir_lab.bench.sides.peers.rival import ClientWorkers, Rival
from weir_lab.bench.sides.peers.server import PeerFailed
from weir_lab.bench.sides.peers.shipped.nats_py import NatsClient
from weir_lab.bench.sides.peers.shipped.redis_py import RedisClient, RedisPy
from weir_lab.bench.sides.working import Taken

VALUES = [b"%d" % n for n in range(250)]


class Connection:
    """A client of Redis and NATS that notes what it is asked for."""

    def __init__(self, *, as_dict: bool = False, acks: int = 0) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.left = [VALUES]
        self._as_dict = as_dict
        self._fewer = acks

    async def ping(self) -> None:
        self.asked.append(("ping",))

    async def aclose(self) -> None:
        self.asked.append(("close",))

    close = aclose

    async def xadd(self, topic: str, fields: dict[bytes, bytes]) -> None:
        self.asked.append(("xadd", topic, fields))

    async def xreadgroup(self, group: bytes, name: str, streams: Any, **how: int) -> Any:
        self.asked.append(("xreadgroup", group, name, streams, how["count"]))
        if not self.left:
            await asyncio.sleep(0)
            return {} if self._as_dict else []
        entries = [(b"%d-0" % n, {b"d": value}) for n, value in enumerate(self.left.pop())]
        return {b"q": [entries]} if self._as_dict else [[b"q", entries]]

    async def xack(self, topic: str, group: bytes, *ids: bytes) -> int:
        self.asked.append(("xack", topic, group, len(ids)))
        await asyncio.sleep(0.01)
        return len(ids) - self._fewer

    def jetstream(self, timeout: float) -> Connection:
        return self

    async def publish(self, topic: str, value: bytes) -> None:
        self.asked.append(("publish", topic, value))

    async def pull_subscribe_bind(self, durable: str, stream: str) -> Connection:
        return self

    async def fetch(self, batch: int, timeout: float | None) -> list[Message]:
        if not self.left:
            await asyncio.Event().wait()
        return [Message(value, self.asked) for value in self.left.pop()[:batch]]

    async def request(self, subject: str, body: bytes, timeout: float) -> None:
        self.asked.append(("request", subject, body))


class Noted(Taken):
    """What was taken, for a test to look at."""

    def __init__(self, messages: int) -> None:
        super().__init__(messages)
        self.noted: list[bytes] = []

    def values(self, values: Sequence[bytes]) -> None:
        self.noted.extend(values)
        super().values(values)


class Message:
    """A message of NATS."""

    def __init__(self, data: bytes, asked: list[tuple[Any, ...]]) -> None:
        self.data = data
        self.reply = f"$JS.ACK.{data.decode()}"
        self._asked = asked

    async def ack(self) -> None:
        self._asked.append(("ack", self.reply))
        await asyncio.sleep(0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[Connection], Connection]:
    """Let both libraries connect by what is handed over."""

    def make(connection: Connection) -> Connection:
        async def connect(*_: object, **__: object) -> Connection:
            return connection

        redis, nats = ModuleType("redis.asyncio"), ModuleType("nats")
        redis.Redis = lambda **_: connection  # type: ignore[attr-defined]
        nats.connect = connect  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "redis", ModuleType("redis"))
        monkeypatch.setitem(sys.modules, "redis.asyncio", redis)
        monkeypatch.setitem(sys.modules, "nats", nats)
        return connection

    return make


async def worked(client: Client) -> list[bytes]:
    """Return what one worker took until the peer knew its acks."""
    await client.open(1)
    taken = Noted(len(VALUES))
    workers = ClientWorkers("peer", [client], "q", taken)
    workers.begin()
    failing = asyncio.ensure_future(workers.failed())
    try:
        await asyncio.wait_for(taken.complete.wait(), 5)
        finishing = asyncio.ensure_future(workers.finish())
        await asyncio.wait((failing, finishing), timeout=5, return_when=asyncio.FIRST_COMPLETED)
        for one in (failing, finishing):
            if one.done():
                one.result()
        assert finishing.done()
    finally:
        failing.cancel()
        await workers.stop()
        await client.close()
    return taken.noted


@pytest.mark.parametrize("as_dict", [False, True])
def test_redis_py_acks_by_the_hundred_and_is_settled_when_all_have_replies(
    made: Callable[[Connection], Connection], as_dict: bool
) -> None:
    connection = made(Connection(as_dict=as_dict))
    assert asyncio.run(worked(RedisClient())) == VALUES
    assert connection.asked[0] == ("ping",)
    assert connection.asked[1] == ("xreadgroup", b"g", "c0", {"q": ">"}, 1_000)
    acks = [one for one in connection.asked if one[0] == "xack"]
    assert acks == [("xack", "q", b"g", count) for count in (100, 100, 50)]


def test_redis_py_tells_of_an_ack_that_was_none(
    made: Callable[[Connection], Connection],
) -> None:
    made(Connection(acks=1))
    with pytest.raises(PeerRefused, match="of 100 acks some were repeated"):
        asyncio.run(worked(RedisClient()))


def test_nats_py_acks_each_and_awaits_the_reply_to_the_last(
    made: Callable[[Connection], Connection],
) -> None:
    connection = made(Connection())
    assert asyncio.run(worked(NatsClient())) == VALUES
    acks = [("ack", f"$JS.ACK.{n}") for n in range(250)]
    assert connection.asked == [*acks, ("request", "$JS.ACK.249", b"+ACK"), ("close",)]


def test_a_message_is_published_by_each_client(
    made: Callable[[Connection], Connection],
) -> None:
    async def publish(client: Client) -> None:
        await client.open(1)
        await client.publish("q", b"x")

    connection = made(Connection())
    asyncio.run(publish(RedisClient()))
    asyncio.run(publish(NatsClient()))
    assert connection.asked[1:] == [("xadd", "q", {b"d": b"x"}), ("publish", "q", b"x")]


@pytest.mark.usefixtures("capsys")
def test_lone_producers_of_a_peer_have_its_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connections: list[Sent] = []

    def client() -> Sent:
        connections.append(Sent())
        return connections[-1]

    async def produced(plan: PeerPlan) -> Done:
        orders: asyncio.Queue[bytes] = asyncio.Queue()
        orders.put_nowait(b"go")
        return await produce(plan, orders)

    monkeypatch.setattr(RedisPy, "version", lambda _: "1")
    monkeypatch.setattr(RedisPy, "client", staticmethod(client))
    rival = Rival(RedisPy("always"), tmp_path)
    (plan, other) = rival.crew("q", [3, 2], 100, 5.0, lone=True).plans
    assert isinstance(plan, PeerPlan)
    assert isinstance(other, PeerPlan)
    assert asyncio.run(produced(plan)).confirmed == 3
    assert asyncio.run(produced(other)).confirmed == 2
    wanted = [Block(100, 3).values_of(0, 0, 3), Block(100, 2).values_of(1, 0, 2)]
    assert [one.values for one in connections] == wanted
    assert all(one.is_closed for one in connections)


class Sent:
    """A client that notes what it publishes."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.is_closed = False

    async def open(self, port: int) -> None:
        return None

    async def publish(self, topic: str, value: bytes) -> None:
        self.values.append(value)

    async def close(self) -> None:
        self.is_closed = True


def test_what_a_library_raises_is_told_as_the_failure_of_its_peer(
    made: Callable[[Connection], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise KeyError("broken")

    async def failing() -> None:
        client = RedisClient()
        await client.open(1)
        workers = ClientWorkers("redis-py:always", [client], "q", Taken(1))
        workers.begin()
        await workers.failed()

    made(Connection())
    monkeypatch.setattr(Connection, "xreadgroup", broken)
    with pytest.raises(PeerFailed, match="redis-py:always: KeyError"):
        asyncio.run(failing())
