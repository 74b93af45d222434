"""A node that has not heard yet of a partition that was added is asked until it has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import weir
from weir.errors import BadRequest, UnknownTopic
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.spark.blocking_client import BlockingClient

#: How often the node is asked where the topic is served after it was told of all partitions.
LATE = 2


class Lagging:
    """Has a topic "t" of three partitions, of which its node tells but one at first."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._whole = broker.topic("t", 3)
        one = self._whole.addresses[:1]
        broker.topics["t"] = msgspec.structs.replace(self._whole, addresses=one)
        self._asked = -1
        broker.script = self._script

    def _script(self, request: m.Request) -> None:
        if isinstance(request, a.AskLeader):
            self._asked = 0
        elif isinstance(request, m.DescribeTopic) and self._asked >= 0:
            self._asked += 1
            if self._asked == LATE:
                self._broker.topics["t"] = self._whole


async def read_on(w: weir.Client) -> None:
    reader = w.reader("t", start={0: 0, 2: 0}, follow=False)
    assert [message async for message in reader] == []
    assert set(reader.positions) == {0, 1, 2}


async def read_some(w: weir.Client) -> None:
    async with w.reader("t", partitions=[1]) as reader:
        assert set(reader.positions) == {1}


async def read_until(w: weir.Client) -> None:
    reader = w.reader("t", until={2: 0}, follow=False)
    assert [message async for message in reader] == []


async def publish(w: weir.Client) -> None:
    async with w.producer("t", partition=2) as producer:
        assert (await producer.publish(b"x")).partition == 2


WORK: list[Callable[[weir.Client], Awaitable[None]]] = [read_on, read_some, read_until, publish]


@pytest.mark.parametrize("work", WORK)
def test_a_partition_that_a_node_has_not_heard_of_is_waited_for(
    fake_broker: Any, work: Callable[[weir.Client], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            Lagging(broker)
            async with asyncio.timeout(20), weir.connect(broker.url) as w:
                await work(w)

    asyncio.run(scenario())


def test_a_partition_that_the_topic_lacks_is_refused_at_once(fake_broker: Any) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topic("t", 3)
            async with asyncio.timeout(2), weir.connect(broker.url) as w:
                for partition in (3, 1 << 16, 1 << 70):
                    with pytest.raises(UnknownTopic, match="give 0 to 2"):
                        await w.reader("t", start={partition: 0}).open()

    asyncio.run(scenario())


def test_a_worker_without_a_loop_waits_too(fake_broker: Any) -> None:
    def ask(port: int) -> None:
        with BlockingClient("127.0.0.1", port, timeout=10) as client:
            info = client.describe("t")
            assert len(info.addresses) == 1
            assert len(client.await_partitions("t", info, 3).addresses) == 3
            assert len(client.await_partitions("t", info, 4).addresses) == 3

    async def scenario() -> None:
        async with fake_broker() as broker:
            Lagging(broker)
            await asyncio.to_thread(ask, broker.port)

    asyncio.run(scenario())


def test_a_consumer_that_connects_anew_keeps_the_partitions_it_knew(fake_broker: Any) -> None:
    """What it has still to acknowledge may be of one that the node has not heard of."""

    async def scenario() -> None:
        async with fake_broker() as broker, asyncio.timeout(20), weir.connect(broker.url) as w:
            whole = broker.topic("t", 3)
            await w.publish("t", b"x", partition=2)
            refused = m.Refusal(BadRequest.code, "not now")
            async with w.consumer("t", cluster="crew") as consumer:
                message = await anext(consumer)
                broker.script = lambda one: refused if isinstance(one, m.Pull) else None
                broker.cut()
                with pytest.raises(BadRequest, match="not now"):
                    await anext(consumer)
                one = whole.addresses[:1]
                broker.topics["t"] = msgspec.structs.replace(whole, addresses=one)
                broker.script = lambda _: None
                broker.granted.clear()  # the lease of the former connection has ended
                again = await anext(consumer)
                assert (again.partition, again.offset) == (message.partition, message.offset)
                await message.ack()
                await again.ack()
            assert broker.acked[whole.addresses[2].group]

    asyncio.run(scenario())
