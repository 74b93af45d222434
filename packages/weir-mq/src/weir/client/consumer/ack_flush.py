"""Telling the broker what is settled: together, a moment after the first of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from weir.errors import WeirError


class Gathering(Protocol):
    """What gathers by partition until it is told."""

    def waiting(self) -> list[int]:
        """Return the partitions with something to tell."""

    async def flush(self, partition: int) -> None:
        """Tell it; return when a majority knows."""


class Telling:
    """Flushes acks, and what is given back, `within` seconds, while messages are pulled."""

    def __init__(
        self,
        acking: Gathering,
        returning: Gathering,
        within: float,
        note: Callable[[], None],
        failed: Callable[[WeirError], None],
    ) -> None:
        """Take what gathers; `note` adds to it whatever is settled, `failed` is told of errors."""
        self._acking = acking
        self._returning = returning
        self._within = within
        self._note = note
        self._failed = failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runs = False
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: dict[asyncio.Task[None], None] = {}

    def begin(self) -> None:
        """Flush by a timer from now on, in this event loop."""
        self._loop = asyncio.get_running_loop()
        self._runs = True

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

    async def flush(self) -> None:
        """Tell all that is settled; return when a majority knows."""
        self._note()
        if self._flushes:
            await asyncio.wait(self._flushes)
        for partition in self._waiting():
            await self._tell(partition)

    def _waiting(self) -> list[int]:
        return sorted({*self._acking.waiting(), *self._returning.waiting()})

    async def _tell(self, partition: int) -> None:
        await self._acking.flush(partition)
        await self._returning.flush(partition)

    def _later(self) -> None:
        assert self._loop is not None  # it calls this
        if self._runs:
            self._timer = self._loop.call_later(self._within, self._now)
        else:  # it was closed: that tells
            self._due = False

    def _now(self) -> None:
        self._due = False
        self._note()
        for partition in self._waiting():
            task = asyncio.get_running_loop().create_task(self._tell_or_fail(partition))
            self._flushes[task] = None
            task.add_done_callback(self._flushes.pop)

    async def _tell_or_fail(self, partition: int) -> None:
        try:
            await self._tell(partition)
        except WeirError as error:
            self._failed(error)
