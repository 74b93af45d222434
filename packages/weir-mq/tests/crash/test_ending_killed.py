"""`kill -9` of a partition's leader while that partition ends: nothing is lost, there twice, or in
another place, and whoever reads in total order goes on.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from weir.client.client import Client, connect
from weir.errors import Unavailable
from weir.model.topic import partition_for
from weir.testing.nodes import NodeSet, Patient

TOPIC = "ordered"
PARTITIONS = 4
ENDING = 2
PER_SECOND = 500
KEYS = 61
#: Messages that the reader must have between two steps.
BETWEEN = 300


class Load:
    """One producer at a steady rate, and one who reads."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.read: list[Any] = []
        self.enough = False

    async def produce(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with client.producer(TOPIC, linger="2ms") as producer:
            while not self.enough:
                due = int((loop.time() - began) * PER_SECOND)
                for number in range(len(self.sent), due):
                    self.sent.append(producer.send(b"%d" % number, key=b"%d" % (number % KEYS)))
                await asyncio.sleep(0.002)

    async def follow(self, client: Client) -> None:
        async with client.reader(TOPIC) as reader:
            async for message in reader:
                self.read.append(message)

    async def moves(self, count: int) -> None:
        until = len(self.read) + count
        while len(self.read) < until:
            await asyncio.sleep(0.01)


async def end(client: Client) -> None:
    while True:
        try:
            await client.end_partition(TOPIC, ENDING)
        except Unavailable:
            continue  # it goes on by itself, and is asked again
        return


async def under_load(nodes: NodeSet, load: Load) -> list[Any]:
    async with AsyncExitStack() as stack:
        client, other = [
            await stack.enter_async_context(connect(nodes.url, request_timeout=20.0))
            for _ in range(2)
        ]
        await client.create_topic(TOPIC, PARTITIONS, order="total")
        works = [
            asyncio.ensure_future(load.follow(other)), asyncio.ensure_future(load.produce(client))
        ]  # fmt: skip
        try:
            await load.moves(BETWEEN)
            leader = (await client.describe(TOPIC)).addresses[ENDING].node
            ending = asyncio.ensure_future(end(other))
            await asyncio.sleep(0)
            nodes.kill([leader])
            await ending
            await load.moves(BETWEEN)
            await asyncio.to_thread(nodes.restart, leader, Patient())
            await load.moves(BETWEEN)
            load.enough = True
            await works[1]
            while len(load.read) < len(load.sent):
                await asyncio.sleep(0.01)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
        async with client.reader(TOPIC, follow=False, read_from="any") as reader:
            return [message async for message in reader]


def test_a_partition_ends_though_its_leader_dies(nodes: NodeSet) -> None:
    load = Load()

    async def body() -> tuple[list[Any], list[Any]]:
        async with asyncio.timeout(90):
            again = await under_load(nodes, load)
            return again, [await one for one in load.sent]

    again, receipts = asyncio.run(body())
    assert again == load.read
    places = [(x.stamp, x.partition, x.offset) for x in again]
    assert sorted((r.stamp, r.partition, r.offset) for r in receipts) == places
    assert sorted(int(x.value) for x in again) == [*range(len(load.sent))]
    for number in range(KEYS):
        key = b"%d" % number
        mine = [x for x in again if x.key == key]
        assert [int(x.value) for x in mine] == sorted(int(x.value) for x in mine)
        if partition_for(key, PARTITIONS) != ENDING:
            assert len({x.partition for x in mine}) == 1
        else:
            assert mine[-1].partition == partition_for(key, PARTITIONS, {ENDING})
