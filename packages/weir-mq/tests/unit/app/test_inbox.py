"""An inbox on SQLite, in one statement and in the way of all other databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import weir
from weir.app import inbox as inbox_module
from weir.app import inbox as t
from weir.app.inbox import name_of
from weir.errors import UnknownTopic


class Base(DeclarativeBase):
    pass


class Unlock(Base):
    __tablename__ = "unlocks"
    id: Mapped[int] = mapped_column(primary_key=True)
    offset: Mapped[int]


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds may follow each other at once; whoever adds a row then always looks again."""
    monkeypatch.setattr(inbox_module, "GAP", 0.0)


@pytest.fixture(params=["one statement", "step by step"])
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/effects.db")
    if request.param == "step by step":
        monkeypatch.setattr(t, "FRESH", {})
        _let_sqlite_have_savepoints(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def inbox(engine: Engine) -> weir.Inbox:
    inbox = weir.Inbox("ledger")
    inbox.create(engine)
    return inbox


def _let_sqlite_have_savepoints(engine: Engine) -> None:
    """Python's driver begins no transaction at a savepoint, as all other databases do."""

    @event.listens_for(engine, "connect")
    def _(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def message(
    offset: int, *, stamp: int = 0, topic: str = "doors", partition: int = 0
) -> weir.Message:
    return weir.Message(
        b"open", topic=topic, partition=partition, offset=offset, stamp=stamp or offset + 1
    )


def record(engine: Engine, inbox: weir.Inbox, one: weir.Message, *, stuck: bool = False) -> bool:
    """The handler of a user."""
    with Session(engine) as session, session.begin(), inbox.once(session, one) as fresh:
        if fresh:
            session.add(Unlock(offset=one.offset))
        if stuck:
            raise RuntimeError("the door is stuck")
        return fresh


def core_record(engine: Engine, inbox: weir.Inbox, one: weir.Message, *, stuck: bool) -> bool:
    """The same without the ORM."""
    with engine.begin() as connection, inbox.once(connection, one) as fresh:
        if fresh:
            connection.execute(insert(Unlock), {"offset": one.offset})
        if stuck:
            raise RuntimeError("the door is stuck")
        return fresh


async def async_record(
    engine: AsyncEngine, inbox: weir.Inbox, one: weir.Message, *, stuck: bool
) -> bool:
    """The same with `await`."""
    async with (
        AsyncSession(engine) as session,
        session.begin(),
        inbox.once(session, one) as fresh,
    ):
        if fresh:
            session.add(Unlock(offset=one.offset))
        if stuck:
            raise RuntimeError("the door is stuck")
        return fresh


def effects(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return [*session.scalars(select(Unlock.offset).order_by(Unlock.offset))]


def rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(t.ROWS)).scalar_one()


def test_an_effect_happens_once_however_often_its_message_comes(
    engine: Engine, inbox: weir.Inbox
) -> None:
    assert [record(engine, inbox, message(offset)) for offset in (0, 1, 0, 1, 1)] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert effects(engine) == [0, 1]


def test_what_differs_in_topic_partition_or_cluster_is_another_message(
    engine: Engine, inbox: weir.Inbox
) -> None:
    other = weir.Inbox("billing")
    other.create(engine)
    assert record(engine, inbox, message(0))
    assert record(engine, inbox, message(0, partition=1))
    assert record(engine, inbox, message(0, topic="gates"))
    assert record(engine, inbox, message(0, topic="house2/doors"))
    assert record(engine, other, message(0))
    assert not record(engine, inbox, message(0, topic="default/doors"))  # the same by another name


def test_a_failure_takes_the_row_back_with_the_effect(engine: Engine, inbox: weir.Inbox) -> None:
    with pytest.raises(RuntimeError, match="stuck"):
        record(engine, inbox, message(0), stuck=True)
    assert (rows(engine), effects(engine)) == (0, [])
    assert record(engine, inbox, message(0))


def test_a_failure_that_is_caught_outside_leaves_no_row_behind(
    engine: Engine, inbox: weir.Inbox
) -> None:
    with Session(engine) as session:
        try:
            with inbox.once(session, message(0)):
                raise RuntimeError("the door is stuck")
        except RuntimeError:
            pass
        session.commit()
    assert rows(engine) == 0


def test_a_plain_connection_will_do(engine: Engine, inbox: weir.Inbox) -> None:
    assert core_record(engine, inbox, message(0), stuck=False)
    assert not core_record(engine, inbox, message(0), stuck=False)
    with pytest.raises(RuntimeError, match="stuck"):
        core_record(engine, inbox, message(1), stuck=True)
    assert effects(engine) == [0]
    assert rows(engine) == 1


def test_without_transactions_nothing_happens_once(tmp_path: Path) -> None:
    """The row was committed before the effect: a crash between both lost the effect."""
    url = f"sqlite:///{tmp_path}/effects.db"
    alone = create_engine(url, isolation_level="AUTOCOMMIT")
    inbox = weir.Inbox("ledger")
    inbox.create(alone)
    options = create_engine(url).execution_options(isolation_level="AUTOCOMMIT")
    for engine in (alone, options):
        with (
            Session(engine) as session,
            pytest.raises(RuntimeError, match="AUTOCOMMIT"),
            inbox.once(session, message(0)),
        ):
            pass
        assert rows(engine) == 0
        engine.dispose()


def test_a_topic_that_is_made_again_is_another_one(engine: Engine, inbox: weir.Inbox) -> None:
    assert record(engine, inbox, message(0, stamp=100))
    assert record(engine, inbox, message(0, stamp=200))  # its first offset is 0 again
    assert not record(engine, inbox, message(0, stamp=200))
    assert not record(engine, inbox, message(0, stamp=100))  # and the old one is no news


def test_rows_go_in_the_second_round_and_are_known_all_the_same(
    engine: Engine, inbox: weir.Inbox
) -> None:
    async def work() -> None:
        for offset in range(10):
            record(engine, inbox, message(offset))
        assert await inbox.prune("doors", {0: 6}) == 0
        assert rows(engine) == 10
        assert await inbox.prune("default/doors", {0: 8}) == 6
        assert await inbox.prune("doors", {0: 8}) == 2
        assert rows(engine) == 2
        # A consumer that stood still for an hour comes with what it had.
        assert not any(record(engine, inbox, message(offset)) for offset in range(10))
        # But a message that never had a row, of a handler that chose not to, is fresh.
        assert record(engine, inbox, message(10))

    asyncio.run(work())
    assert effects(engine) == [*range(11)]


def test_rows_stay_for_a_while_below_a_floor(
    engine: Engine, inbox: weir.Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr(inbox_module, "GAP", 3_600.0)
        record(engine, inbox, message(0))
        for _ in range(3):
            assert await inbox.prune("doors", {0: 1}) == 0
        monkeypatch.setattr(inbox_module, "GAP", 0.0)
        assert await inbox.prune("doors", {0: 1}) == 1

    asyncio.run(work())


def test_a_floor_is_of_the_topic_that_it_was_told_for(engine: Engine, inbox: weir.Inbox) -> None:
    async def work() -> None:
        for offset in range(5):
            record(engine, inbox, message(offset, stamp=100 + offset))
        await inbox.prune("doors", {0: 5})
        # The topic is deleted and made again: its messages begin at 0, and are fresh.
        assert all(record(engine, inbox, message(offset, stamp=200 + offset)) for offset in (0, 1))
        await inbox.prune("doors", {0: 1})
        await inbox.prune("doors", {0: 2})
        await inbox.prune("doors", {0: 2})
        assert not any(
            record(engine, inbox, message(offset, stamp=200 + offset)) for offset in (0, 1)
        )
        assert record(engine, inbox, message(2, stamp=202))

    asyncio.run(work())


def test_two_who_prune_do_not_disturb_each_other(engine: Engine, inbox: weir.Inbox) -> None:
    async def work() -> None:
        twin = weir.Inbox("ledger")
        twin.create(engine)
        for offset in range(30_000):
            if offset % 1_000 == 0:
                record(engine, inbox, message(offset))
        for cursor in (5_000, 20_000, 30_000, 30_000):
            await asyncio.gather(*(one.prune("doors", {0: cursor}) for one in (inbox, twin)))
        assert rows(engine) == 0
        assert not record(engine, inbox, message(29_000))

    asyncio.run(work())


def test_rows_go_on_going_after_a_database_was_away(engine: Engine) -> None:
    """A driver's own `OSError`, as asyncpg's where nobody answers, ended that for good."""
    refusals = list[OSError]()

    @event.listens_for(engine, "do_connect")
    def refuse(*_: object) -> None:
        if refusals:
            raise refusals.pop()

    class Client:
        async def clusters(self, topic: str, cluster: str) -> list[Any]:
            if topic == "gone":  # a topic that is gone keeps no rows of others
                raise UnknownTopic("deleted")
            return [SimpleNamespace(shares=[SimpleNamespace(partition=0, cursor=5)])]

    async def work() -> None:
        inbox = weir.Inbox("ledger", prune_every="1ms")
        inbox.create(engine)
        for offset in range(5):
            record(engine, inbox, message(offset))
        engine.dispose()  # so that it connects anew
        refusals.append(OSError("connection refused"))
        client: Any = Client()
        consumer: Any = SimpleNamespace(topics=["gone", "doors"])
        pruning = asyncio.ensure_future(inbox.keep_pruned(client, consumer))
        async with asyncio.timeout(30):
            while refusals or rows(engine):
                await asyncio.sleep(0.01)
        pruning.cancel()
        await asyncio.wait((pruning,))

    asyncio.run(work())


def test_the_second_of_two_transactions_waits_for_the_first(
    engine: Engine, inbox: weir.Inbox
) -> None:
    found: list[bool] = []
    with Session(engine) as session, session.begin(), inbox.once(session, message(0)) as fresh:
        assert fresh
        session.add(Unlock(offset=0))
        other = threading.Thread(target=lambda: found.append(record(engine, inbox, message(0))))
        other.start()
        assert not found
    other.join(30)
    assert found == [False]
    assert effects(engine) == [0]


def test_async_sessions(tmp_path: Path) -> None:
    async def work() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/effects.db")
        inbox = weir.Inbox("ledger")
        await inbox.create(engine)
        await inbox.create(engine)  # it is there
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        assert await async_record(engine, inbox, message(0), stuck=False)
        assert not await async_record(engine, inbox, message(0), stuck=False)
        with pytest.raises(RuntimeError, match="stuck"):
            await async_record(engine, inbox, message(1), stuck=True)
        assert await inbox.prune("doors", {0: 2}) == 0
        assert await inbox.prune("doors", {0: 2}) == 1
        async with AsyncSession(engine) as session:
            assert [*await session.scalars(select(Unlock.offset))] == [0]
            with pytest.raises(TypeError, match="async with"):
                inbox.once(session, message(0)).__enter__()
        await engine.dispose()

    asyncio.run(work())


def test_what_cannot_be_is_refused(engine: Engine) -> None:
    with pytest.raises(weir.errors.BadName):
        weir.Inbox("led ger")
    inbox = weir.Inbox("ledger")
    with pytest.raises(RuntimeError, match="create"):
        asyncio.run(inbox.prune("doors", {0: 1}))
    with Session(engine) as session, pytest.raises(ValueError, match="offset"):
        inbox.once(session, weir.Message(b"made by hand"))
    assert name_of("default/doors") == "doors"
