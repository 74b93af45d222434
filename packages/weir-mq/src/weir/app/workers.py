"""The workers of a subscription: who has nothing to do, and who wants nobody beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from weir.app.exclusion import Alone, Room
from weir.app.work_queue import Taking

Worker = asyncio.Task[None]

T = TypeVar("T")


class Workers:
    """Tasks that work beside each other, in a room with those of other subscriptions."""

    def __init__(self, taking: Taking) -> None:
        """Begin with none; they take what they work on from `taking`."""
        self.all: set[Worker] = set()
        #: Those that wait for something to do.
        self.idle: set[Worker] = set()
        self._taking = taking
        self._room = Room.here()
        self._room.guests.add(self)

    @property
    def busy(self) -> int:
        """How many are at work."""
        return len(self.all) - len(self.idle)

    @property
    def closed(self) -> bool:
        """Whether one is alone, or waits to be: none may begin anything."""
        return self._room.closed

    async def idly(self, worker: Worker, wait: Coroutine[Any, Any, T]) -> T:
        """Wait, as one who has nothing to do and may be cancelled."""
        self.idle.add(worker)
        self._room.idles()
        try:
            return await wait
        finally:
            self.idle.discard(worker)

    def over(self, worker: Worker) -> None:
        """Forget one that has ended."""
        self.all.discard(worker)
        self._room.idles()
        if not self.all:
            self._room.leave(self)

    async def admitted(self) -> None:
        """Wait until nobody is alone."""
        await self._room.admitted()

    async def close(self) -> Alone:
        """Be alone in the process until the end of what is returned. See `Room.close`."""
        return await self._room.close(self)

    # What the room asks of its guests.

    def pause(self) -> None:
        """Give back all that did not begin."""
        self._taking.pause()

    async def quiet(self) -> None:
        """Return when the broker knows what is settled, and given back, and grants no more. Raises
        `WeirError`.
        """
        await self._taking.quiet()
