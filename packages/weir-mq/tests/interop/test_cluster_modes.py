"""A cluster's mode is one for all partitions, whoever asks for another, on a real node."""

from __future__ import annotations

import asyncio

import pytest

import weir
from weir import device
from weir.client.client import Client
from weir.errors import BadRequest
from weir.protocol.device import ALL_PARTITIONS
from weir.testing.nodes import Node, running_node

PARTITIONS = 3


async def first(w: Client, cluster: str, mode: str) -> bytes:
    async with w.consumer("t", cluster=cluster, mode=mode) as consumer:
        async for message in consumer:
            await message.ack(confirmed=True)
            return bytes(message.value)
    raise AssertionError("a consumer does not end by itself")


async def fill(w: Client, *partitions: int) -> None:
    for partition in partitions:
        await w.publish("t", b"%d" % partition, partition=partition)


def test_who_asks_for_another_mode_is_refused_and_harms_nobody() -> None:
    """The cluster has worked in one partition. Another consumer got messages of the others in its
    own mode, for good: those of the cluster were refused there from then on.
    """

    async def body() -> None:
        with running_node() as node:
            async with weir.connect(node.url) as w:
                await w.create_topic("t", PARTITIONS)
                await fill(w, 0)
                assert await first(w, "crew", "shared") == b"0"
                await fill(w, 1, 2)
                with pytest.raises(BadRequest, match="'crew' is shared"):
                    await first(w, "crew", "keyed")
                found = {await first(w, "crew", "shared") for _ in range(2)}
                assert found == {b"1", b"2"}
                (crew,) = await w.clusters("t", "crew")
                assert {share.mode for share in crew.shares} == {"shared"}

    asyncio.run(asyncio.wait_for(body(), 60))


def test_of_two_modes_at_once_a_new_cluster_has_one_in_all_partitions() -> None:
    async def body() -> None:
        with running_node() as node:
            async with weir.connect(node.url) as a, weir.connect(node.url) as b:
                await a.create_topic("t", PARTITIONS)
                await fill(a, *range(PARTITIONS))
                for attempt in range(20):
                    told = await asyncio.gather(
                        first(a, f"crew{attempt}", "shared"),
                        first(b, f"crew{attempt}", "keyed"),
                        return_exceptions=True,
                    )
                    refused = [one for one in told if isinstance(one, BadRequest)]
                    assert len(refused) == 1, f"{told}: one mode is the cluster's"
                    (crew,) = await a.clusters("t", f"crew{attempt}")
                    modes = {share.mode for share in crew.shares} - {""}
                    assert modes == {"keyed" if told[0] is refused[0] else "shared"}

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_device_takes_nothing_from_a_cluster_that_is_no_device_s() -> None:
    """Devices share: that of another mode would be shared in some partitions from then on."""

    def subscribe(node: Node) -> None:
        hub = device.Client(node.host, node.port, hub=7, boot=1, topic="t")
        with hub, pytest.raises(BadRequest):
            hub.subscribe("crew", "t", sn=1, partition=ALL_PARTITIONS).take(20)

    async def body() -> None:
        with running_node() as node:
            async with weir.connect(node.url) as w:
                await w.create_topic("t", PARTITIONS)
                await fill(w, 0)
                assert await first(w, "crew", "keyed") == b"0"
                await fill(w, 1, 2)
                await asyncio.to_thread(subscribe, node)
                assert {await first(w, "crew", "keyed") for _ in range(2)} == {b"1", b"2"}

    asyncio.run(asyncio.wait_for(body(), 60))
