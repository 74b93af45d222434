"""Readers of all flights: do they all see one order, where a topic promises it and where not?

Two readers follow the airports live, a third replays everything afterwards. What that one reads is
copied, in the order in which it comes, to a topic of which only each partition has an order, and
which is read by three readers in the same way. Each notes where its batches lay, in its order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np

from weir.client.client import Client, connect
from weir.client.core.delivered_batches import Delivered
from weir.model.limits import MIB
from weir_lab.demo.flights import ORIGINS, TOPIC
from weir_lab.demo.order import Runs
from weir_lab.demo.processes.worker import Stage, work
from weir_lab.demo.tasks import APART, READERS, OrderTask

#: What each of the live readers asks for at once: they need not agree about that either.
_AT_ONCE = (4 * MIB, MIB // 4)
_POLL_SECONDS = 0.02

T = TypeVar("T")


class Watching:
    """The readers of one topic, and what they have noted."""

    def __init__(self, client: Client, topic: str) -> None:
        """Begin with nobody reading."""
        self.runs = [Runs() for _ in range(READERS)]
        self._client = client
        self._topic = topic

    async def follow(self, place: int) -> None:
        """Read live, until cancelled."""
        runs = self.runs[place]
        async with self._client.reader(self._topic, max_bytes=_AT_ONCE[place]) as reader:
            async for part in reader.batches():
                runs.note(part.partition, part.offset, len(part))

    async def replay(self) -> list[Delivered]:
        """Read all that is there with the last reader; return it."""
        runs, parts = self.runs[-1], []
        async with self._client.reader(self._topic, follow=False) as reader:
            async for part in reader.batches():
                runs.note(part.partition, part.offset, len(part))
                parts.append(part)
        return parts

    async def all_followed(self) -> None:
        """Return once those who read live have seen as much as the replay."""
        while any(runs.messages < self.runs[-1].messages for runs in self.runs):
            await asyncio.sleep(_POLL_SECONDS)


class Readers:
    """All readers of a run. What one of them raises, `perform` raises."""

    def __init__(self, client: Client, stage: Stage) -> None:
        """Begin with nothing read."""
        self.one, self.apart = Watching(client, TOPIC), Watching(client, APART)
        self._client = client
        self._stage = stage
        self._live: list[asyncio.Task[None]] = []

    async def perform(self) -> None:
        """Follow the flights, and at the cue replay, copy and read the copy."""
        await self._client.create_topic(APART, partitions=len(ORIGINS))
        try:
            self._follow(self.one)
            await self._do("reads", self._cue())
            parts = await self._do("replays", self.one.replay())
            self._follow(self.apart)
            await self._do("copies", self._copy(parts))
            await self._do("replays the copy", self.apart.replay())
            for watching in (self.one, self.apart):
                await self._do("reads", watching.all_followed())
        finally:
            for reader in self._live:
                reader.cancel()
            await asyncio.wait(self._live)

    def _follow(self, watching: Watching) -> None:
        self._live += [asyncio.create_task(watching.follow(n)) for n in range(READERS - 1)]

    async def _cue(self) -> None:
        while not self._stage.cue.is_set():
            await asyncio.sleep(_POLL_SECONDS)

    async def _do(self, state: str, what: Coroutine[Any, Any, T]) -> T:
        """Tell how far the readers are until something is done; end it if one of them fails."""
        task = asyncio.create_task(what)
        while not task.done():
            await asyncio.wait([task, *self._live], timeout=_POLL_SECONDS,
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            for reader in self._live:
                if reader.done():
                    task.cancel()
                    await reader
            seen = sum(runs.messages for runs in (*self.one.runs, *self.apart.runs))
            self._stage.tell_now_and_then(state, seen)
        return await task

    async def _copy(self, parts: list[Delivered]) -> None:
        """Publish batches again, one after the other, each to the partition that it was in."""
        async with self._client.producer(APART, linger=0) as producer:
            for part in parts:
                await producer.send_many(part.values(), partition=part.partition)
                await producer.flush()


async def _perform(task: OrderTask, stage: Stage) -> Readers:
    async with connect(task.url, name="order") as client:
        readers = Readers(client, stage)
        await readers.perform()
    return readers


def read(task: OrderTask, stage: Stage) -> None:
    """Let all readers read, then write what they noted."""
    readers = asyncio.run(_perform(task, stage))
    columns = {}
    for topic, watching in ((TOPIC, readers.one), (APART, readers.apart)):
        for place, runs in enumerate(watching.runs):
            columns[f"{topic}.{place}"] = runs.column()
    np.savez(task.ledger, allow_pickle=False, **columns)
    stage.tell("done", sum(runs.messages for runs in (*readers.one.runs, *readers.apart.runs)))


if __name__ == "__main__":
    work(OrderTask, read)
