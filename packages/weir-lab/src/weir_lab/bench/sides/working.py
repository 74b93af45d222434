"""Workers that share a topic's messages in one process, and what they took."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Literal

from weir.client.client import Client
from weir.client.consumer.consumer import Consumer
from weir.client.core.delivered_batches import Picked
from weir_lab.bench.harness.payload import Checker

Mode = Literal["shared", "keyed"]
MODES: tuple[Mode, ...] = ("shared", "keyed")
#: The most that one worker is given at a time, of weir and of peers.
GRANT_MESSAGES = 1_000


class Taken:
    """What workers took, noted as it comes. It is checked afterwards, for that costs more than
    taking it.
    """

    def __init__(self, messages: int) -> None:
        """Be complete with so many messages."""
        self.received = 0
        self.complete = asyncio.Event()
        self._wanted = messages
        #: Values, or columns of them, in the order in which they came.
        self._values: list[bytes | tuple[memoryview, memoryview]] = []

    def value(self, value: bytes) -> None:
        """Note one message."""
        self._values.append(value)
        self.received += 1
        if self.received >= self._wanted:
            self.complete.set()

    def values(self, values: Sequence[bytes]) -> None:
        """Note several."""
        self._values.extend(values)
        self._count(len(values))

    def column(self, offsets: memoryview, data: memoryview) -> None:
        """Note a value column: int32 offsets [n + 1] and the data they point into."""
        self._values.append((offsets, data))
        self._count(len(offsets) - 1)

    def _count(self, messages: int) -> None:
        self.received += messages
        if self.received >= self._wanted:
            self.complete.set()

    def check(self, counts: Sequence[int], size: int) -> Checker:
        """Return how it differs from what producers sent, `counts[p]` messages each."""
        checker = Checker(counts, size)
        for one in self._values:
            if isinstance(one, bytes):
                checker.take_one(one)
            else:
                checker.take(*one)
        return checker


class OwnWorkers:
    """Consumers of one cluster, each a task that acks all it takes: message by message, or grants
    as a whole.
    """

    def __init__(
        self,
        client: Client,
        cluster: str,
        consumers: Sequence[Consumer],
        taken: Taken,
        *,
        by_message: bool,
    ) -> None:
        """Take consumers of a client that are open, of one cluster."""
        self._client = client
        self._cluster = cluster
        self._consumers = consumers
        self._taken = taken
        self._run = self._by_message if by_message else self._in_batches
        self._tasks: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """Let each ask for its first messages."""
        self._tasks = [
            asyncio.ensure_future(self._run(one, self._taken)) for one in self._consumers
        ]

    @staticmethod
    async def _by_message(consumer: Consumer, taken: Taken) -> None:
        note = taken.value
        async for message in consumer:
            note(message.value)
            await message.ack()

    @staticmethod
    async def _in_batches(consumer: Consumer, taken: Taken) -> None:
        async for grant in consumer.batches():
            for part in grant.batches:
                if isinstance(part, Picked):
                    taken.values(part.values())
                    continue
                column, first = part.batch.value_column, part.skip
                taken.column(column.offsets[first : first + len(part) + 1], column.data)
            await grant.ack()

    async def failed(self) -> None:
        """Raise what ended one of them."""
        await first_failure(self._tasks)

    async def finish(self) -> None:
        """Return when a majority knows all acks."""
        while not await self._acked():
            await asyncio.gather(*(one.flush() for one in self._consumers))

    async def _acked(self) -> bool:
        """Return whether all is acked: with what came again, that is later than all was taken."""
        topic = self._consumers[0].topic
        return not (await self._client.clusters(topic, self._cluster))[0].lag

    async def stop(self) -> None:
        """End them."""
        await ended(self._tasks)


async def first_failure(running: Sequence[asyncio.Future[None]]) -> None:
    """Raise what ends one of them."""
    await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
    for one in running:
        one.result()


async def ended(running: Sequence[asyncio.Future[None]]) -> None:
    """Cancel all of them; return when they have ended."""
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def unless(failing: Coroutine[Any, Any, None], work: Coroutine[Any, Any, Any]) -> None:
    """Return once `work` is done; raise what the other raises first."""
    both = [asyncio.ensure_future(failing), asyncio.ensure_future(work)]
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        await ended(both)


async def opened(client: Client, topic: str, workers: int, mode: Mode) -> list[Consumer]:
    """Return so many open consumers of one cluster, which is named as its mode."""
    consumers = [
        client.consumer(topic, cluster=mode, mode=mode, max_messages=GRANT_MESSAGES)
        for _ in range(workers)
    ]
    return [*await asyncio.gather(*(one.open() for one in consumers))]
