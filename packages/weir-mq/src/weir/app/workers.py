"""The workers of a subscription: who has nothing to do, and who wants nobody beside it.

The handlers of a process share an event loop: one of them may want that nothing happens beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from weir.app.work_queue import WorkQueue
from weir.errors import WeirError

#: Who is to be alone waits so long for those who are at work, and is alone for so long, in seconds.
CLEARED = 10.0
ALONE = 60.0

_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWorkers] = WeakKeyDictionary()

Worker = asyncio.Task[None]

T = TypeVar("T")


class LoopWorkers:
    """All workers of an event loop, whatever they subscribed to: a process ends with all of it."""

    def __init__(self) -> None:
        """Begin with none."""
        self.subscriptions: set[Workers] = set()
        #: Set while anybody may begin something; and when all are idle.
        self._opened = asyncio.Event()
        self._opened.set()
        self._idle = asyncio.Event()

    @staticmethod
    def here() -> LoopWorkers:
        """Return those of the event loop that runs."""
        return _by_loop.setdefault(asyncio.get_running_loop(), LoopWorkers())

    def leave(self, workers: Workers) -> None:
        """Forget those of a subscription; all, once there are none: a loop may be one of many."""
        self.subscriptions.discard(workers)
        if not self.subscriptions:
            _by_loop.pop(asyncio.get_running_loop(), None)

    @property
    def closed(self) -> bool:
        """Whether one is alone, or is about to be: none may begin anything."""
        return not self._opened.is_set()

    @property
    def busy(self) -> int:
        """How many are at work."""
        return sum(workers.busy for workers in self.subscriptions)

    def note_idle(self) -> None:
        """Take note that somebody is at work no more."""
        if self.closed and not self.busy:
            self._idle.set()

    async def admitted(self) -> None:
        """Wait until nobody is alone."""
        await self._opened.wait()

    async def close(self, mine: Workers) -> Exclusive:
        """Let one of `mine` be alone: nothing begins, what did not is given back, and all that was
        done is told. Who is at work may end, within `CLEARED` seconds.

        Call it idly, and not while it is `closed`: what one holds who waits for that dies with who
        is alone. Raises `WeirError` where what `mine` did cannot be told.
        """
        assert not self.closed
        self._opened.clear()
        alone = Exclusive(self)
        try:
            for workers in self.subscriptions:
                workers.pause()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEARED):
                    while self.busy:
                        self._idle.clear()
                        await self._idle.wait()
            others = [_quiet(workers) for workers in self.subscriptions if workers is not mine]
            await asyncio.gather(mine.quiet(), *others)
        except BaseException:
            alone.end()
            raise
        return alone

    def open(self) -> None:
        """Let the others begin again."""
        self._opened.set()


class Exclusive:
    """Somebody is alone in an event loop until `end`, or for `ALONE` seconds: what hangs must not
    keep all others from their work.
    """

    def __init__(self, workers: LoopWorkers) -> None:
        """Begin; the time runs from `begin` on."""
        self._workers: LoopWorkers | None = workers
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Let the time run."""
        self._timer = asyncio.get_running_loop().call_later(ALONE, self.end)

    def end(self) -> None:
        """Let the others begin again; nothing happens if they have."""
        if self._timer is not None:
            self._timer.cancel()
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.open()


async def _quiet(workers: Workers) -> None:
    """Let others tell what they have done; where they cannot, their messages come again."""
    with contextlib.suppress(WeirError, TimeoutError):
        async with asyncio.timeout(CLEARED):
            await workers.quiet()


class Workers:
    """Tasks that work beside each other, and beside those of other subscriptions."""

    def __init__(self, taking: WorkQueue) -> None:
        """Begin with none; they take what they work on from `taking`."""
        self.all: set[Worker] = set()
        #: Those that wait for something to do.
        self.idle: set[Worker] = set()
        self._taking = taking
        self._loop_workers = LoopWorkers.here()
        self._loop_workers.subscriptions.add(self)

    @property
    def busy(self) -> int:
        """How many are at work."""
        return len(self.all) - len(self.idle)

    @property
    def closed(self) -> bool:
        """Whether one is alone, or waits to be: none may begin anything."""
        return self._loop_workers.closed

    async def idly(self, worker: Worker, wait: Coroutine[Any, Any, T]) -> T:
        """Wait, as one who has nothing to do and may be cancelled."""
        self.idle.add(worker)
        self._loop_workers.note_idle()
        try:
            return await wait
        finally:
            self.idle.discard(worker)

    def over(self, worker: Worker) -> None:
        """Forget one that has ended."""
        self.all.discard(worker)
        self._loop_workers.note_idle()
        if not self.all:
            self._loop_workers.leave(self)

    async def admitted(self) -> None:
        """Wait until nobody is alone."""
        await self._loop_workers.admitted()

    async def close(self) -> Exclusive:
        """Be alone in the process until the end of what is returned. See `LoopWorkers.close`."""
        return await self._loop_workers.close(self)

    # What those of all subscriptions are asked.

    def pause(self) -> None:
        """Give back all that did not begin."""
        self._taking.pause()

    async def quiet(self) -> None:
        """Return when the broker knows what is settled, and given back, and grants no more. Raises
        `WeirError`.
        """
        await self._taking.quiet()
