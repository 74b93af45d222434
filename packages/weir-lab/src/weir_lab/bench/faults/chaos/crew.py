"""Consumers of one cluster at access relays: what each message was handed out for, and done by.

An ack that says that its grant did the message is counted: of each message there is one at most,
however often it was granted, for what was lost with a relay, or with its core, is granted again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from weir.client.client import Client, connect
from weir.client.consumer.consumer import Consumer, LeasedMessage
from weir.errors import WeirError

CLUSTER = "crew"
_LEASE = "20s"
_TOGETHER = 32
#: A consumer that moves gives a relay up that does not let it in for so long, in seconds.
_MOVE_SECONDS = 5.0
_STAY_SECONDS = (0.5, 3.0)
_LOOK_SECONDS = 0.02
_EXAMPLES_MAX = 10
Place = tuple[int, int]


class CrewLedger:
    """By partition and offset, how often messages were handed out, and done by an ack."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.given = Counter[Place]()
        self.done = Counter[Place]()
        #: How often the consumer that moves was given messages by another relay than before.
        self.moves = 0

    @property
    def given_again(self) -> int:
        """How many deliveries were of messages that had been handed out before."""
        return self.given.total() - len(self.given)

    def judge(self, truth: Sequence[Place]) -> tuple[int, int, list[str]]:
        """Return how many messages of the core nobody was given, how many acks did again what
        another one had done, and examples of both.
        """
        lost = [one for one in truth if not self.given[one]]
        twice = {one: count for one, count in self.done.items() if count > 1}
        examples = [f"cluster: {one[0]}/{one[1]} did not come" for one in lost[:_EXAMPLES_MAX]]
        examples += [f"cluster: {one[0]}/{one[1]} was done {n} times" for one, n in twice.items()]
        return len(lost), sum(twice.values()) - len(twice), examples


async def stay(url: str, topic: str, ledger: CrewLedger, patience: float) -> None:
    """Consume at one relay for ever; a request may take `patience` seconds."""
    async with (
        connect(url, name="weir-chaos", request_timeout=patience) as client,
        client.consumer(topic, cluster=CLUSTER, lease=_LEASE) as consumer,
    ):
        await _consume(consumer, ledger, None)


async def move(urls: Sequence[str], topic: str, dice: random.Random, ledger: CrewLedger) -> None:
    """Consume at one relay after the other, for ever."""
    turn, last = 0, ""
    while True:
        url = urls[turn % len(urls)]
        turn += 1
        before = ledger.given.total()
        with suppress(WeirError, TimeoutError):
            async with (
                connect(url, name="weir-chaos", request_timeout=_MOVE_SECONDS) as client,
                client.consumer(topic, cluster=CLUSTER, lease=_LEASE) as consumer,
            ):
                seconds = dice.uniform(*_STAY_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds + _MOVE_SECONDS):
                        await _consume(consumer, ledger, time.monotonic() + seconds)
        if ledger.given.total() > before:
            ledger.moves += last not in ("", url)
            last = url
        else:
            await asyncio.sleep(_LOOK_SECONDS)


async def _consume(consumer: Consumer, ledger: CrewLedger, until: float | None) -> None:
    """Take messages, and ack each, up to `_TOGETHER` at a time, until then."""
    acks: set[asyncio.Task[None]] = set()
    try:
        async for message in consumer:
            ledger.given[message.partition, message.offset] += 1
            acks.add(asyncio.create_task(_ack(message, ledger)))
            if until is not None and time.monotonic() >= until:
                break
            while len(acks) >= _TOGETHER:
                _, acks = await asyncio.wait(acks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*acks)
    finally:
        for task in acks:
            task.cancel()
        await asyncio.gather(*acks, return_exceptions=True)


async def _ack(message: LeasedMessage, ledger: CrewLedger) -> None:
    with suppress(WeirError):  # it is granted again, or was done
        if await message.ack(confirmed=True):
            ledger.done[message.partition, message.offset] += 1


async def left(client: Client, topic: str) -> int:
    """Return how many messages of the cluster are not done, as the core says."""
    return sum(one.lag for one in await client.clusters(topic, CLUSTER))
