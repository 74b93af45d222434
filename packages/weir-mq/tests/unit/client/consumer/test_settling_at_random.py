"""Consumers that do, fail, pause, close and are cut off at random: nothing is lost, order is kept.

WEIR_SETTLING_SEEDS=100 for more.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from random import Random

import pytest

import weir
from weir import testing
from weir.client.client import Client
from weir.client.consumer.consumer import Consumer
from weir.client.consumer.delivery import Delivery
from weir.client.core.retries import Backoff
from weir.errors import WeirError

SEEDS = int(os.environ.get("WEIR_SETTLING_SEEDS", "1"))
COUNT = 240
KEYS = 6
PARTITIONS = 2
DISTURBANCES = 8
QUICK = Backoff(first=0.001, most=0.02)


class Work:
    """What is done, by key (or partition, in an ordered cluster), in the order it was done."""

    def __init__(self, mode: str, dice: Random) -> None:
        self.mode = mode
        self.dice = dice
        self.done: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
        self.attempts: dict[int, int] = {}

    @property
    def all_done(self) -> bool:
        return len({number for numbers in self.done.values() for number in numbers}) == COUNT

    def of(self, message: weir.Message) -> tuple[int, bytes | None]:
        return message.partition, None if self.mode == "ordered" else message.key

    async def one(self, delivery: Delivery) -> None:
        """Handle a message as its lot says."""
        message, lot = delivery.message, self.dice.random()
        number = int(message.value)
        if not delivery.held:
            # Not `done`: that counts if the broker has not given it to another yet.
            delivery.give_back()
        elif lot < 0.1:
            delivery.nack(self.dice.choice([0, 0.005]))
        elif lot < 0.15:
            delivery.give_back()
        else:
            self.done[self.of(message)].append(number)
            delivery.done()

    async def consume(self, w: Client) -> None:
        """Take deliveries for a while; some stay open when it closes."""
        async with w.consumer(
            "t",
            cluster="c",
            mode=self.mode,
            # What a node had granted when it crashed comes again when its lease is over.
            lease="700ms",
            max_work=None if self.dice.random() < 0.5 else 0,
            ack_within=0.002,
            max_messages=30,
        ) as consumer:
            await self.take(consumer, self.dice.randrange(1, 80))

    async def take(self, consumer: Consumer, left: int) -> None:
        deliveries = consumer.deliveries()
        waiting: list[Delivery] = []
        while left:
            delivery = deliveries.at_hand()
            if delivery is not None:
                waiting.append(delivery)
            elif waiting:
                # Only where nothing counts the order may be any other.
                at = self.dice.randrange(len(waiting)) if self.mode == "shared" else 0
                await self.one(waiting.pop(at))
                left -= 1
            else:
                async with asyncio.timeout(0.1):
                    await deliveries.more()
            if self.dice.random() < 0.02:
                deliveries.pause()
            await asyncio.sleep(0)


async def consumers(work: Work, url: str) -> None:
    """One after the other, until all is done."""
    async with weir.connect(url, retry=QUICK) as w:
        while not work.all_done:
            try:
                await work.consume(w)
            except (WeirError, TimeoutError):
                continue  # it was cut off, or there was nothing for it just then


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_whatever_happens_all_is_done_in_order(mode: str, seed: int) -> None:
    async def scenario() -> None:
        dice = Random(f"{mode} {seed}")
        work = Work(mode, dice)
        async with (
            testing.node() as node,
            weir.connect(node.url, retry=QUICK) as w,
            asyncio.timeout(100),
        ):
            await w.create_topic("t", partitions=PARTITIONS)
            async with w.producer("t") as producer:
                for first in range(0, COUNT, 20):
                    numbers = range(first, first + 20)
                    await producer.send_many(
                        [b"%d" % i for i in numbers], keys=[b"k%d" % (i % KEYS) for i in numbers]
                    )
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(consumers(work, node.url))
                for _ in range(DISTURBANCES):
                    await asyncio.sleep(dice.random() / 5)
                    dice.choice([node.cut, node.restart])()
        for numbers in work.done.values():
            first = [*dict.fromkeys(numbers)]
            if mode != "shared":
                assert first == sorted(first), "a later one was done before it"

    asyncio.run(scenario())
