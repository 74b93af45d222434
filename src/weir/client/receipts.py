"""What a producer gets back: per message a `Receipt`, per batch a `Confirmed`."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message is. `duplicate`: an earlier send of its batch had put it there already."""

    topic: str
    partition: int
    offset: int
    stamp: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A batch is durable on a majority: its messages have offsets [offset, offset + count).

    A chunk of a large value has offset -1, and the Raft `index` of its entry.
    """

    partition: int
    first_sequence: int
    count: int
    offset: int
    stamp: int
    duplicate: bool
    index: int = 0


class Handed:
    """A batch handed over, or still being gathered: await it for its `Confirmed`, or its error.

    A future exists only if somebody waits, one for all who do.
    """

    __slots__ = ("_future", "_result", "count", "partition", "size", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        """Begin a batch of a partition."""
        self.topic = topic
        self.partition = partition
        self.size = 0
        self.count = 0
        self._result: Confirmed | Exception | None = None
        self._future: asyncio.Future[Confirmed] | None = None

    @property
    def settled(self) -> bool:
        """Whether it is confirmed or given up."""
        return self._result is not None

    def settle(self, result: Confirmed | Exception) -> None:
        """Say what became of the batch, once."""
        self._result = result
        future, self._future = self._future, None
        if future is None or future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    async def wait(self) -> Confirmed:
        """Return when the batch is confirmed, or raise what kept it from being so."""
        if self._result is None:
            if self._future is None:
                self._future = asyncio.get_running_loop().create_future()
            # One who gives up waiting must not take the future from the others.
            return await asyncio.shield(self._future)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def __await__(self) -> Generator[object, None, Confirmed]:
        return self.wait().__await__()


class Sent:
    """A message handed over: await it for its `Receipt`, or its error."""

    __slots__ = ("_batch", "_place")

    def __init__(self, batch: Handed, place: int) -> None:
        """Point at one message of a batch."""
        self._batch = batch
        self._place = place

    async def wait(self) -> Receipt:
        """Return when the message is confirmed, or raise what kept it from being so."""
        done = await self._batch.wait()
        batch = self._batch
        return Receipt(
            batch.topic, batch.partition, done.offset + self._place, done.stamp, done.duplicate
        )

    def __await__(self) -> Generator[object, None, Receipt]:
        return self.wait().__await__()
