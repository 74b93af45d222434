"""Consumers of a prefix, and clusters that begin somewhere, in worlds in which all may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from weir.errors import UnknownTopic
from weir.testing import World, world

_EACH = 6


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not done():
            await asyncio.sleep(0.05)


async def topics_come_and_go(world: World) -> None:
    """Two processes share what begins with "feeds."; one topic is deleted, and comes again."""
    done: set[tuple[str, bytes]] = set()
    left: set[tuple[str, bytes]] = set()

    async def take() -> None:
        async with world.connect() as w, w.consumer("feeds.*", cluster="c", lease=2) as consumer:
            async for message in consumer:
                async with message:
                    await asyncio.sleep(0.02)
                    done.add((message.topic, bytes(message.value)))

    async with world.connect() as w:

        async def feed(topic: str, text: str) -> None:
            await w.create_topic(topic, partitions=2)
            for number in range(_EACH):
                value = f"{text} {number}".encode()
                await w.publish(topic, value, partition=number % 2)
                left.add((topic, value))
                await asyncio.sleep(world.random.random())

        world.start(take, "taker1")
        world.start(take, "taker2")
        for number in range(3):
            await feed(f"feeds.{number}", "first")
        await w.create_topic("others")
        await w.publish("others", b"not theirs")
        with suppress(UnknownTopic):  # it was told twice, for an answer was lost
            await w.delete_topic("feeds.1")
        await feed("feeds.1", "again")
        left -= {("feeds.1", b"first %d" % number) for number in range(_EACH)}
        world.heal()
        await until(lambda: left <= done)
        assert not [topic for topic, _ in done if not topic.startswith("feeds.")]


async def a_cluster_begins_once(world: World) -> None:
    """Whoever of the two is first, and however often it dies: nothing from before comes, and
    nothing is passed over that was published once one of them was open.
    """
    done: set[bytes] = set()
    opened = asyncio.Event()

    async def take() -> None:
        async with (
            world.connect() as w,
            w.consumer("t", cluster="c", start="latest", lease=2) as consumer,
        ):
            opened.set()
            async for message in consumer:
                async with message:
                    done.add(bytes(message.value))

    async with world.connect() as w:
        await w.create_topic("t", partitions=3)
        for number in range(12):
            await w.publish("t", b"old %d" % number, partition=number % 3)
        world.start(take, "taker1")
        world.start(take, "taker2")
        await opened.wait()
        new = {b"new %d" % number for number in range(12)}
        for number in range(12):
            await w.publish("t", b"new %d" % number, partition=number % 3)
            await asyncio.sleep(world.random.random())
        world.heal()
        await until(lambda: new <= done)
        assert done == new


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scenario", [topics_come_and_go, a_cluster_begins_once])
def test_it_holds_whatever_fails(scenario: Callable[[World], object], seed: int) -> None:
    world(seed, nodes=3).run(scenario)  # type: ignore[arg-type]
