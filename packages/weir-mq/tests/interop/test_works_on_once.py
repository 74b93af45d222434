"""A consumer that still works on a message is not granted it again, though its lease ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import weir
from weir import sync
from weir.model.topic import AckOutcome
from weir.testing.nodes import Node, running_node

LEASE_S = 0.3
LEASE = "300ms"
LONG_S = 3 * LEASE_S


@pytest.fixture(scope="module")
def running() -> Iterator[Node]:
    with running_node(segment_mib=32, spares=0, shards=1) as one:
        yield one


@pytest.fixture
def node(running: Node) -> Iterator[Node]:
    """A node on which there is no topic."""
    yield running
    with sync.connect(running.url) as client:
        client.delete_topic("t")


async def fill(w: weir.client.client.Client, first: int, behind: int) -> None:
    async with w.producer("t") as producer:
        await producer.send_many(
            [b"%d" % n for n in range(first, behind)], keys=[b"k"] * (behind - first)
        )


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_iterating_a_message_that_outlasts_its_lease_comes_once(
    node: Node, mode: str, blocks: bool
) -> None:
    async def scenario() -> list[int]:
        seen = []
        async with weir.connect(node.url) as w, asyncio.timeout(40):
            await w.create_topic("t", partitions=1)
            await fill(w, 0, 8)
            async with w.consumer("t", cluster="c", lease=LEASE, max_work=0, mode=mode) as consumer:
                async for message in consumer:
                    seen.append(message.offset)
                    if message.offset in {2, 5}:
                        if blocks:
                            time.sleep(LONG_S)
                        else:
                            await asyncio.sleep(LONG_S)
                    await message.ack()
                    if message.offset == 7:
                        break
                await consumer.flush()
                assert consumer.stale == 0
            assert (await w.clusters("t", "c"))[0].lag == 0
        return seen

    assert asyncio.run(scenario()) == [*range(8)]


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_a_batch_that_outlasts_its_lease_comes_once_and_is_done_by_its_grant(
    node: Node, mode: str, blocks: bool
) -> None:
    async def scenario() -> list[int]:
        seen = []
        async with weir.connect(node.url) as w, asyncio.timeout(40):
            await w.create_topic("t", partitions=1)
            await fill(w, 0, 4)
            async with w.consumer(
                "t", cluster="c", lease=LEASE, max_work=0, mode=mode, max_messages=2
            ) as consumer:
                async for grant in consumer.batches():
                    seen += [message.offset for message in grant.messages()]
                    if blocks:
                        time.sleep(LONG_S)
                    else:
                        await asyncio.sleep(LONG_S)
                    assert (await grant.ack(confirmed=True)).outcome is AckOutcome.DONE
                    if len(seen) >= 4:
                        break
        return seen

    assert asyncio.run(scenario()) == [*range(4)]


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_others_get_what_its_consumer_still_works_on_and_idle_workers_go_on(
    node: Node, mode: str
) -> None:
    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(40):
            await w.create_topic("t", partitions=1)
            await w.publish("t", b"slow", key=b"0")
            async with w.consumer("t", cluster="c", lease=LEASE, max_work=0, mode=mode) as a:
                deliveries = a.deliveries()
                slow = await anext(deliveries)
                nothing = asyncio.ensure_future(anext(deliveries))
                await asyncio.sleep(LONG_S)
                assert not nothing.done(), "its own message came again"
                await w.publish("t", b"quick", key=b"1")
                quick = await nothing
                assert quick.message.value == b"quick"
                quick.done()
                async with w.consumer("t", cluster="c", lease="30s", mode=mode) as b:
                    again = await anext(b)
                    assert (again.offset, again.attempts) == (slow.message.offset, 2)
                    assert await again.ack(confirmed=True)
                slow.done()
                await a.flush()
                assert a.stale == 1

    asyncio.run(scenario())


def test_a_handler_that_outlasts_its_lease_runs_once_beside_its_neighbours(node: Node) -> None:
    runs: Counter[int] = Counter()
    over = asyncio.Event()
    app = weir.App(node.url)

    @app.subscribe("t", cluster="c", lease=LEASE, concurrency=2)
    async def work(message: weir.Message) -> None:
        runs[message.offset] += 1
        if message.offset == 3:
            await asyncio.sleep(LONG_S)
        if message.offset == 6:
            time.sleep(LONG_S)
        if sum(runs.values()) >= 12:
            over.set()

    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(40):
            await w.create_topic("t", partitions=1)
            await fill(w, 0, 12)
            running = asyncio.create_task(app.run())
            await over.wait()
            while (await w.clusters("t", "c"))[0].lag:
                await asyncio.sleep(0.02)
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(scenario())
    assert runs[3] == 1
    assert runs[6] == 1


def test_a_batch_that_is_left_without_an_ack_goes_to_another_consumer(node: Node) -> None:
    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(40):
            await w.create_topic("t", partitions=1)
            await fill(w, 0, 1)
            async with (
                w.consumer("t", cluster="c", lease=LEASE, max_work=0) as consumer,
                w.consumer("t", cluster="c") as other,
            ):
                first = await anext(consumer.batches())
                again = await anext(other.batches())
                assert (first.attempts, again.attempts) == (1, 2)
                assert await again.ack(confirmed=True)

    asyncio.run(scenario())
