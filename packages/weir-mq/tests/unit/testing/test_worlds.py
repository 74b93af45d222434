"""`weir.testing.world`: what a user's application meets in it, and what a failure tells."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import weir
from weir.testing import World, world

SOURCE = Path(weir.__file__).parents[1]


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 1, nodes: int = 1) -> World:
    """Run a scenario without faults but its own."""
    made = world(seed, nodes, faults=False)
    made.run(scenario)
    return made


async def until(done: Callable[[], bool], seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.05)


async def busy(world: World) -> None:
    """A producer, two processes that handle, and all that the seed breaks meanwhile."""
    handled: list[bytes] = []

    def make() -> weir.App:
        app = weir.App()

        @app.subscribe("orders", cluster="work")
        async def handle(message: weir.Message) -> None:
            await asyncio.sleep(0.03)
            handled.append(message.value)

        return app

    async with world.connect() as w:
        await w.create_topic("orders", partitions=2)
        world.start(make)
        world.start(make)
        for number in range(20):
            await w.publish("orders", b"%d" % number)
            await asyncio.sleep(world.random.random())
        world.heal()
        await until(lambda: len(set(handled)) == 20)


# -- the seed --------------------------------------------------------------------------------------


def test_a_seed_is_one_run_and_another_seed_is_another() -> None:
    runs = [world(seed) for seed in (3, 3, 4)]
    for one in runs:
        one.run(busy)
    hashes = [one.trace_hash for one in runs]
    assert hashes[0] == hashes[1] != hashes[2]
    assert runs[0].time == runs[1].time
    assert runs[0].faults.count == runs[1].faults.count > 0


def test_hashes_of_strings_choose_nothing() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_worlds import busy, world\n"
        "made = world(5)\nmade.run(busy)\nprint(made.trace_hash)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_failure_says_how_to_run_it_again() -> None:
    async def wrong(world: World) -> None:
        await asyncio.sleep(3)
        raise AssertionError("charged twice")

    made = world(11, nodes=1, faults=("kill",))
    with pytest.raises(AssertionError, match="charged twice") as caught:
        made.run(wrong)
    (note,) = caught.value.__notes__
    assert note.endswith(
        "run it again: weir.testing.world(seed=11, nodes=1, faults=('kill',)).run("
        "test_a_failure_says_how_to_run_it_again.<locals>.wrong)"
    )
    assert made.trace_hash in note


def test_what_does_not_end_is_told_with_where_it_waits() -> None:
    async def stuck(world: World) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"not over after 5 virtual seconds: .*stuck:\d+"):
        world(1, nodes=1, faults=False).run(stuck, seconds=5)


def test_a_world_is_run_once() -> None:
    async def nothing(world: World) -> None:
        pass

    made = run(nothing)
    with pytest.raises(RuntimeError, match="is over"):
        made.run(nothing)
    with pytest.raises(ValueError, match="give 1 to 7"):
        world(1, nodes=0)


# -- processes -------------------------------------------------------------------------------------


def test_a_kill_reaches_nobody_and_the_next_life_remembers_nothing() -> None:
    memories: list[list[str]] = []

    async def scenario(world: World) -> None:
        async def main() -> None:
            memory = ["begun"]
            memories.append(memory)
            async with weir.connect(world.url) as w:
                try:
                    await asyncio.sleep(1_000)
                finally:
                    await w.publish("orders", b"a dead process spoke")

        async with world.connect() as w:
            await w.create_topic("orders")
            process = world.start(main, name="victim")
            await until(lambda: process.life == 1 and len(memories) == 1)
            await asyncio.sleep(1)
            process.kill()
            await asyncio.sleep(0)
            assert not process.up
            await until(lambda: process.life == 2 and len(memories) == 2)
            await asyncio.sleep(5)
            assert [m.value async for m in w.reader("orders", start="earliest", follow=False)] == []
        assert memories[0] is not memories[1]

    run(scenario)


def test_what_a_killed_process_held_goes_to_another_at_once() -> None:
    async def scenario(world: World) -> None:
        held: list[float] = []

        async def hold() -> None:
            async with (
                weir.connect(world.url) as w,
                w.consumer("orders", cluster="work", lease="10m") as consumer,
            ):
                async for message in consumer:
                    held.append(world.time)
                    try:
                        await asyncio.sleep(10_000)
                    finally:
                        await message.ack()  # the dead ack nothing

        async with world.connect() as w:
            await w.create_topic("orders")
            await w.publish("orders", b"x")
            process = world.start(hold)
            await until(lambda: len(held) == 1)
            process.kill()
            await until(lambda: len(held) == 2)
        assert held[1] < held[0] + 10

    run(scenario)


def test_processes_are_killed_while_there_are_faults_and_only_then() -> None:
    lives: dict[bool, int] = {}

    def scenario_of(faults: bool) -> Callable[[World], Awaitable[None]]:
        async def scenario(world: World) -> None:
            process = world.start(lambda: asyncio.sleep(10_000))
            await asyncio.sleep(100)
            world.heal()
            await asyncio.sleep(5)
            lives[faults] = process.life
            await asyncio.sleep(100)
            assert process.life == lives[faults]

        return scenario

    for faults in (False, True):
        made = world(2, nodes=1, faults=faults)
        made.run(scenario_of(faults))
        assert bool(made.faults.count) == faults
    assert lives[False] == 1 < lives[True]


def test_what_a_process_raises_fails_a_run_without_faults() -> None:
    async def scenario(world: World) -> None:
        async def main() -> None:
            raise LookupError("no such order")

        world.start(main)
        await asyncio.sleep(10)

    with pytest.raises(LookupError, match="no such order"):
        run(scenario)


def test_a_process_that_raises_among_faults_is_started_again() -> None:
    async def scenario(world: World) -> None:
        starts: list[int] = []

        async def main() -> None:
            starts.append(1)
            if len(starts) < 4:
                raise ConnectionError("the database is away")

        process = world.start(main)
        await process.wait()
        assert len(starts) >= 4
        assert [str(error) for error in process.errors] == ["the database is away"] * 3

    world(1, nodes=1).run(scenario)


def test_an_assertion_of_a_process_fails_the_run_among_faults() -> None:
    starts: list[int] = []

    async def scenario(world: World) -> None:
        async def main() -> None:
            starts.append(1)
            raise AssertionError("an order is lost")

        world.start(main)
        await asyncio.sleep(100)

    with pytest.raises(AssertionError, match="an order is lost"):
        world(1, nodes=1).run(scenario)
    assert len(starts) == 1


def test_an_app_is_told_to_end() -> None:
    stopped: list[bool] = []

    async def scenario(world: World) -> None:
        def make() -> weir.App:
            app = weir.App()
            app.on_stop(lambda: stopped.append(True))

            @app.subscribe("orders", cluster="work")
            async def handle(message: weir.Message) -> None:
                pass

            return app

        async with world.connect() as w:
            await w.create_topic("orders")
            process = world.start(make)
            await asyncio.sleep(2)
            await process.stop()
            assert stopped
            await asyncio.sleep(10)
            assert (process.up, process.life) == (False, 1)

    run(scenario)


def test_threads_are_refused_with_the_name_of_who_asked() -> None:
    async def scenario(world: World) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match=r"test_worlds, line \d+ \(scenario\), asks for an exec"):
        run(scenario)


def test_plain_handlers_and_blocking_code_wait_in_virtual_time() -> None:
    handled: list[tuple[bytes, bool]] = []

    async def scenario(world: World) -> None:
        handled.clear()

        def make() -> weir.App:
            app = weir.App()

            @app.subscribe("orders", cluster="work", concurrency=3)
            def handle(message: weir.Message) -> None:
                with weir.sync.connect(world.url) as w:
                    w.publish("receipts", message.value)
                handled.append((message.value, threading.current_thread() is main))

            return app

        def order() -> int:
            with weir.sync.connect(world.url) as w:
                w.create_topic("orders", partitions=2)
                w.create_topic("receipts")
                with w.producer("orders") as producer:
                    producer.send_many([b"%d" % n for n in range(20)])
            return 20

        assert await world.in_thread(order) == 20
        process = world.start(make)
        await until(lambda: len(handled) >= 10)
        process.kill()
        await until(lambda: len({value for value, _ in handled}) == 20)
        async with world.connect() as w:
            receipts = [m.value async for m in w.reader("receipts", follow=False)]
        assert {*receipts} == {value for value, _ in handled}
        assert not any(is_main for _, is_main in handled)

    main, before = threading.current_thread(), threading.active_count()
    first, again = run(scenario, nodes=3), run(scenario, nodes=3)
    assert first.trace_hash == again.trace_hash
    assert threading.active_count() == before, "threads of processes that are over have ended"


def test_names_are_told_apart() -> None:
    async def scenario(world: World) -> None:
        world.start(lambda: asyncio.sleep(1), name="one")
        world.start(lambda: asyncio.sleep(1), name="one")

    with pytest.raises(ValueError, match="called 'one'"):
        run(scenario)


# -- faults by hand --------------------------------------------------------------------------------


def test_a_node_that_loses_its_power_keeps_what_was_confirmed() -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as w:
            await w.create_topic("orders")
            for number in range(10):
                await w.publish("orders", b"%d" % number)
            world.faults.cut_power(1, down=2)
            began = world.time
            await w.publish("orders", b"10")
            assert world.time > began + 2
            values = [m.value async for m in w.reader("orders", start="earliest", follow=False)]
            assert values == [b"%d" % number for number in range(11)]

    assert run(scenario).faults.count == 1


def test_others_lead_while_a_node_is_cut_off() -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as w:
            await w.create_topic("orders", partitions=3)
            for node in (1, 2, 3):
                world.faults.isolate(node)
                for partition in range(3):
                    await w.publish("orders", b"x", partition=partition)
                world.faults.rejoin()
            world.faults.isolate(1, 2, 3)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(20):
                    await w.publish("orders", b"x")
            world.heal()
            await w.publish("orders", b"x")

    run(scenario, nodes=3)


def test_what_else_is_broken_by_hand_is_mended() -> None:
    async def scenario(world: World) -> None:
        faults = world.faults
        process = world.start(lambda: asyncio.sleep(10_000))
        async with world.connect() as w:
            await w.create_topic("orders")
            for do in (
                lambda: faults.kill(1), lambda: faults.pause(2, 3.0), lambda: faults.slow(3, 20),
                lambda: faults.cut(1), lambda: faults.jump_clock(2, 3.0),
                lambda: faults.fail_disk(3), lambda: faults.fill_disk(1),
                lambda: process.pause(5.0), lambda: process.jump_clock(-3_600.0),
            ):  # fmt: skip
                do()
                await w.publish("orders", b"x")
            world.heal()
            await asyncio.sleep(5)
            began = world.time
            await w.publish("orders", b"x" * 1_000_000)
            assert world.time < began + 2
        with pytest.raises(ValueError, match="no node 4"):
            faults.kill(4)

    run(scenario, nodes=3)


# -- the database ----------------------------------------------------------------------------------


def test_a_kill_loses_what_is_not_committed() -> None:
    pytest.importorskip("sqlalchemy")
    from sqlalchemy import text

    async def scenario(world: World) -> None:
        async def main() -> None:
            engine = world.engine()
            async with engine.begin() as connection:
                await connection.execute(text("create table if not exists t (n integer)"))
                await connection.execute(text("insert into t values (1)"))
            async with engine.begin() as connection:
                await connection.execute(text("insert into t values (2)"))
                if process.life == 1:
                    process.kill()
                    try:
                        await asyncio.sleep(1)
                    finally:
                        await connection.commit()  # too late: its connection is cut
            await engine.dispose()

        process = world.start(main)
        await process.wait()
        assert world.rows("select n from t order by rowid") == [(1,), (1,), (2,)]

    run(scenario)


def test_an_engine_is_of_a_process() -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(RuntimeError, match="no process of a world"):
        world(1).engine()


# -- what an import costs --------------------------------------------------------------------------


def test_the_import_is_light() -> None:
    code = "import sys, weir.testing; weir.testing.{}; print(*sorted(sys.modules))"
    for name, absent in (
        ("__doc__", {"asyncio", "weir.testing.simulator", "weir.server", "pytest", "sqlalchemy"}),
        ("world", {"weir.server", "weir_lab.sim", "pytest", "sqlalchemy", "socketserver"}),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert not absent & set(done.stdout.split())
