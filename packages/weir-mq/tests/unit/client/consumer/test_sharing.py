"""Consumers of a cluster share its messages, and keep to their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

import weir
from rigs.consuming import take
from weir import testing
from weir.client.client import Client
from weir.client.connection.system import SYSTEM, System
from weir.errors import BadRequest, ValueLost
from weir.model.limits import MIB
from weir.protocol.client import messages as m


def run(scenario: Callable[[testing.Node, Client], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        async with testing.node() as node, weir.connect(node.url) as w, asyncio.timeout(20):
            await w.create_topic("t")
            await scenario(node, w)

    asyncio.run(whole())


async def fill(w: Client, count: int) -> None:
    async with w.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(count)])


def test_who_is_busy_keeps_nothing_from_the_others() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 20)
        async with w.consumer("t", cluster="c") as busy, w.consumer("t", cluster="c") as idle:
            held = await anext(busy)
            assert held.value == b"0"
            rest = [int((await take(idle)).value) for _ in range(19)]
            assert rest == [*range(1, 20)]

    run(scenario)


def test_who_gives_up_waiting_loses_no_message() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        async with w.consumer("t", cluster="c", lease="10m") as consumer:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(consumer), 0.02)
            await fill(w, 5)
            found = [await take(consumer) for _ in range(5)]
            assert [(int(one.value), one.attempts) for one in found] == [(n, 1) for n in range(5)]

    run(scenario)


def test_the_attempts_of_a_message_are_told() -> None:
    async def scenario(_: testing.Node, w: Client) -> None:
        await fill(w, 1)
        for attempt in (1, 2):
            async with w.consumer("t", cluster="c") as consumer:
                message = await anext(consumer)
                assert message.attempts == attempt

    run(scenario)


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_what_a_lease_no_longer_covers_is_not_handed_out(
    fake_broker,
) -> None:
    clock = Clock()

    async def scenario() -> None:
        SYSTEM.set(System(monotonic=clock.monotonic))
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            broker.topic("t")
            await fill(w, 3)
            async with w.consumer("t", cluster="c", lease="30s") as consumer:
                assert (await take(consumer)).value == b"0"
                clock.now = 29.0
                assert (await take(consumer)).value == b"1"
                clock.now = 30.0
                await w.publish("t", b"new")
                assert (await take(consumer)).value == b"new"

    asyncio.run(scenario())


def test_a_consumer_whose_pulls_failed_comes_by_another_connection(fake_broker) -> None:
    """What the broker grants to a pull that nobody waits for is free when its connection ends."""

    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            second = broker.topic("t", partitions=2).addresses[1]
            broker.script = lambda request: (
                m.Refusal(BadRequest.code, "no")
                if isinstance(request, m.Pull) and request.address == second
                else None
            )
            async with w.consumer("t", cluster="c") as consumer:
                with pytest.raises(BadRequest):
                    await anext(consumer)
                broker.script = lambda _: None
                await w.publish("t", b"x", partition=1)
                assert (await take(consumer)).value == b"x"
            assert sum(isinstance(request, m.Hello) for request in broker.seen) == 3

    asyncio.run(scenario())


def test_a_large_value_that_is_gone_is_told_to_who_reads_it(fake_broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            broker.topic("t")
            for value in (b"a", bytes(3 * MIB), b"b"):
                await w.publish("t", value)
            broker.script = lambda request: (
                m.Refusal(ValueLost.code, "past retention")
                if isinstance(request, m.FetchChunks)
                else None
            )
            async with w.consumer("t", cluster="c", ack_within=0) as consumer:
                first = await take(consumer)
                async for gone in consumer:
                    assert not gone.loaded
                    with pytest.raises(ValueLost):
                        await gone.read()
                    break
                last = await take(consumer)
                assert (first.value, last.value) == (b"a", b"b")
            acked = [run[1:] for runs in broker.acked.values() for run in runs]
            assert acked == [(0, 1), (2, 3)], "nobody says that it is done"

    asyncio.run(scenario())
