"""The workers of a subscription: who has nothing to do, and who wants none beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

Worker = asyncio.Task[None]

#: Who is to be alone waits so long for those who are at work.
CLEARED = 10.0


class Workers:
    """Tasks that work beside each other; one may ask that the others begin nothing."""

    def __init__(self) -> None:
        """Begin with none."""
        self.all: set[Worker] = set()
        #: Those that wait for something to do.
        self.idle: set[Worker] = set()
        #: Whether one is alone, or waits to be: none may begin anything.
        self.closed = False
        #: Held by who is alone; and set when all are idle.
        self._alone = asyncio.Lock()
        self._calm = asyncio.Event()

    async def idly(self, worker: Worker, wait: Coroutine[Any, Any, None]) -> None:
        """Wait, as one who has nothing to do and may be cancelled."""
        self.idle.add(worker)
        if len(self.idle) == len(self.all):
            self._calm.set()
        try:
            await wait
        finally:
            self.idle.discard(worker)

    async def admitted(self) -> None:
        """Wait until nobody is alone."""
        async with self._alone:
            pass

    async def close(self, pause: Callable[[], None]) -> None:
        """Be alone until `open`: all are idle by then, or have been at work for `CLEARED` seconds.

        Call it idly. `pause` is called when none may begin.
        """
        await self._alone.acquire()
        self.closed = True
        try:
            pause()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEARED):
                    while len(self.idle) < len(self.all):
                        self._calm.clear()
                        await self._calm.wait()
        except BaseException:
            self.open()
            raise

    def open(self) -> None:
        """Let the others begin again."""
        self.closed = False
        self._alone.release()
