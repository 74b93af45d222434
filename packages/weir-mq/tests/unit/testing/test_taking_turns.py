"""Clusters in total order: one consumer at a time gets everything in the one order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import weir
from weir import testing
from weir.errors import BadRequest

MESSAGES = 60
PARTITIONS = 3


@asynccontextmanager
async def topic(count: int = MESSAGES) -> AsyncIterator[tuple[testing.Node, Any]]:
    """A node with a topic in total order, of which `count` messages lie anywhere."""
    dice = random.Random(7)
    with testing.node() as node:
        async with weir.connect(node.url) as w, asyncio.timeout(60):
            await w.create_topic("t", partitions=PARTITIONS, order="total")
            for n in range(count):
                await w.publish("t", b"%d" % n, partition=dice.randrange(PARTITIONS))
            yield node, w


def numbers(count: int) -> list[int]:
    return list(range(count))


async def consume(consumer: Any, count: int) -> list[int]:
    got: list[int] = []
    async for message in consumer:
        got.append(int(message.value))
        await message.ack()
        if len(got) == count:
            break
    return got


def test_one_consumer_gets_all_partitions_in_one_order_and_the_next_goes_on() -> None:
    async def scenario() -> None:
        async with topic() as (_, w):
            async with w.consumer("t", cluster="crew", mode="ordered") as first:
                assert await consume(first, 25) == numbers(25)
            async with w.consumer("t", cluster="crew", mode="ordered") as second:
                assert await consume(second, MESSAGES - 25) == numbers(MESSAGES)[25:]

    asyncio.run(scenario())


def test_a_standby_goes_on_when_the_active_one_goes() -> None:
    async def scenario() -> None:
        async with topic() as (_, w):
            active = w.consumer("t", cluster="crew", mode="ordered", max_messages=4)
            assert await consume(active, 10) == numbers(10)
            async with w.consumer("t", cluster="crew", mode="ordered") as standby:
                waits = asyncio.ensure_future(consume(standby, MESSAGES - 10))
                assert await consume(active, 10) == numbers(20)[10:]
                waits.cancel()
                await asyncio.wait([waits])
                waits = asyncio.ensure_future(consume(standby, MESSAGES - 20))
                await active.close()
                assert await waits == numbers(MESSAGES)[20:]
            assert standby.cursors.keys() == {0, 1, 2}

    asyncio.run(scenario())


def test_what_fails_comes_again_first_with_another_attempt() -> None:
    async def scenario() -> None:
        async with (
            topic(5) as (_, w),
            w.consumer("t", cluster="crew", mode="ordered") as consumer,
        ):
            seen: list[tuple[int, int]] = []
            async for delivery in consumer.deliveries():
                number = int(delivery.message.value)
                seen.append((number, delivery.attempts))
                if number == 2 and delivery.attempts < 3:
                    delivery.nack()
                else:
                    delivery.done()
                if number == 4:
                    break
        assert seen == [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1)]

    asyncio.run(scenario())


def test_an_ack_of_another_turn_is_refused() -> None:
    async def scenario() -> None:
        async with topic(6) as (node, w):
            late = w.consumer(
                "t", cluster="crew", mode="ordered", lease=1.0, on_stale=lambda _: None
            )
            batches = late.batches()
            grant = await anext(batches)
            async with w.consumer("t", cluster="crew", mode="ordered") as other:
                waits = asyncio.ensure_future(consume(other, 6))
                while not waits.done():
                    node.advance(1.0)
                    await asyncio.sleep(0.01)
                assert await waits == numbers(6)
            assert not await grant.ack(confirmed=True)
            assert late.stale
            await late.close()

    asyncio.run(scenario())


def test_a_turn_that_ended_hands_out_nothing_more() -> None:
    """A handler that outlasts its lease goes on with the next message: that is another's by then.

    It kept the turn, and two consumers worked at once for as long as there was something to read.
    """

    async def scenario() -> None:
        async with topic() as (node, w):
            holder = w.consumer(
                "t", cluster="crew", mode="ordered", lease=1.0, max_messages=1,
                on_stale=lambda _: None,
            )  # fmt: skip
            handed = holder.deliveries()
            first = await anext(handed)
            assert int(first.message.value) == 0
            async with w.consumer("t", cluster="crew", mode="ordered", lease=60.0) as other:
                theirs = other.deliveries()
                waits = asyncio.ensure_future(anext(theirs))
                while not waits.done():
                    node.advance(0.3)
                    await asyncio.sleep(0.01)
                assert int((await waits).message.value) == 0
                # The other works at 0; whatever the holder does now is not to be had by it.
                first.done()
                more = asyncio.ensure_future(anext(handed))
                for expected in range(1, 10):
                    (await waits).done()
                    waits = asyncio.ensure_future(anext(theirs))
                    assert int((await waits).message.value) == expected
                    assert not more.done(), "two have the turn"
                await other.flush()
                assert (await w.clusters("t", "crew"))[0].lag == MESSAGES - 9
                more.cancel()
                await asyncio.wait([more])
            assert holder.stale
            await holder.close()

    asyncio.run(scenario())


def test_an_idle_consumer_keeps_its_turn_and_what_comes_is_its_first_attempt() -> None:
    async def scenario() -> None:
        async with (
            topic(1) as (_, w),
            w.consumer("t", cluster="crew", mode="ordered", lease=1.0) as consumer,
        ):
            assert await consume(consumer, 1) == [0]
            waits = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0.6)
            await w.publish("t", b"1", partition=2)
            async with await waits as message:
                assert (message.value, message.attempts) == (b"1", 1)

    asyncio.run(scenario())


def test_messages_of_a_partition_that_joins_come_too() -> None:
    async def scenario() -> None:
        async with (
            topic(4) as (node, w),
            w.consumer("t", cluster="crew", mode="ordered") as consumer,
        ):
            assert await consume(consumer, 4) == numbers(4)
            await w.alter_topic("t", partitions=4)
            async with weir.connect(node.url) as later:  # producers know what there was
                for n in range(4, 8):
                    await later.publish("t", b"%d" % n, partition=n % 2 + 2)
            assert await consume(consumer, 4) == numbers(8)[4:]
            assert consumer.cursors.keys() == {0, 1, 2, 3}

    asyncio.run(scenario())


def test_operators_see_and_steer_it_as_a_whole() -> None:
    async def scenario() -> None:
        async with topic() as (_, w):
            async with w.consumer("t", cluster="crew", mode="ordered") as consumer:
                assert await consume(consumer, 20) == numbers(20)
                await consumer.flush()
                (cluster,) = await w.clusters("t")
                assert (cluster.order, cluster.mode) == ("total", "ordered")
                assert (cluster.lag, cluster.consumers) == (MESSAGES - 20, 1)
                middle = {share.partition: share.cursor for share in cluster.shares}
                assert (await w.pause_cluster("t", "crew")).paused
            await w.resume_cluster("t", "crew")
            assert (await w.seek_cluster("t", "crew", "earliest")).lag == MESSAGES
            async with w.consumer("t", cluster="crew", mode="ordered") as consumer:
                assert await consume(consumer, 30) == numbers(30)
            assert (await w.seek_cluster("t", "crew", middle)).lag == MESSAGES - 20
            async with w.consumer("t", cluster="crew", mode="ordered") as consumer:
                assert await consume(consumer, 40) == numbers(MESSAGES)[20:]
            await w.delete_cluster("t", "crew")
            assert await w.clusters("t") == []

    asyncio.run(scenario())


def test_its_acks_are_no_part_of_a_scattering() -> None:
    async def scenario() -> None:
        async with (
            topic(2) as (_, w),
            w.consumer("t", cluster="crew", mode="ordered") as consumer,
        ):
            message = await anext(consumer)
            scattering = w.scatter()
            scattering.publish("t", b"more", partition=0)
            scattering.ack(message)
            with pytest.raises(BadRequest, match="cursor"):
                await scattering.send()

    asyncio.run(scenario())


def test_a_delay_holds_nothing_back_in_total_order_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with topic(4) as (node, w):
            await w.publish("t", b"4", partition=0, delay="1h")
            await w.publish("t", b"gone", partition=1, ttl="1m")
            await w.publish("t", b"5", partition=2, delay="2h")
            node.advance(60)
            async with w.consumer("t", cluster="crew", mode="ordered") as consumer:
                assert await consume(consumer, 6) == numbers(6)
            async with w.consumer("t", cluster="shared") as consumer:
                assert sorted(await consume(consumer, 4)) == numbers(4), "there it is held back"

    asyncio.run(scenario())
    said = [record.getMessage() for record in caplog.records if "delay" in record.getMessage()]
    assert said == ["t: a delay holds nothing back in total order"], "once"
