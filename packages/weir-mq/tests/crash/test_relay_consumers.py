"""`kill -9` of the relay that consumers work at: they go on at the next one with what they were
granted, and no message is lost or handled twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.client.arguments import ConsumerMode
from weir.client.client import connect
from weir.testing.nodes import RelayProcess, free_ports, start_node

TOPIC, MESSAGES, KILLS = "t", 800, 3


@pytest.fixture
def relays() -> Iterator[list[RelayProcess]]:
    started: list[RelayProcess] = []
    yield started
    for one in started:
        one.kill()


# Of consumers by key a relay holds what it holds of those that share, and windows of keys besides.
@pytest.mark.parametrize("mode", [pytest.param("shared", marks=pytest.mark.slow), "keyed"])
def test_the_relay_of_consumers_at_work_is_killed(
    tmp_path: Path, relays: list[RelayProcess], mode: ConsumerMode
) -> None:
    core_port, *ports = free_ports(3)
    core = start_node(tmp_path / "core", tmp_path, port=core_port, shards=1)
    relays += [RelayProcess(core.url, tmp_path / f"relay{n}", port) for n, port in enumerate(ports)]
    addresses = [one.url.removeprefix("weir://") for one in relays]
    handled: Counter[int] = Counter()
    late: list[object] = []

    async def write() -> None:
        async with connect(core.url) as client, client.producer(TOPIC) as producer:
            for number in range(MESSAGES):
                await producer.send(b"%d" % number, key=b"%d" % (number % 40))
                await asyncio.sleep(0.004)

    async def consume(first: int) -> None:
        order = addresses[first:] + addresses[:first]
        async with (
            connect(f"weir://{','.join(order)}", request_timeout=60) as client,
            client.consumer(TOPIC, cluster="crew", mode=mode, on_stale=late.append) as consumer,
        ):
            async for message in consumer:
                async with message:
                    await asyncio.sleep(0.005)
                    handled[int(message.value)] += 1

    async def kill() -> None:
        for number in range(KILLS):
            await asyncio.sleep(1.0)
            struck = relays[number % 2]
            await asyncio.to_thread(struck.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(struck.start)

    async def work() -> None:
        async with connect(core.url) as client:
            await client.create_topic(TOPIC, partitions=3)
            for one in relays:
                await asyncio.to_thread(one.start)
            consuming = [asyncio.ensure_future(consume(number % 2)) for number in range(4)]
            killing = asyncio.ensure_future(kill())
            await write()
            await killing
            while len(handled) < MESSAGES:
                assert not any(one.done() for one in consuming)
                await asyncio.sleep(0.1)
            while sum(row.lag for row in await client.clusters(TOPIC)):
                await asyncio.sleep(0.1)
            for one in consuming:
                one.cancel()
            await asyncio.wait(consuming)

    asyncio.run(asyncio.wait_for(work(), 120))
    assert [number for number in range(MESSAGES) if handled[number] != 1] == []
    assert late == []
    core.stop()
