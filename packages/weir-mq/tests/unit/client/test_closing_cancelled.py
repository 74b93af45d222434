"""Who is cancelled while a client closes leaves no connection that nobody ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rigs.clients import network_of
from weir.client import client as module
from weir.client.client import connect

Broker = Callable[[], AbstractAsyncContextManager[Any]]


def test_a_close_that_is_cancelled_at_a_consumer_ends_the_link(
    fake_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forever(consumer: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "_leave", forever)

    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.topic("doors")
            client = await connect(broker.url)
            client.consumer("doors", cluster="crew")
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0.01)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            assert network_of(client).error is not None

    asyncio.run(scenario())


def test_a_close_that_is_cancelled_at_once_ends_the_link(fake_broker: Broker) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            client = await connect(broker.url)
            closing = asyncio.create_task(network_of(client).close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            assert network_of(client).error is not None
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(1, 8))
def test_a_close_that_is_cancelled_leaves_no_connection_open(
    fake_broker: Broker, turns: int
) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            client = await connect(broker.url)
            closing = asyncio.create_task(network_of(client).close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            async with asyncio.timeout(10):
                while broker.writers:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
