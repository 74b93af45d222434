"""Reading from any replica: one that fails, lags or leaves something out is left for another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

from rigs.clients import network_of
from weir.client.client import connect
from weir.client.reader import fetcher
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

Brokers = Callable[[], AbstractAsyncContextManager[Any]]
UNAVAILABLE = 17
NODES = (1, 2, 3)


class Set:
    """Nodes 1 to 3 over the same logs. Node 1 leads; the others misbehave as a test says."""

    def __init__(self, brokers: list[Any]) -> None:
        self.brokers = dict(zip(NODES, brokers, strict=True))
        self.faults: dict[int, str] = {}
        self.asked: dict[int, int] = dict.fromkeys(NODES, 0)
        first = brokers[0]
        self.info = first.topic("t", 2)
        self.info.addresses[:] = [one._replace(node=1) for one in self.info.addresses]
        for node, broker in self.brokers.items():
            for name in ("topics", "logs", "answers", "next_sequence", "starts", "news"):
                setattr(broker, name, getattr(first, name))
            # Who answers for barriers, and for all else that is not a fetch, is the leader.
            broker.answer = self._answers(node, first.answer)
            broker._wait_for_data = self._fetches(node, broker, broker._wait_for_data)

    @property
    def url(self) -> str:
        return f"weir://127.0.0.1:{self.brokers[1].port}"

    def _answers(self, node: int, plain: Callable[[Any], Awaitable[Any]]) -> Any:
        async def answer(request: m.Request) -> m.Reply:
            if isinstance(request, m.Hello):
                nodes = tuple((n, "127.0.0.1", b.port) for n, b in self.brokers.items())
                return m.Welcome(77, 1, node, 0, 1 << 20, 64, nodes=nodes)
            if isinstance(request, a.DescribePartition):
                return a.PartitionInfo(0, 0, 0, [], [*NODES])
            return await plain(request)  # type: ignore[no-any-return]

        return answer

    def _fetches(self, node: int, broker: Any, plain: Callable[..., Awaitable[None]]) -> Any:
        async def fetch(request: Any, frame: Any, writer: Any) -> None:
            if not (isinstance(request, m.Fetch) and request.replica):
                return await plain(request, frame, writer)
            self.asked[node] += 1
            log, at = broker.logs[request.address.group], request.offset
            found = [b for b in log if b.header.next_offset > at]
            match self.faults.get(node):
                case "hangs":
                    await asyncio.Event().wait()
                case "refuses":
                    broker.reply(m.Refusal(UNAVAILABLE, "no leader"), frame, writer)
                case "lags":
                    broker.reply(m.Fetched(request.address, at, at, 0), frame, writer)
                case "leaves out" if len(found) > 2:
                    behind = found[2].header.next_offset
                    views = (found[0].view, found[2].view)
                    broker.reply(m.Fetched(request.address, at, behind, 0, views), frame, writer)
                case "changes" if found:
                    view = bytearray(found[0].view)
                    view[-1] ^= 1
                    behind = found[0].header.next_offset
                    wrong = m.Fetched(request.address, at, behind, 0, (view,))
                    broker.reply(wrong, frame, writer)
                case _:
                    await plain(request, frame, writer)

        return fetch


def of_three(fake_broker: Brokers, test: Callable[[Set, Any], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            brokers = [await stack.enter_async_context(fake_broker()) for _ in NODES]
            nodes = Set(brokers)
            w = await stack.enter_async_context(connect(nodes.url))
            async with asyncio.timeout(20):
                await test(nodes, w)

    asyncio.run(scenario())


async def publish(w: Any, first: int, behind: int) -> None:
    dice = random.Random(first)
    for number in range(first, behind):
        await w.publish("t", b"%d" % number, partition=dice.randrange(2))


async def read(reader: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found.append((await reader.__anext__()).value)
    return found


def numbers(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


def test_readers_spread_over_the_replicas_and_see_the_one_order(fake_broker: Brokers) -> None:
    async def test(nodes: Set, w: Any) -> None:
        await publish(w, 0, 40)
        for seed in range(12):
            network_of(w).random = random.Random(seed)
            async with w.reader("t", order="total", read_from="any") as reader:
                assert await read(reader, 40) == numbers(0, 40)
        assert all(nodes.asked.values())

    of_three(fake_broker, test)


@pytest.mark.parametrize("fault", ["hangs", "refuses", "lags", "leaves out", "changes"])
def test_a_replica_that_fails_is_left_and_nothing_is_wrong_or_missing(
    fake_broker: Brokers, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "LONG_POLL", 0.1)
    monkeypatch.setattr(fetcher, "_LATE", 0.05)
    monkeypatch.setattr(fetcher, "_LAG", 0.05)

    async def test(nodes: Set, w: Any) -> None:
        async with w.reader("t", order="total", read_from="any") as reader:
            await publish(w, 0, 30)
            assert await read(reader, 30) == numbers(0, 30)
            nodes.faults = {2: fault, 3: fault}
            await publish(w, 30, 60)
            assert await read(reader, 30) == numbers(30, 60)
            nodes.faults = {1: fault, 2: fault}  # as a replica; it still leads
            await publish(w, 60, 90)
            assert await read(reader, 30) == numbers(60, 90)
            nodes.faults = dict.fromkeys(NODES, fault)
            await publish(w, 90, 120)
            assert await read(reader, 30) == numbers(90, 120)

    of_three(fake_broker, test)


@pytest.mark.parametrize("fault", ["hangs", "refuses", "lags", "leaves out", "changes"])
def test_it_is_the_same_in_partition_order(
    fake_broker: Brokers, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "LONG_POLL", 0.1)
    monkeypatch.setattr(fetcher, "_LATE", 0.05)

    async def test(nodes: Set, w: Any) -> None:
        nodes.faults = dict.fromkeys(NODES, fault)
        async with w.reader("t", read_from="any") as reader:
            await publish(w, 0, 60)
            found = await read(reader, 60)
        assert sorted(found) == sorted(numbers(0, 60))

    of_three(fake_broker, test)
