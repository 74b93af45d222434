"""Waiting for progress: as long as there is some, but not longer without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weir.errors import WeirError


class Patience:
    """Tasks that wait for a condition, and whoever tells them to look again."""

    __slots__ = ("_timeout", "_waiters")

    def __init__(self, timeout: float) -> None:
        """Take how many seconds without any `wake` are too long."""
        self._timeout = timeout
        self._waiters: list[asyncio.Future[None]] = []

    async def until(self, done: Callable[[], bool], complaint: Callable[[], WeirError]) -> None:
        """Return when `done()`; raise the `complaint()` if nothing moves for too long."""
        while not done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout(self._timeout):
                    await waiter
            except TimeoutError:
                raise complaint() from None

    def wake(self) -> None:
        """Something moved: all who wait look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
