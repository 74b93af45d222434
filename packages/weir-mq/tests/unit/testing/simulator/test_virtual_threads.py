"""Threads of a simulated process: blocking code runs while the world stands still for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from weir.client.connection.system import REAL, BackgroundThread
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.clients.threads import (
    VirtualBackground,
    VirtualQueue,
    VirtualThread,
    current_thread,
    in_thread,
    run_in_loop,
)
from weir.testing.simulator.world import SECOND, World


class Played:
    """A process that runs blocking code, and what it noted, with virtual seconds."""

    def __init__(self, seed: int, *calls: Callable[[Played], Any]) -> None:
        self.world = World(seed)
        network: Any = None
        self.loop = VirtualLoop(self.world, network)
        self.threads: list[VirtualThread] = []
        self.noted: list[Any] = []
        self.results: list[Any] = []
        self.loop.enter(lambda: self.loop.create_task(self._main(calls)))

    async def _main(self, calls: tuple[Callable[[Played], Any], ...]) -> None:
        found = (in_thread(self.loop, self.threads, lambda c=call: c(self)) for call in calls)
        self.results = await asyncio.gather(*found, return_exceptions=True)

    def note(self, what: object) -> None:
        self.noted.append((what, round(self.world.now / SECOND, 1)))

    def run(self, seconds: float = 60.0) -> Played:
        self.world.run(int(seconds * SECOND))
        return self

    def end(self) -> None:
        for thread in self.threads:
            thread.end()
        self.loop.drop()


def sleep(seconds: float) -> None:
    run_in_loop(current_thread(), asyncio.sleep(seconds))


def test_a_thread_waits_in_virtual_time_for_what_the_loop_runs() -> None:
    def call(played: Played) -> str:
        background = VirtualBackground("test")
        played.note("began")
        background.run(asyncio.sleep(5))
        played.note("slept")
        return "done"

    played = Played(1, call).run()
    assert (played.noted, played.results) == ([("began", 0.0), ("slept", 5.0)], ["done"])
    assert not played.threads


def test_one_thread_runs_at_a_time_and_a_seed_decides_which() -> None:
    running = 0

    def call(played: Played) -> None:
        nonlocal running
        for turn in range(20):
            running += 1
            assert running == 1
            played.note((threading.get_ident() == first[0], turn))
            running -= 1
            sleep(0.001)

    def leads(played: Played) -> None:
        first[:] = [threading.get_ident()]
        call(played)

    first: list[int] = [0]
    orders = {}
    for seed in (1, 1, 2, 3, 4):
        played = Played(seed, leads, call).run()
        assert played.results == [None, None]
        orders.setdefault(seed, []).append([what for what, _ in played.noted])
    assert orders[1][0] == orders[1][1]
    assert len({str(order[0]) for order in orders.values()}) > 1


def test_what_a_coroutine_raises_comes_to_the_thread() -> None:
    async def fail() -> None:
        raise ValueError("no")

    def call(_: Played) -> None:
        with pytest.raises(ValueError, match="no"):
            VirtualBackground("test").run(fail())
        raise KeyError("mine")

    (error,) = Played(1, call).run().results
    assert isinstance(error, KeyError)


def test_a_thread_of_a_process_that_ends_unwinds_and_ends_what_it_has() -> None:
    after: list[str] = []

    async def close() -> None:
        after.append("closed")

    def call(played: Played) -> None:
        background = VirtualBackground("test")
        try:
            background.run(asyncio.sleep(100))
            after.append("went on")
        finally:
            played.note("unwinds")
            background.stop(close)
            after.append("stopped")

    played = Played(1, call).run(3)
    (thread,) = played.threads
    played.end()
    assert (played.noted, after, thread.over) == (
        [("unwinds", 3.0)],
        ["stopped", "closed"],
        True,
    )


def test_a_stopped_background_runs_nothing_more() -> None:
    def call(played: Played) -> None:
        background = VirtualBackground("test")
        background.stop(lambda: asyncio.sleep(2))
        background.stop(lambda: asyncio.sleep(2))
        played.note("stopped")
        assert not background.running
        with pytest.raises(RuntimeError, match="connect again"):
            background.run(asyncio.sleep(1))

    played = Played(1, call).run()
    assert (played.noted, played.results) == ([("stopped", 2.0)], [None])


def test_blocking_code_outside_of_a_thread_is_told_so() -> None:
    with pytest.raises(RuntimeError, match="in a thread of its process"):
        VirtualBackground("test")
    assert REAL.background is BackgroundThread


def test_a_thread_that_waits_for_another_world_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.testing.simulator.clients.threads._STUCK_SECONDS", 0.1)
    lock = threading.Semaphore(0)
    played = Played(1, lambda _: lock.acquire(timeout=20))
    played.run(1)
    assert "only calls of weir.sync may block" in str(played.loop.uncaught)
    lock.release()


def test_a_queue_hands_each_item_to_the_thread_that_waits_longest() -> None:
    def worker(played: Played) -> None:
        name = len(played.noted)
        played.note(("waits", name))
        played.note((name, queue.get()))

    def boss(played: Played) -> None:
        sleep(1)
        for item in ("a", "b"):
            queue.put(item)
        queue.put("c")
        sleep(1)
        played.note(("left", queue.get()))

    queue = VirtualQueue()
    played = Played(1, worker, worker, boss).run()
    assert played.results == [None, None, None]
    got = [what for what, at in played.noted if at == 1.0]
    assert sorted(got) == [(0, "a"), (1, "b")]
    assert played.noted[-1] == (("left", "c"), 2.0)
