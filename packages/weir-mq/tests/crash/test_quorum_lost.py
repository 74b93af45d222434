"""`kill -9` of the majority of one partition's nodes, in a set of five: only its own order waits.

The other topic's readers in total order go on after one election, and so do publishes to all
partitions that have a majority. When the nodes are back everybody has one sequence.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import combinations
from pathlib import Path

from weir.client.administration import Part
from weir.client.client import Client, connect
from weir.client.producer.receipts import BatchReceipt
from weir.testing.nodes import NodeSet, Patient, running_set

NODES = 5
PARTITIONS = 3
PER_SECOND = 100
#: Messages that whoever goes on gets while the others wait.
BETWEEN = 150
#: Far above an election, on a machine that is busy with other tests.
ELECTED_SECONDS = 10.0
READ_FROM = ("leader", "any")

Place = tuple[int, int, int]


class Order:
    """One topic: what was published to each partition, and what its readers in total order got."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent = [0] * PARTITIONS
        self.confirmed: list[list[Place]] = [[] for _ in range(PARTITIONS)]
        self.read: list[list[Place]] = [[] for _ in READ_FROM]
        #: The longest time that the first reader waited for a message.
        self.longest = 0.0
        self.enough = False

    async def produce(self, client: Client) -> None:
        """Publish to each partition by turns, at a steady rate."""
        loop, number = asyncio.get_running_loop(), 0
        began = loop.time()
        async with client.producer(self.topic, linger="2ms", on_confirm=self._confirm) as producer:
            while not self.enough:
                while number < (loop.time() - began) * PER_SECOND:
                    partition = number % PARTITIONS
                    producer.send(b"%d" % number, partition=partition)
                    self.sent[partition] += 1
                    number += 1
                await asyncio.sleep(0.005)

    def _confirm(self, batch: BatchReceipt) -> None:
        self.confirmed[batch.partition] += [
            (batch.stamp, batch.partition, batch.offset + n) for n in range(batch.count)
        ]

    async def follow(self, client: Client, number: int) -> None:
        """Read to the end of the test."""
        last = time.monotonic()
        async with client.reader(self.topic, read_from=READ_FROM[number]) as reader:
            async for message in reader:
                self.read[number].append((message.stamp, message.partition, message.offset))
                if number == 0:
                    self.longest = max(self.longest, time.monotonic() - last)
                    last = time.monotonic()

    async def moves(self, count: int) -> None:
        """Return once every reader has `count` messages more."""
        until = min(map(len, self.read)) + count
        while min(map(len, self.read)) < until:
            await asyncio.sleep(0.01)

    async def confirms(self, partitions: list[int], count: int = 1) -> None:
        """Return once each of some partitions has `count` confirms more."""
        until = [len(self.confirmed[partition]) + count for partition in partitions]
        while any(
            len(self.confirmed[partition]) < most
            for partition, most in zip(partitions, until, strict=True)
        ):
            await asyncio.sleep(0.01)

    async def stands(self) -> list[int]:
        """Return how much each reader has once nobody has got anything for a second."""
        had = [-1]
        while had != (now := [len(read) for read in self.read]):
            had = now
            await asyncio.sleep(1.0)
        return had


def victims(parts: list[Part]) -> tuple[tuple[int, ...], int, list[int]]:
    """Return two nodes, a partition that has no majority without them, and those that have."""
    for pair in combinations(range(1, NODES + 1), 2):
        left = {part.partition: len(set(part.nodes) - set(pair)) for part in parts}
        if min(left.values()) == 1 and max(left.values()) > 1:
            gone = min(left, key=left.__getitem__)
            return pair, gone, [partition for partition, many in left.items() if many > 1]
    raise AssertionError(parts)


async def play(nodes: NodeSet, stopped: Order, other: Order) -> None:
    async with AsyncExitStack() as stack:

        async def client() -> Client:
            return await stack.enter_async_context(connect(nodes.url, request_timeout=60.0))

        one = await client()
        for order, replicas in ((stopped, 3), (other, NODES)):
            await one.create_topic(order.topic, PARTITIONS, order="total", replicas=replicas)
        works = [asyncio.ensure_future(order.produce(await client())) for order in (stopped, other)]
        reading = [
            asyncio.ensure_future(order.follow(await client(), number))
            for order in (stopped, other)
            for number in range(len(READ_FROM))
        ]
        try:
            await asyncio.gather(stopped.moves(BETWEEN), other.moves(BETWEEN))
            pair, gone, left = victims(await one.parts(stopped.topic))
            await asyncio.to_thread(nodes.kill, pair)
            # Those that lost their leaders only hold the order back until others are elected.
            await stopped.confirms(left, BETWEEN // 10)
            at = await stopped.stands()
            other.longest = 0.0
            await other.moves(2 * BETWEEN)
            assert other.longest < ELECTED_SECONDS
            await stopped.confirms(left)  # no partition waits for another one
            assert len(stopped.confirmed[gone]) < stopped.sent[gone], "by whom was it confirmed?"
            assert [len(read) for read in stopped.read] == at, "the order went on without one"
            await asyncio.to_thread(nodes.start_again, pair)
            await asyncio.to_thread(nodes.wait, pair, Patient())
            await stopped.moves(BETWEEN)
            stopped.enough = other.enough = True
            await asyncio.gather(*works)
            for order in (stopped, other):
                confirmed = sorted(place for part in order.confirmed for place in part)
                assert len(confirmed) == sum(order.sent)
                while min(map(len, order.read)) < len(confirmed):
                    await asyncio.sleep(0.01)
                async with one.reader(order.topic, follow=False) as reader:
                    again = [(m.stamp, m.partition, m.offset) async for m in reader]
                assert all(read == confirmed for read in (again, *order.read))
        finally:
            for work in (*works, *reading):
                work.cancel()
            await asyncio.gather(*works, *reading, return_exceptions=True)


def test_a_partition_without_quorum_stops_its_own_order_only(tmp_path: Path) -> None:
    with running_set(tmp_path, NODES) as nodes:
        asyncio.run(asyncio.wait_for(play(nodes, Order("stopped"), Order("other")), 110))
