"""`kill -9` of leaders of three real nodes: everybody who reads in total order gets one sequence.

WEIR_ORDER_KILLS=10 for more. Readers from leaders and from any replica, by clients of their own,
are told nothing of the kills; whoever reads it all again gets the same once more.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import Any

from weir.client.client import Client, connect
from weir.testing.nodes import NodeSet, Patient

KILLS = int(os.environ.get("WEIR_ORDER_KILLS", "1"))
TOPIC = "ordered"
PARTITIONS = 4
PER_SECOND = 500
#: Messages that everybody must have between two kills, so that each meets leaders at work.
BETWEEN = 300
READ_FROM = ("leader", "any", "any")

Place = tuple[int, int, int]


class Load:
    """One producer at a steady rate, and those who read."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.read: list[list[Place]] = [[] for _ in READ_FROM]
        self.enough = False

    async def produce(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with client.producer(TOPIC, linger="2ms") as producer:
            while not self.enough:
                due = int((loop.time() - began) * PER_SECOND)
                for number in range(len(self.sent), due):
                    self.sent.append(producer.send(b"%d" % number, key=b"%d" % (number % 61)))
                await asyncio.sleep(0.002)

    async def follow(self, client: Client, into: list[Place], read_from: str) -> None:
        async with client.reader(TOPIC, read_from=read_from) as reader:
            async for message in reader:
                into.append((message.stamp, message.partition, message.offset))

    async def moves(self, count: int) -> None:
        """Return once everybody has `count` messages more."""
        until = min(map(len, self.read)) + count
        while min(map(len, self.read)) < until:
            await asyncio.sleep(0.01)


async def under_load(nodes: NodeSet, load: Load) -> list[Place]:
    """Return what a reader gets that reads everything once more in the end."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect(nodes.url, request_timeout=20.0))
            for _ in range(len(READ_FROM) + 1)
        ]
        client = clients.pop()
        await client.create_topic(TOPIC, PARTITIONS, order="total")
        works = [
            asyncio.ensure_future(load.follow(one, into, read_from))
            for one, into, read_from in zip(clients, load.read, READ_FROM, strict=True)
        ]
        producing = asyncio.ensure_future(load.produce(client))
        try:
            for kill in range(KILLS):
                await load.moves(BETWEEN)
                leader = (await client.describe(TOPIC)).addresses[kill % PARTITIONS].node
                nodes.kill([leader])
                await load.moves(BETWEEN)
                await asyncio.to_thread(nodes.restart, leader, Patient())
            load.enough = True
            await producing
            while min(map(len, load.read)) < len(load.sent):
                await asyncio.sleep(0.01)
        finally:
            for work in (producing, *works):
                work.cancel()
            ended = await asyncio.gather(*works, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
        async with client.reader(TOPIC, follow=False, read_from="any") as reader:
            return [(x.stamp, x.partition, x.offset) async for x in reader]


def test_a_leaders_death_changes_nothing_in_the_one_order(nodes: NodeSet) -> None:
    load = Load()

    async def body() -> list[Place]:
        async with asyncio.timeout(60 + 20 * KILLS):
            again = await under_load(nodes, load)
            receipts = [await one for one in load.sent]
        assert sorted((r.stamp, r.partition, r.offset) for r in receipts) == again
        return again

    again = asyncio.run(body())
    for read in load.read:
        assert read == again
