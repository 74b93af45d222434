"""Lone flushes are run by the loop, behind the turn that asked; all others and troubles are not."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Awaitable, Callable

import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.errors import DiskFailed
from weir.host.logs import LONE_ASKED, LONE_IN_A_ROW, QUICK_SECONDS, FlushSchedule
from weir.server.disk import flushes
from weir.server.disk.flushes import Flushes
from weir.storage.disk import Disk
from weir.storage.log import Flush, Run
from weir.testing.simulator.disk import SimDisk

FLUSH = Flush(0, 300, (Run("a", 0, [b"frames"]),), (1,))


class Noted(SimDisk):
    """Notes which thread syncs."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.threads: list[int] = []

    def sync(self, name: str) -> None:
        self.threads.append(threading.get_ident())
        super().sync(name)


class Scene:
    """The flushes of one log, which have been small; its disk has been quick."""

    def __init__(self, alone: bool = True) -> None:
        self.disk = Noted()
        self.disk.create("a", 8192)
        self.told: list[ev.Event] = []
        others = [] if alone else [2]
        self.schedule = schedule = FlushSchedule([1], others, asyncio.get_running_loop().time)
        self.flushes = Flushes({1: self.disk}, self, schedule)
        self._heard = asyncio.Event()
        for _ in range(200):
            schedule.flushed(1, FLUSH, QUICK_SECONDS / 10)
        for _ in range(LONE_IN_A_ROW):
            schedule.start(ef.StartFlush(1, FLUSH))

    # What a driver does.

    def handle(self, event: ev.Event) -> None:
        self.told.append(event)
        self._heard.set()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(act)

    # What tests do.

    async def flushed(self, rest_ms: int = 0) -> ev.Event:
        """Have a flush run and return what is told of it first."""
        self.told.clear()
        self._heard.clear()
        self.flushes.start(ef.StartFlush(1, FLUSH, rest_ms))
        assert not self.told, "what this turn sends is to be out first"
        async with asyncio.timeout(20):
            await self._heard.wait()
        return self.told[0]

    @property
    def in_loop(self) -> list[bool]:
        """Of each flush whether the loop ran it."""
        return [thread == threading.get_ident() for thread in self.disk.threads]


def play(body: Callable[[Scene], Awaitable[None]], alone: bool = True) -> None:
    async def whole() -> None:
        await body(Scene(alone))

    asyncio.run(whole())


def test_a_lone_flush_is_run_by_the_loop() -> None:
    async def body(scene: Scene) -> None:
        assert await scene.flushed() == ev.Flushed(1, FLUSH, rests=False)
        assert scene.in_loop == [True]
        assert sum(scene.flushes.seconds[1].counts) == 1
        scene.flushes.stop()

    play(body)


def test_a_shard_that_other_nodes_listen_to_never_waits_for_its_disk() -> None:
    async def body(scene: Scene) -> None:
        assert await scene.flushed() == ev.Flushed(1, FLUSH, rests=False)
        assert scene.in_loop == [False]
        assert sum(scene.flushes.seconds[1].counts) == 1
        scene.flushes.stop()

    play(body, alone=False)


def test_a_flush_of_a_crowd_is_a_threads() -> None:
    async def body(scene: Scene) -> None:
        assert await scene.flushed(rest_ms=600_000) == ev.Flushed(1, FLUSH, rests=True)
        assert scene.in_loop == [False]
        scene.flushes.stop()

    play(body)


def test_a_flush_of_many_requests_is_a_threads() -> None:
    async def body(scene: Scene) -> None:
        scene.schedule.asked = LONE_ASKED + 1
        await scene.flushed()
        for _ in range(LONE_IN_A_ROW + 1):
            scene.schedule.asked += LONE_ASKED
            await scene.flushed()
        assert scene.in_loop == [False] * (LONE_IN_A_ROW + 1) + [True]
        scene.flushes.stop()

    play(body)


def test_what_finds_no_room_in_the_loop_waits_for_it_in_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Flush.run
    tries: list[int] = []

    def run(flush: Flush, disk: Disk) -> None:
        tries.append(threading.get_ident())
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        whole(flush, disk)

    async def body(scene: Scene) -> None:
        monkeypatch.setattr(Flush, "run", run)
        await scene.flushed()
        assert [thread == threading.get_ident() for thread in tries] == [True, False]
        assert len(scene.told) == 1
        scene.flushes.stop()

    play(body)


def test_a_disk_that_fails_in_the_loop_ends_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[tuple[int, BaseException]] = []

    class Dead(Exception):
        """The process is gone."""

    def die(number: int, error: BaseException) -> None:
        died.append((number, error))
        raise Dead

    async def body(scene: Scene) -> None:
        monkeypatch.setattr(flushes, "die", die)
        gone = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(lambda _, found: gone.set_result(found))
        scene.disk.fail_next("sync", errno.EIO)
        scene.flushes.start(ef.StartFlush(1, FLUSH))
        async with asyncio.timeout(20):
            assert isinstance((await gone)["exception"], Dead)
        ((number, error),) = died
        assert number == 1
        assert isinstance(error, DiskFailed)
        assert not scene.told
        assert not scene.disk.threads[1:]
        scene.flushes.stop()

    play(body)


def test_a_stop_runs_what_the_loop_was_about_to_run() -> None:
    async def body(scene: Scene) -> None:
        scene.flushes.start(ef.StartFlush(1, FLUSH))
        scene.flushes.stop()
        assert scene.in_loop == [False], "durable before the disk is closed"
        await asyncio.sleep(0)
        assert scene.in_loop == [False]
        assert not scene.told

    play(body)
