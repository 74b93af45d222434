"""A consumer that pauses can be sure that it is granted nothing, and holds nothing."""

from __future__ import annotations

import asyncio

import pytest

import weir
from weir import testing
from weir.client.client import Client


async def consumers(w: Client) -> int:
    (cluster,) = await w.clusters("doors")
    return cluster.consumers


@pytest.mark.parametrize("order", ["partition", "total"])
@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_once_it_is_quiet_it_is_granted_nothing(mode: str, order: str) -> None:
    """Its pulls waited on, and what they were granted counted as tried if the process ended."""

    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("doors", partitions=2, order=order)
            async with w.consumer("doors", cluster="c", mode=mode) as consumer:
                deliveries = consumer.deliveries()
                for round_ in range(5):
                    await w.publish("doors", b"%d" % round_, key=b"%d" % round_)
                    delivery = await anext(deliveries)
                    assert (delivery.message.value, delivery.attempts) == (b"%d" % round_, 1)
                    delivery.done()
                    # Some are told to pull when nothing is there, and some while something comes.
                    more = asyncio.ensure_future(deliveries.more())
                    await asyncio.sleep(0.01 * round_)
                    more.cancel()
                    deliveries.pause()
                    await deliveries.quiet()
                    assert await consumers(w) == 0

    async def whole() -> None:
        with testing.node() as node:
            async with asyncio.timeout(30):
                await scenario(node)

    asyncio.run(whole())
