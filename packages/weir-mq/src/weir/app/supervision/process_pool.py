"""Processes that all run the same command: so many as are wanted, one that ends by another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from weir.client.core.durations import Backoff

#: Between the end of a process and the start of the one in its place.
AGAIN = Backoff(first=0.1, most=30.0, factor=2.0, jitter=0.0)
#: Seconds after which a process that ends was not broken from the beginning.
LIVED = 10.0


@dataclass(frozen=True, slots=True)
class Started:
    """A process began."""

    process: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A process ended that should not have; another begins in `again` seconds."""

    process: int
    code: int
    again: float


@dataclass(frozen=True, slots=True)
class Killed:
    """A process was told to end, did not within `after` seconds, and was killed."""

    process: int
    after: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The machine starts no process; it is asked again in `again` seconds."""

    why: str
    again: float


PoolEvent = Started | Ended | Killed | Refused


class Child(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its number."""

    async def wait(self) -> int:
        """Return its exit code once it is over; below 0, the signal that ended it."""

    def terminate(self) -> None:
        """Tell it to end. Raises `ProcessLookupError` if it is over."""

    def kill(self) -> None:
        """End it. Raises `ProcessLookupError` if it is over."""


Start = Callable[[], Awaitable[Child]]


class ProcessPool:
    """A number of processes. They end with this one too, if they end when stdin does."""

    def __init__(self, start: Start, grace: float, tell: Callable[[PoolEvent], None]) -> None:
        """Take what starts one; one that was told to end is killed after `grace` seconds."""
        self._start = start
        self._grace = grace
        self._tell = tell
        self._slots: list[_Slot] = []
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def present(self) -> int:
        """How many run, and were not told to end."""
        return sum(slot.taken for slot in self._slots)

    def resize(self, count: int) -> None:
        """Let there be so many, soon: the youngest end first."""
        while len(self._slots) > count:
            slot = self._slots.pop()
            slot.leave()
            self._leaving.add(slot.task)
            slot.task.add_done_callback(self._leaving.discard)
        while len(self._slots) < count:
            self._slots.append(_Slot(self._start, self._grace, self._tell))

    async def close(self) -> None:
        """Let all end."""
        self.resize(0)
        if self._leaving:
            await asyncio.wait(self._leaving)


class _Slot:
    """Room for one process, taken until it is left."""

    def __init__(
        self,
        start: Start,
        grace: float,
        tell: Callable[[PoolEvent], None],
    ) -> None:
        self.taken = False
        self._start = start
        self._grace = grace
        self._tell = tell
        self._left = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._fill())

    def leave(self) -> None:
        self.taken = False
        self._left.set()

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._left.is_set():
            began = loop.time()
            ended = await self._one()
            if self._left.is_set():
                return
            failures = 1 if loop.time() - began >= LIVED else failures + 1
            again = AGAIN.delay(failures, 0.0)
            self._tell(ended(again))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), again)

    async def _one(self) -> Callable[[float], PoolEvent]:
        """Run a process; return how it ended, for whoever knows when the next begins."""
        try:
            process = await self._start()
        except OSError as error:
            return partial(Refused, str(error))
        self._tell(Started(process.pid))
        self.taken = not self._left.is_set()
        code = await self._until_over(process)
        self.taken = False
        return partial(Ended, process.pid, code)

    async def _until_over(self, process: Child) -> int:
        over = asyncio.ensure_future(process.wait())
        left = asyncio.ensure_future(self._left.wait())
        await asyncio.wait((over, left), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not over.done():
            _signal(process.terminate)
            await asyncio.wait((over,), timeout=self._grace)
        if not over.done():
            _signal(process.kill)
            self._tell(Killed(process.pid, self._grace))
        return await over


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):
        send()
