"""What a consumer did is not lost, however it is left; and late acks are told."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable

import pytest

import weir
from weir import testing
from weir.client.client import Client
from weir.client.consumer.acknowledgements import Stale
from weir.errors import BadName, UnknownTopic


def run(scenario: Callable[[testing.Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        with testing.node() as node:
            async with asyncio.timeout(30):
                await scenario(node)

    asyncio.run(whole())


async def fill(w: Client, count: int) -> None:
    await w.create_topic("t")
    async with w.producer("t") as producer:
        await producer.send_many([b"%d" % i for i in range(count)])


async def first(w: Client) -> bytes:
    async with w.consumer("t", cluster="c") as consumer:
        return (await anext(consumer)).value


def test_a_client_that_closes_acks_for_consumers_left_open() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 10)
            with pytest.warns(ResourceWarning, match="async with"):  # noqa: PT031
                async with weir.connect(node.url) as other:
                    consumer = other.consumer("t", cluster="c", ack_within="1h")
                    for _ in range(4):
                        await anext(consumer)
            assert await first(w) == b"3"

    run(scenario)


def test_close_acks_what_is_done_and_warns_of_nothing() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 10)
            consumer = w.consumer("t", cluster="c", ack_within="1h")
            async for message in consumer:
                if message.value == b"5":
                    break
            await consumer.close()
            assert consumer.closed
            assert not consumer.unfinished
            assert await first(w) == b"5"

    run(scenario)


def test_the_last_message_can_be_done_without_asking_for_another() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 4)
            async with w.consumer("t", cluster="c") as consumer:
                async for message in consumer:
                    if message.value == b"2":
                        consumer.done()
                        break
            assert await first(w) == b"3"

    run(scenario)


def test_a_consumer_that_was_closed_can_go_on() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 4)
            consumer = w.consumer("t", cluster="c", ack_within=0)
            assert (await anext(consumer)).value == b"0"
            await consumer.close()
            assert (await anext(consumer)).value == b"0"
            assert (await anext(consumer)).value == b"1"
            await consumer.close()

    run(scenario)


def test_a_late_ack_is_told_to_whoever_asks() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 1)
            late: list[Stale] = []
            async with w.consumer("t", cluster="c", on_stale=late.append) as consumer:
                grants = consumer.batches()
                grant = await anext(grants)
                node.advance(31)
                again = await anext(grants)
                assert (again.offset, again.attempts) == (0, 2)
                assert not await consumer.ack(grant)
                assert await consumer.ack(again)
                assert late == [Stale("t", 0, 0, 1)]
                assert consumer.stale == 1

    run(scenario)


def test_a_late_ack_is_logged_if_nobody_asks(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await fill(w, 2)
            async with w.consumer("t", cluster="c", lease="1s", ack_within="1h") as consumer:
                await anext(consumer)
                await anext(consumer)
                node.advance(2)
                assert (await anext(consumer)).value == b"0"

    with caplog.at_level(logging.WARNING, "weir.client.consumer.acknowledgements"):
        run(scenario)
    record, *_ = caplog.records
    assert "give a longer lease=" in record.getMessage()


def test_a_wrong_name_is_told_before_anything_is_pulled() -> None:
    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            with pytest.raises(UnknownTopic):
                async with w.consumer("nowhere", cluster="c"):
                    pass
            with pytest.raises(BadName, match="cluster"):
                w.consumer("t", cluster="no blanks")

    run(scenario)


def test_a_client_that_is_never_closed_is_told() -> None:
    async def scenario(node: testing.Node) -> None:
        w = await weir.connect(node.url)
        with pytest.warns(ResourceWarning, match="await client.close"):
            w.__del__()
        await w.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            w.__del__()

    run(scenario)
