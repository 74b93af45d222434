"""The event loop of a simulated client: asyncio's promises in virtual time, and its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

from weir.client.connection.system import SYSTEM, System, in_daemon
from weir.testing.simulator.clients.loop import VirtualLoop, refuse_thread
from weir.testing.simulator.world import MS, SECOND, World


class Nowhere:
    """A network on which nobody is."""

    async def connect(self, *_: Any) -> NoReturn:
        raise OSError("nobody is there")


class Quiet(World):
    """A world in which no task begins late."""

    def chance(self, probability: float) -> bool:
        return False


def loop_of(world: World) -> VirtualLoop:
    return VirtualLoop(world, Nowhere())


def play(main: Callable[[], Awaitable[None]], world: World | None = None) -> World:
    world = world or Quiet(0)
    loop = loop_of(world)
    ended: list[asyncio.Task[None]] = []

    async def whole() -> None:
        SYSTEM.set(System(monotonic=loop.time, thread=refuse_thread))
        await main()

    loop.enter(lambda: ended.append(loop.create_task(whole())))
    world.run(3600 * SECOND)
    assert ended[0].done()
    ended[0].result()
    loop.drop()
    return world


def test_callbacks_run_in_the_order_in_which_they_were_scheduled() -> None:
    found: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(20):
            loop.call_soon(found.append, number)
        tasks = [loop.create_task(put(number)) for number in range(20, 40)]
        await asyncio.gather(*tasks)

    async def put(number: int) -> None:
        found.append(number)

    play(main)
    assert found == list(range(40))


def test_time_jumps_to_the_next_timer_and_no_further() -> None:
    said: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for seconds in (0.5, 60.0, 0.001):
            await asyncio.sleep(seconds)
            said.append(loop.time() - began)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        said.append(loop.time() - began)

    play(main)
    assert said == pytest.approx([0.5, 60.5, 60.501, 65.501], abs=0.01)


def test_a_timer_that_was_cancelled_does_not_ring() -> None:
    rung: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(1 + number / 1_000, rung.append, number) for number in range(500)]
        for timer in timers[1:]:
            timer.cancel()
        await asyncio.sleep(3)

    play(main)
    assert rung == [0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda loop: loop.run_in_executor(None, len, ""),
        lambda loop: asyncio.to_thread(len, ""),
        lambda loop: in_daemon(lambda: 1),
        lambda loop: asyncio.create_subprocess_exec("true"),
        lambda loop: asyncio.create_subprocess_shell("true"),
        lambda loop: loop.getaddrinfo("localhost", 1),
        lambda loop: loop.add_signal_handler(2, print),
        lambda loop: loop.run_forever(),
    ],
)
def test_what_has_no_virtual_time_is_refused_by_the_name_of_whoever_asks(ask: Any) -> None:
    async def main() -> None:
        with pytest.raises(
            RuntimeError,
            match=r"(test_client_loops|weir\.client\.connection\.system), line",
        ):
            await ask(asyncio.get_running_loop())

    play(main)


def test_a_loop_that_stands_still_does_later_what_was_due() -> None:
    world, found = Quiet(0), list[int]()
    loop = loop_of(world)

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.1)
            found.append(world.now)

    loop.enter(lambda: loop.create_task(tick()))
    world.after(1 * SECOND, loop.stand)
    world.after(3 * SECOND, loop.go_on)
    world.run(4 * SECOND)
    assert not [at for at in found if 1_001 * MS < at < 3 * SECOND]
    assert len(found) == pytest.approx(20, abs=2)
    loop.drop()


def test_a_process_that_is_killed_unwinds_in_no_time_and_for_nobody() -> None:
    world, said = Quiet(0), list[str]()
    loop = loop_of(world)

    async def main() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            said.append("on the way out")
            with pytest.raises(OSError, match="nobody"):
                await loop.create_connection(asyncio.Protocol, "node1", 1)
            await asyncio.sleep(50)
            said.append("out")

    loop.enter(lambda: loop.create_task(main()))
    world.run(1 * SECOND)
    loop.drop()
    assert said == ["on the way out", "out"]
    assert world.now == 1 * SECOND
    loop.enter(said.append, "never")
    world.run(2 * SECOND)
    assert said == ["on the way out", "out"]


def test_new_tasks_begin_late_now_and_then() -> None:
    late = 0

    async def main() -> None:
        nonlocal late
        loop = asyncio.get_running_loop()
        for _ in range(400):
            began = asyncio.Event()
            task = loop.create_task(set_it(began))
            await asyncio.sleep(0)
            late += not began.is_set()
            await task

    async def set_it(began: asyncio.Event) -> None:
        began.set()

    play(main, World(5))
    assert 5 < late < 60


def test_what_a_callback_raises_is_kept() -> None:
    world = Quiet(0)
    loop = loop_of(world)
    loop.enter(lambda: 1 / 0)
    world.run(SECOND)
    assert "ZeroDivisionError" in loop.uncaught[0]
    loop.drop()
