"""`kill -9` of the leader of three real nodes under load: what was confirmed is there, in order.

WEIR_LEADER_KILLS=30 for more. One producer sends a thousand messages a second whatever happens,
a reader and two consumers follow, all by one client that is told nothing of the kills.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable

from weir.client.client import Client, connect
from weir.client.producer.receipts import PendingMessage
from weir.testing.nodes import NodeSet, Patient

KILLS = int(os.environ.get("WEIR_LEADER_KILLS", "2"))
TOPIC = "load"
PER_SECOND = 1_000
#: Messages that must be confirmed between two kills, so that each meets a leader at work.
BETWEEN = 500


class Load:
    """One producer at a steady rate, and who follows it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent: list[PendingMessage] = []
        self.confirmed = 0
        self.read: list[bytes] = []
        self.consumed: Counter[int] = Counter()
        self.at_work: list[asyncio.Future[None]] = []
        self.enough = False

    async def produce(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        counting = []
        async with self.client.producer(TOPIC, linger="2ms") as producer:
            while not self.enough:
                due = int((loop.time() - began) * PER_SECOND)
                while len(self.sent) < due:
                    self.sent.append(producer.send(b"%d" % len(self.sent)))
                    counting.append(loop.create_task(self._count(self.sent[-1])))
                await asyncio.sleep(0.002)
        await asyncio.gather(*counting)

    async def _count(self, sent: PendingMessage) -> None:
        await sent
        self.confirmed += 1

    async def follow(self) -> None:
        async with self.client.reader(TOPIC) as reader:
            async for message in reader:
                self.read.append(message.value)

    async def consume(self) -> None:
        async with self.client.consumer(TOPIC, cluster="crew", lease="5s") as consumer:
            async for message in consumer:
                self.consumed[int(message.value)] += 1
                await message.ack()

    async def moves(self) -> None:
        """Return once more is confirmed, read and consumed."""
        until = self.confirmed + BETWEEN
        while min(self.confirmed, len(self.read), len(self.consumed)) < until:
            for work in self.at_work:
                if work.done():
                    work.result()  # it failed
            await asyncio.sleep(0.01)


async def under_load(nodes: NodeSet) -> Load:
    async with connect(nodes.url, request_timeout=20.0) as client:
        await client.create_topic(TOPIC)
        load = Load(client)
        works = (load.follow(), load.consume(), load.consume())
        at_work = load.at_work = [asyncio.ensure_future(work) for work in works]
        producing = asyncio.ensure_future(load.produce())
        try:
            for _ in range(KILLS):
                await load.moves()
                leader = (await client.describe(TOPIC)).addresses[0].node
                nodes.kill([leader])
                await load.moves()
                await asyncio.to_thread(nodes.restart, leader, Patient())
            load.enough = True
            await producing
            while min(len(load.read), len(load.consumed)) < len(load.sent):
                await asyncio.sleep(0.01)
        finally:
            for work in (producing, *at_work):
                work.cancel()
            ended = await asyncio.gather(*at_work, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
    return load


def test_nothing_confirmed_is_lost_repeated_or_reordered_by_a_leaders_death(
    nodes: NodeSet, tell: Callable[..., None]
) -> None:
    async def body() -> None:
        async with asyncio.timeout(60 + 20 * KILLS):
            load = await under_load(nodes)
            receipts = [await one for one in load.sent]
        assert [receipt.offset for receipt in receipts] == [*range(len(receipts))]
        assert load.read == [b"%d" % n for n in range(len(receipts))]
        assert [*sorted(load.consumed)] == [*range(len(receipts))]
        tell(kills=KILLS, messages=len(receipts))

    asyncio.run(body())
