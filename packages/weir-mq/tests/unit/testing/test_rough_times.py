"""Publishing and consuming through cuts, power cuts, ended leases, and consumers that come and go.

`WEIR_ROUGH_MESSAGES` sets how many messages go through; there is trouble after every few of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

import weir
from rigs.consuming import take
from weir import testing
from weir.client.client import Client

MESSAGES = int(os.environ.get("WEIR_ROUGH_MESSAGES", "400"))
QUICK = weir.Backoff(0.001, 0.02)


async def produce(w: Client) -> None:
    async with w.producer("t", linger="1ms") as producer:
        for i in range(MESSAGES):
            await producer.ready()
            producer.send(b"%d" % i, key=b"%d" % (i % 50))
            if i % 20 == 0:
                await asyncio.sleep(0)


class Worker:
    """Consumes, and knows of which messages a majority knows that they are done."""

    def __init__(self, w: Client, node: testing.Node, dice: random.Random) -> None:
        self.w = w
        self.node = node
        self.dice = dice
        self.seen: Counter[bytes] = Counter()
        self.acked: set[bytes] = set()
        self.again = 0

    async def work(self) -> None:
        """One life of a consumer: some messages, some trouble, then all is acked, or told late."""
        handled = []
        consumer = self.w.consumer(
            "t",
            cluster="c",
            max_messages=self.dice.choice([1, 10, 200]),
            ack_within=self.dice.choice([0, "2ms", "1h"]),
            on_stale=lambda _: None,
        )
        async with consumer:
            for _ in range(self.dice.randint(1, 60)):
                message = await take(consumer)
                self.again += message.value in self.acked
                self.seen[message.value] += 1
                handled.append(message.value)
                if len(self.seen) == MESSAGES:
                    break
                if self.dice.random() < 0.02:
                    self.trouble()
        if not consumer.stale:
            self.acked.update(handled)

    def trouble(self) -> None:
        self.dice.choice([self.node.cut, self.node.restart, bool])()
        # Nobody waits for a lease here: what a lost connection or life of the node held is free.
        self.node.advance(31)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_and_nothing_acked_comes_again(seed: int) -> None:
    async def scenario() -> None:
        dice = random.Random(seed)
        async with testing.node() as node, weir.connect(node.url, retry=QUICK) as w:
            await w.create_topic("t", partitions=3)
            worker = Worker(w, node, dice)
            producing = asyncio.ensure_future(produce(w))
            async with asyncio.timeout(90):
                while len(worker.seen) < MESSAGES:
                    await worker.work()
                await producing
            assert worker.again == 0
            assert worker.acked
            values = [message.value async for message in w.reader("t", follow=False)]
            assert Counter(values) == Counter(b"%d" % i for i in range(MESSAGES))

    asyncio.run(scenario())
