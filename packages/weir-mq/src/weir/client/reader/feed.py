"""Pullers, one task per partition, that feed one queue at batch rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Over:
    """A puller has ended, by itself or by an error."""

    error: Exception | None = None


class Feed(Generic[T]):
    """What pullers put, in order of arrival. A puller bounds by itself how much it puts ahead."""

    def __init__(self, pullers: Iterable[Callable[[Feed[T]], Coroutine[None, None, None]]]) -> None:
        """Start every puller; it gets the feed, and ends the feed by raising."""
        self._queue: asyncio.Queue[T | _Over] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._live = 0
        for puller in pullers:
            self.add(puller)

    def add(self, puller: Callable[[Feed[T]], Coroutine[None, None, None]]) -> None:
        """Start one more puller."""
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._run(puller), name="weir puller"))
        self._live += 1

    def put(self, item: T) -> None:
        """Queue an item."""
        self._queue.put_nowait(item)

    def fail(self, error: Exception) -> None:
        """Let whoever takes next get an error, behind what is queued."""
        self._queue.put_nowait(_Over(error))

    async def take(self) -> T | None:
        """Return the next item, None once every puller has ended; raise what a puller raised."""
        while self._live:
            item = await self._queue.get()
            if not isinstance(item, _Over):
                return item
            if item.error is not None:
                raise item.error
            self._live -= 1
        return None

    def drain(self) -> list[T]:
        """Return what is queued; errors, and ends of pullers, stay."""
        queued = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for item in queued:
            if isinstance(item, _Over):
                self._queue.put_nowait(item)
        return [item for item in queued if not isinstance(item, _Over)]

    async def close(self) -> None:
        """End every puller."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, puller: Callable[[Feed[T]], Coroutine[None, None, None]]) -> None:
        try:
            await puller(self)
        except Exception as error:
            self.fail(error)
        else:
            self._queue.put_nowait(_Over())
