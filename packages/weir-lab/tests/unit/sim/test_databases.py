"""A database of the world: what breaks in it, and what survives."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine
from typing import Any

import pytest

from weir.testing.simulator.clients import database as module
from weir.testing.simulator.clients.database import Database, DatabaseConnection
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.world import SECOND, World
from weir_lab.sim.checkers.applications import EffectOnce
from weir_lab.sim.history import History, Record
from weir_lab.sim.observations import Ledger

#: What SQLAlchemy's adapter looks at: None once a connection is closed.
OPEN = "_connection"


class NoNetwork:
    async def connect(self, *_: Any) -> Any:
        raise OSError("there is none")


def play(world: World, *programs: Coroutine[Any, Any, None]) -> None:
    """Play programs in one process until a minute is over, and raise what they raise."""
    loop = VirtualLoop(world, NoNetwork())
    tasks: list[asyncio.Task[None]] = []
    for program in programs:
        loop.enter(lambda program=program: tasks.append(loop.create_task(program)))
    world.run(world.now + 60 * SECOND)
    for task in tasks:
        task.result()


@pytest.fixture
def database() -> Database:
    database = Database(World(1))
    database.calm = True
    database.sqlite.execute("CREATE TABLE things (number INTEGER)")
    return database


async def _add(connection: DatabaseConnection, number: int) -> None:
    await connection.cursor().execute("INSERT INTO things VALUES (?)", (number,))


def _things(database: Database) -> list[int]:
    return [number for (number,) in database.rows("SELECT number FROM things ORDER BY number")]


def test_what_is_committed_is_there_and_what_is_undone_is_not(database: Database) -> None:
    async def work() -> None:
        connection = database.connect("one")
        await _add(connection, 1)
        await connection.commit()
        await _add(connection, 2)
        await connection.rollback()

    play(database.world, work())
    assert _things(database) == [1]


def test_one_transaction_waits_for_the_other(database: Database) -> None:
    order = []

    async def work(number: int) -> None:
        connection = database.connect(f"process {number}")
        await _add(connection, number)
        order.append(number)
        await asyncio.sleep(1)
        order.append(number)
        await connection.commit()

    play(database.world, work(1), work(2))
    assert order in ([1, 1, 2, 2], [2, 2, 1, 1])
    assert _things(database) == [1, 2]


def test_who_is_cut_loses_its_transaction_and_others_go_on(database: Database) -> None:
    async def work() -> None:
        dead, alive = database.connect("dead"), database.connect("alive")
        await _add(dead, 1)
        database.cut("dead")
        with pytest.raises(sqlite3.OperationalError, match="no active"):
            await dead.commit()
        with pytest.raises(sqlite3.OperationalError, match="no active"):
            await _add(dead, 2)
        await _add(alive, 3)
        await alive.commit()

    play(database.world, work())
    assert _things(database) == [3]
    assert database.lost == 1


def test_who_holds_it_and_stands_still_loses_it(database: Database) -> None:
    async def work() -> None:
        still, waits = database.connect("still"), database.connect("waits")
        await _add(still, 1)
        await _add(waits, 2)
        await waits.commit()
        with pytest.raises(sqlite3.OperationalError, match="no active"):
            await still.commit()

    play(database.world, work())
    assert _things(database) == [2]


def test_a_commit_may_have_happened_though_its_answer_says_no(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BREAKS", 0.0)
    monkeypatch.setattr(module, "_LOST", 0.0)
    monkeypatch.setattr(module, "_UNANSWERED", 1.0)
    database.calm = False

    async def work() -> None:
        connection = database.connect("one")
        await _add(connection, 1)
        with pytest.raises(sqlite3.OperationalError, match="no active"):
            await connection.commit()

    play(database.world, work())
    assert _things(database) == [1]
    assert database.unanswered == 1


def _judged(**what: Any) -> list[str]:
    ledger = Ledger(drained=True, attempts=3)
    for name, value in what.items():
        getattr(ledger, name).update(value)
    record = Record(0, (b"a", b"b"), 1, ((("producer", 1, 0), 0), (("producer", 1, 0), 1)))
    history = History(ledger=ledger, drained={0: [record]})
    return list(EffectOnce().check(history))


BOTH = {(0, 0): 1, (0, 1): 1}


def test_effects_are_judged() -> None:
    assert not _judged(effects=BOTH)
    assert _judged(effects={(0, 0): 2, (0, 1): 1}) == ["0 of partition 0 has its effect 2 times"]
    (left_out,) = _judged(effects={(0, 0): 1})
    assert left_out == "1 of partition 0 has no effect, and the cluster has done it"


def test_dead_letters_are_judged() -> None:
    one, other = {(0, 0): 1}, {(0, 1): False}
    assert not _judged(effects=one, dead=other, failed={(0, 1): 1})
    assert not _judged(effects=one, dead={(0, 1): True})
    assert "no handler of it failed" in _judged(effects=one, dead=other)[0]
    assert "rejected it each time" in _judged(effects=BOTH, hopeless={(0, 1)})[0]


def test_nobody_believes_that_a_connection_that_broke_has_committed(database: Database) -> None:
    connection = database.connect("one")

    async def work() -> None:
        await _add(connection, 1)
        connection.die()
        # SQLAlchemy's adapter passes over the commit of one that was closed on this side.
        assert getattr(connection, OPEN) is not None
        with pytest.raises(sqlite3.OperationalError):
            await connection.commit()
        await connection.close()
        assert getattr(connection, OPEN) is None

    play(database.world, work())
    assert _things(database) == []
