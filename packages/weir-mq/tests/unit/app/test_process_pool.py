"""Processes in seats: they come, go, are killed if they stay, and are followed by others."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from weir.app.supervisor import (
    Ended,
    Killed,
    PoolEvent,
    ProcessPool,
    Refused,
    Started,
)
from weir.app.worker import starting

STAYS = "import sys; sys.stdin.read()"
DEAF = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
{STAYS}
"""


class Told:
    """What a crew told; `until` waits for something."""

    def __init__(self) -> None:
        self.all: list[PoolEvent] = []
        self._more = asyncio.Event()

    def __call__(self, what: PoolEvent) -> None:
        self.all.append(what)
        self._more.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not enough():
                self._more.clear()
                await self._more.wait()

    def of(self, kind: type[PoolEvent]) -> list[PoolEvent]:
        return [one for one in self.all if isinstance(one, kind)]


def crew_of(told: Told, program: str) -> ProcessPool:
    return ProcessPool(starting([sys.executable, "-c", program]), 20.0, told)


def test_there_are_so_many_as_are_wanted_and_the_youngest_go_first() -> None:
    async def run() -> None:
        told = Told()
        crew = crew_of(told, STAYS)
        crew.resize(3)
        await told.until(lambda: crew.present == 3)
        crew.resize(1)
        assert crew.present == 1
        crew.resize(2)
        await told.until(lambda: crew.present == 2)
        await crew.close()
        assert crew.present == 0
        assert len(told.of(Started)) == len(told.all) == 4  # none ended that should not have

    asyncio.run(run())


def test_one_that_fails_is_followed_by_another_later_each_time() -> None:
    async def run() -> None:
        told = Told()
        crew = crew_of(told, "raise SystemExit(3)")
        crew.resize(1)
        await told.until(lambda: len(told.of(Ended)) == 3)
        await crew.close()
        ends = [(one.code, one.again) for one in told.all if isinstance(one, Ended)]
        assert ends == [(3, 0.1), (3, 0.2), (3, 0.4)]

    asyncio.run(run())


def test_one_that_does_not_end_is_killed() -> None:
    async def run() -> None:
        told = Told()
        ends = os.pipe()
        crew = ProcessPool(starting([sys.executable, "-c", DEAF], ends[1]), 0.1, told)
        crew.resize(1)
        assert await asyncio.to_thread(os.read, ends[0], 4) == b"deaf"
        await crew.close()
        (started,) = told.of(Started)
        assert isinstance(started, Started)
        assert told.all == [started, Killed(started.process, 0.1)]
        for end in ends:
            os.close(end)

    asyncio.run(run())


def test_what_cannot_be_started_is_told_and_tried_again() -> None:
    async def run() -> None:
        told = Told()
        crew = ProcessPool(starting(["/there/is/no/such/program"]), 1.0, told)
        crew.resize(1)
        await told.until(lambda: len(told.all) == 2)
        assert crew.present == 0
        await crew.close()
        assert [one.again for one in told.all if isinstance(one, Refused)] == [0.1, 0.2]

    asyncio.run(run())
