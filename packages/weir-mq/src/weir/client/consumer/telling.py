"""When what a consumer settled is told: a moment after the first of it, or at once."""

from __future__ import annotations

import asyncio
from typing import Protocol

from weir.errors import WeirError


class Gathering(Protocol):
    """Gathers outcomes by partition until they are sent."""

    def note_news(self) -> None:
        """Add whatever is settled."""

    def waiting(self) -> list[int]:
        """Return the partitions with something to tell."""

    async def tell(self, partition: int) -> None:
        """Tell it; return when a majority knows."""

    def failed(self, error: WeirError) -> None:
        """Sending by the timer failed."""


class Telling:
    """Tells acks, and what is given back, `within` seconds, while messages are pulled."""

    def __init__(self, gathering: Gathering, within: float) -> None:
        """Take what gathers."""
        self._gathering = gathering
        self._within = within
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runs = False
        self._due = False
        self._is_called = False
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: dict[asyncio.Task[None], None] = {}

    def begin(self) -> None:
        """Flush by a timer from now on, in this event loop."""
        self._loop = asyncio.get_running_loop()
        self._runs, self._is_called = True, False

    def stop(self) -> None:
        """Flush no more, but when told to."""
        self._runs = self._due = False
        if self._timer is not None:
            self._timer.cancel()

    def soon(self) -> None:
        """Something is settled. Of any thread."""
        if not self._due and self._loop is not None:
            self._due = True
            self._loop.call_soon_threadsafe(self._later)

    def now(self) -> None:
        """Something is settled that others wait for. In the loop's thread."""
        if self._runs and not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._at_once)

    def _at_once(self) -> None:
        self._is_called = False
        if not self._runs:
            return
        if self._timer is not None:  # nothing is left for it
            self._timer.cancel()
            self._timer, self._due = None, False
        self._tell_all()

    async def flush(self) -> None:
        """Tell all that is settled; return when a majority knows."""
        self._gathering.note_news()
        if self._flushes:
            await asyncio.wait(self._flushes)
        for partition in self._gathering.waiting():
            await self._gathering.tell(partition)

    def _later(self) -> None:
        assert self._loop is not None  # it calls this
        if self._runs:
            self._timer = self._loop.call_later(self._within, self._now)
        else:  # it was closed: that tells
            self._due = False

    def _now(self) -> None:
        self._timer, self._due = None, False
        self._tell_all()

    def _tell_all(self) -> None:
        self._gathering.note_news()
        for partition in self._gathering.waiting():
            task = asyncio.get_running_loop().create_task(self._tell_or_fail(partition))
            self._flushes[task] = None
            task.add_done_callback(self._flushes.pop)

    async def _tell_or_fail(self, partition: int) -> None:
        try:
            await self._gathering.tell(partition)
        except WeirError as error:
            self._gathering.failed(error)
