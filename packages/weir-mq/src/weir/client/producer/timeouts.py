"""Waiting for progress: as long as there is some, but not longer without."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from weir.errors import WeirError

#: So many that wait in line, done or not, are nothing to look through.
_FEW = 1_024


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
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Limits:
    """Futures that wait for at most so long, all as long: one timer does for all of them, since
    whoever began first is due first.
    """

    __slots__ = ("_complaint", "_line", "_most", "_seconds", "_timer")

    def __init__(self, seconds: float, complaint: Callable[[], WeirError]) -> None:
        """Let futures fail with the `complaint()` after so many seconds."""
        self._seconds = seconds
        self._complaint = complaint
        self._line: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._most = _FEW
        self._timer: asyncio.TimerHandle | None = None

    def put(self, waiter: asyncio.Future[Any]) -> None:
        """Let a future wait, from now on."""
        line = self._line
        while line and line[0][1].done():
            line.popleft()
        if len(line) >= self._most:  # the first one waits for long
            line = self._line = deque(one for one in line if not one[1].done())
            self._most = max(_FEW, 2 * len(line))
        loop = waiter.get_loop()
        line.append((loop.time() + self._seconds, waiter))
        if self._timer is None:
            self._timer = loop.call_at(line[0][0], self._look)

    def close(self, error: WeirError | None = None) -> None:
        """Let those who still wait fail now, with an error or the complaint: nobody is to settle
        them any more.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        line, self._line = self._line, deque()
        for _, waiter in line:
            if not waiter.done():
                waiter.set_exception(error or self._complaint())

    def _look(self) -> None:
        loop, line = asyncio.get_running_loop(), self._line
        now = loop.time()
        while line and (line[0][0] <= now or line[0][1].done()):
            _, waiter = line.popleft()
            if not waiter.done():
                waiter.set_exception(self._complaint())
        self._timer = loop.call_at(line[0][0], self._look) if line else None
