"""An inbox on a real PostgreSQL server, which this test installs, starts and stops."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import weir
from weir.app import inbox as inbox_module
from weir.app import inbox as t
from weir_lab.bench.consumers import postgres

SCRIPTS = Path(__file__).parents[4] / "scripts"
INSTALL_SECONDS = 600
WRITERS = 8
MESSAGES = 100


class Base(DeclarativeBase):
    pass


class Unlock(Base):
    __tablename__ = "unlocks"
    id: Mapped[int] = mapped_column(primary_key=True)
    offset: Mapped[int]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not postgres.installed():
        packages = (SCRIPTS / "postgres-packages").read_text(encoding="utf-8").split()
        done = subprocess.run(
            [SCRIPTS / "apt-install", *packages], timeout=INSTALL_SECONDS, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
    with postgres.running_postgres(fsync="off") as server:
        yield server.url


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds may follow each other at once; whoever adds a row then always looks again."""
    monkeypatch.setattr(inbox_module, "GAP", 0.0)


@pytest.fixture(params=["one statement", "step by step"])
def engine(
    url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    if request.param == "step by step":
        monkeypatch.setattr(t, "FRESH", {})
    engine = create_engine(url, pool_size=WRITERS + 2)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    t.METADATA.drop_all(engine)
    engine.dispose()


def message(offset: int, stamp: int = 0) -> weir.Message:
    return weir.Message(
        b"open", topic="doors", partition=0, offset=offset, stamp=stamp or offset + 1
    )


def record(engine: Engine, inbox: weir.Inbox, one: weir.Message, *, stuck: bool = False) -> bool:
    with Session(engine) as session, session.begin(), inbox.once(session, one) as fresh:
        if fresh:
            session.add(Unlock(offset=one.offset))
        if stuck:
            raise RuntimeError("the door is stuck")
        return fresh


def effects(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return [*session.scalars(select(Unlock.offset).order_by(Unlock.offset))]


def in_threads(work: Any, count: int) -> list[Any]:
    """What `work(number)` returns, of `count` threads that begin together."""
    begin, found = threading.Barrier(count, timeout=30), []

    def run(number: int) -> None:
        begin.wait()
        found.append(work(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == count, "a thread raised, or hangs"
    return found


def test_processes_that_start_together_make_the_tables_once(engine: Engine) -> None:
    in_threads(lambda _: weir.Inbox("ledger").create(engine), WRITERS)
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(t.ROWS)).scalar_one() == 0


def test_each_message_has_one_effect_whoever_gets_it(
    engine: Engine, tell: Callable[..., None]
) -> None:
    inbox = weir.Inbox("ledger")
    inbox.create(engine)

    def work(_: int) -> int:
        return sum(record(engine, inbox, message(offset)) for offset in range(MESSAGES))

    assert sum(in_threads(work, WRITERS)) == MESSAGES
    assert effects(engine) == [*range(MESSAGES)]
    tell(messages=MESSAGES, writers=WRITERS)


def test_whoever_comes_second_waits_for_the_first_to_end(engine: Engine) -> None:
    inbox = weir.Inbox("ledger")
    inbox.create(engine)
    for outcome in ("commits", "fails"):
        one = message(["commits", "fails"].index(outcome))
        found: list[bool] = []
        other = threading.Thread(target=lambda m=one, f=found: f.append(record(engine, inbox, m)))
        with Session(engine) as session:
            session.begin()
            assert inbox.once(session, one).__enter__()
            session.add(Unlock(offset=one.offset))
            session.flush()
            other.start()
            _until_somebody_waits(engine)
            assert not found
            if outcome == "commits":
                session.commit()
            else:
                session.rollback()
        other.join(30)
        assert found == [outcome == "fails"]
    assert effects(engine) == [0, 1]


def _until_somebody_waits(engine: Engine) -> None:
    """Return once a transaction waits for another one's lock."""
    waiting = text("select count(*) from pg_stat_activity where wait_event_type = 'Lock'")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.execute(waiting).scalar_one():
            pass


def test_a_failure_takes_the_row_back(engine: Engine) -> None:
    inbox = weir.Inbox("ledger")
    inbox.create(engine)
    with pytest.raises(RuntimeError, match="stuck"):
        record(engine, inbox, message(0), stuck=True)
    assert record(engine, inbox, message(0))
    assert effects(engine) == [0]


def test_pruned_rows_stay_known_while_others_write(engine: Engine) -> None:
    inbox = weir.Inbox("ledger")
    inbox.create(engine)

    def work(number: int) -> int:
        if number == 0:  # as soon as a message is done: worse than any cluster would ask for
            for cursor in [*range(0, MESSAGES, 5), MESSAGES, MESSAGES]:
                while cursor and cursor - 1 not in effects(engine):
                    pass
                asyncio.run(inbox.prune("doors", {0: cursor}))
            return 0
        found = sum(record(engine, inbox, message(offset)) for offset in range(MESSAGES))
        return found + sum(record(engine, inbox, message(offset)) for offset in range(MESSAGES))

    assert sum(in_threads(work, WRITERS)) == MESSAGES
    assert effects(engine) == [*range(MESSAGES)]
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(t.ROWS)).scalar_one() == 0
    # Another topic of that name, made later, is not taken for it.
    assert record(engine, inbox, message(0, stamp=10_000))


def test_a_row_that_went_while_somebody_was_about_to_add_it(engine: Engine) -> None:
    """The statement saw no floor, was held up, and finds neither row nor floor: it looks again."""
    inbox = weir.Inbox("ledger")
    inbox.create(engine)
    assert record(engine, inbox, message(0))
    with engine.begin() as connection:
        for statement in (
            "create or replace function hold_up() returns trigger as "
            "'begin perform pg_advisory_xact_lock(42); return new; end' language plpgsql",
            "create trigger hold_up before insert on weir_inbox "
            "for each row execute function hold_up()",
        ):
            connection.execute(text(statement))
    found: list[bool] = []
    late = threading.Thread(target=lambda: found.append(record(engine, inbox, message(0))))
    with engine.begin() as holding:
        holding.execute(text("select pg_advisory_xact_lock(42)"))
        late.start()
        _until_somebody_waits(engine)
        asyncio.run(inbox.prune("doors", {0: 1}))
        assert asyncio.run(inbox.prune("doors", {0: 1})) == 1
    late.join(30)
    assert found == [False]
    assert effects(engine) == [0]


def test_async_sessions_on_postgres(engine: Engine) -> None:
    async def test() -> None:
        other = create_async_engine(engine.url)
        inbox = weir.Inbox("ledger")
        await inbox.create(other)

        async def one_by_one(offset: int) -> bool:
            async with (
                AsyncSession(other) as session,
                session.begin(),
                inbox.once(session, message(offset)) as fresh,
            ):
                if fresh:
                    session.add(Unlock(offset=offset))
                return fresh

        found = await asyncio.gather(*(one_by_one(offset % 4) for offset in range(12)))
        assert sum(found) == 4
        assert await inbox.prune("doors", {0: 4}) == 0
        assert await inbox.prune("doors", {0: 4}) == 4
        assert not await one_by_one(3)
        await other.dispose()

    asyncio.run(test())
    assert effects(engine) == [0, 1, 2, 3]
