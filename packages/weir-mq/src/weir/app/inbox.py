"""`Inbox`: effects of messages in the user's database that happen exactly once (DESIGN §5 Consume).

A message may be delivered twice: its ack was lost, its consumer died behind the commit, or stood
still for longer than its lease. What must not happen twice is written in one transaction with the
message's row in `weir_inbox`; a second delivery finds the row. There are two tables:

weir_inbox        a row for each message whose effect is done
weir_inbox_floor  a row for each partition: whatever has a lower offset, and a stamp as low, is done

The stamp tells a topic from another one that was made under its name later: there offsets begin at
0 again, and stamps go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, cast, overload

from weir.client.client import Client
from weir.client.connection.system import SYSTEM, in_daemon
from weir.client.consumer.consumer import Consumer
from weir.client.core.retries import seconds
from weir.errors import MissingLibrary
from weir.model.limits import NAME_CHARACTERS_MAX
from weir.model.message import Message
from weir.model.topic import DEFAULT_NAMESPACE, check_name, split_name

try:
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        CursorResult,
        Delete,
        Engine,
        Insert,
        Integer,
        MetaData,
        Select,
        String,
        Table,
        Update,
        bindparam,
        delete,
        exists,
        func,
        insert,
        inspect,
        or_,
        select,
        update,
    )
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import DBAPIError, IntegrityError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session
    from sqlalchemy.schema import CreateTable
except ImportError:
    raise MissingLibrary("SQLAlchemy is not installed: pip install 'weir-mq[inbox]'") from None

log = logging.getLogger("weir.app")

#: Whatever has a transaction under way.
AnySession = Session | AsyncSession | Connection | AsyncConnection

PRUNE_EVERY = "30s"

#: A topic and a partition.
Place = tuple[str, int]

#: Offsets whose rows go in one transaction.
_AT_ONCE = 10_000
#: Seconds between a floor's commit and the deletion of rows below it, at least.
GAP = 10.0


#: Of rows and floors alike; what the statements below take.
METADATA = MetaData()
_TOPIC_CHARACTERS = 2 * NAME_CHARACTERS_MAX + 1


def _columns() -> list[Column[Any]]:
    return [
        Column("cluster", String(NAME_CHARACTERS_MAX), primary_key=True),
        Column("topic", String(_TOPIC_CHARACTERS), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
    ]


ROWS = Table(
    "weir_inbox",
    METADATA,
    *_columns(),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("stamp", BigInteger, nullable=False),
)
FLOORS = Table(
    "weir_inbox_floor",
    METADATA,
    *_columns(),
    Column("offset", BigInteger, nullable=False),
    Column("stamp", BigInteger, nullable=False),
)

# Parameters: where a message is, or a partition; each with its column's type.
_CLUSTER = bindparam("in_cluster", type_=ROWS.c.cluster.type)
_TOPIC = bindparam("in_topic", type_=ROWS.c.topic.type)
_PARTITION = bindparam("in_partition", type_=ROWS.c.partition.type)
_OFFSET = bindparam("at_offset", type_=ROWS.c.offset.type)
_STAMP = bindparam("at_stamp", type_=ROWS.c.stamp.type)


def _in(table: Table) -> tuple[Any, ...]:
    c = table.c
    return c.cluster == _CLUSTER, c.topic == _TOPIC, c.partition == _PARTITION


_BELOW = exists().where(*_in(FLOORS), FLOORS.c.offset > _OFFSET, FLOORS.c.stamp >= _STAMP)
_VALUES = {
    "cluster": _CLUSTER,
    "topic": _TOPIC,
    "partition": _PARTITION,
    "offset": _OFFSET,
    "stamp": _STAMP,
}


def _adding_row(dialect_insert: Any) -> Insert:
    """Return what adds a row and returns it, or nothing if it was there or lies below the floor."""
    chosen = select(*_VALUES.values()).where(~_BELOW)
    adding = dialect_insert(ROWS).from_select([*_VALUES], chosen)
    # A row of a topic that had this name before makes way.
    adding = adding.on_conflict_do_update(
        index_elements=[*ROWS.primary_key.columns],
        set_={"stamp": adding.excluded.stamp},
        where=ROWS.c.stamp < adding.excluded.stamp,
    )
    found: Insert = adding.returning(ROWS.c.offset)
    return found


#: By the name of a database that can say in one statement whether a row is new.
FRESH: dict[str, Insert] = {
    "postgresql": _adding_row(postgresql.insert),
    "sqlite": _adding_row(sqlite.insert),
}

# For all other databases, one after the other.
IS_BELOW: Select[Any] = select(_BELOW)
ADD: Insert = insert(ROWS).values(_VALUES)
TAKE_OVER: Update = (
    update(ROWS)
    .where(*_in(ROWS), ROWS.c.offset == _OFFSET, ROWS.c.stamp < _STAMP)
    .values(stamp=_STAMP)
)

# Pruning. Below `at_offset` lies the cursor, or the floor that was told before.
HIGHEST: Select[Any] = (
    select(ROWS.c.offset, ROWS.c.stamp)
    .where(*_in(ROWS), ROWS.c.offset < _OFFSET)
    .order_by(ROWS.c.offset.desc())
    .limit(1)
)
LOWEST: Select[Any] = select(func.min(ROWS.c.offset)).where(*_in(ROWS))
FLOOR: Select[Any] = select(FLOORS.c.offset, FLOORS.c.stamp).where(*_in(FLOORS))
SET_FLOOR: Insert = insert(FLOORS).values(_VALUES)
RAISE_FLOOR: Update = (
    update(FLOORS)
    .where(
        *_in(FLOORS),
        or_(
            FLOORS.c.stamp < _STAMP,
            (FLOORS.c.stamp == _STAMP) & (FLOORS.c.offset < _OFFSET),
        ),
    )
    .values(offset=_OFFSET, stamp=_STAMP)
)
DELETE: Delete = delete(ROWS).where(*_in(ROWS), ROWS.c.offset < _OFFSET, ROWS.c.stamp <= _STAMP)


def in_partition(cluster: str, topic: str, partition: int) -> dict[str, Any]:
    """Return the parameters that name a partition."""
    return {"in_cluster": cluster, "in_topic": topic, "in_partition": partition}


def at_position(offset: int, stamp: int) -> dict[str, Any]:
    """Return the parameters that name a message in it."""
    return {"at_offset": offset, "at_stamp": stamp}


class Inbox:
    """The messages that a cluster has processed, in tables beside the user's own.

        inbox = weir.Inbox("ledger")
        inbox.create(engine)

        with Session(engine) as session, session.begin():      # or `async with`, AsyncSession
            with inbox.once(session, message) as fresh:
                if fresh:
                    session.add(Unlock(...))

    `metadata` of this class holds the tables, for migrations.
    """

    metadata = METADATA

    def __init__(self, cluster: str, *, prune_every: str | float = PRUNE_EVERY) -> None:
        """Take the cluster whose messages these are. Raises `BadName`, `ValueError`."""
        self.cluster = check_name(cluster, "cluster")
        self._every = seconds(prune_every)
        self._engine: Engine | AsyncEngine | None = None
        self._pruning = Pruning(cluster)

    @overload
    def create(self, engine: Engine) -> None: ...

    @overload
    def create(self, engine: AsyncEngine) -> Coroutine[Any, Any, None]: ...

    def create(self, engine: Engine | AsyncEngine) -> Coroutine[Any, Any, None] | None:
        """Create the tables unless they exist, and use this database for pruning.

        `await` it with an `AsyncEngine`.
        """
        self._engine = engine
        if isinstance(engine, AsyncEngine):
            return self._created(engine)
        _create(engine)
        return None

    @property
    def created(self) -> bool:
        """Whether the inbox has a database."""
        return self._engine is not None

    def once(self, session: AnySession, message: Message) -> Once:
        """Return a context manager for whether a message is `fresh`; async for async sessions.

        It inserts a row in the session's transaction; the effect belongs in the same one. Of two
        transactions with one message the second waits for the first. An exception that leaves
        the block rolls the transaction back, so no row is without its effect. Entering it raises
        `RuntimeError` where there are no transactions (`isolation_level="AUTOCOMMIT"`).
        """
        if message.offset < 0:
            raise ValueError("this message was not consumed: it has no offset to be known by")
        topic, partition = name_of(message.topic), message.partition
        return Once(
            session,
            {
                **in_partition(self.cluster, topic, partition),
                **at_position(message.offset, message.stamp),
            },
        )

    async def prune(self, topic: str, cursors: Mapping[int, int]) -> int:
        """Delete rows that are no longer needed; return how many. All below `cursors` is done.

        A consumer that hung may still ask for a message below the cursor. So first a floor is
        committed, below which nothing is fresh; rows below it are deleted some seconds later.
        """
        engine = self._engine
        if engine is None:
            raise RuntimeError("this inbox knows no database: inbox.create(engine)")
        wanted = {(name_of(topic), partition): cursor for partition, cursor in cursors.items()}
        if isinstance(engine, AsyncEngine):
            async with engine.connect() as connection:
                return await connection.run_sync(self._pruning.run, wanted)
        return await in_daemon(partial(_prune, engine, self._pruning, wanted))

    async def keep_pruned(self, client: Client, consumer: Consumer) -> None:
        """Prune from time to time, until cancelled: below the cluster's cursors, in each topic that
        the consumer takes.
        """
        while True:
            await asyncio.sleep(self._every)
            for topic in consumer.topics:
                try:
                    found = await client.clusters(topic, self.cluster)
                    shares = (share for one in found for share in one.shares)
                    await self.prune(topic, {share.partition: share.cursor for share in shares})
                except Exception as error:  # drivers have errors of their own for lost databases
                    log.warning(
                        "the inbox of cluster %s is not pruned of %s: %s",
                        self.cluster, topic, error,
                    )  # fmt: skip

    async def _created(self, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await connection.run_sync(_create_in)


class Once:
    """Entered, it says whether a message's effect is still to come."""

    __slots__ = ("_message", "_session")

    def __init__(self, session: AnySession, message: dict[str, Any]) -> None:
        """Take a session, and the parameters that name a message."""
        self._session = session
        self._message = message

    def __enter__(self) -> bool:
        session = self._session
        if not isinstance(session, Session | Connection):
            raise TypeError("`async with inbox.once(...)`: this session is an async one")
        return _fresh(session, self._message)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self._session.rollback()

    async def __aenter__(self) -> bool:
        session = self._session
        if not isinstance(session, AsyncSession | AsyncConnection):
            raise TypeError("`with inbox.once(...)`: this session is not an async one")
        return await session.run_sync(_fresh, self._message)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None and isinstance(self._session, AsyncSession | AsyncConnection):
            await self._session.rollback()


def name_of(topic: str) -> str:
    """Return a topic's one name: with its namespace, unless that is the default."""
    namespace, name = split_name(topic)
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace}/{name}"


def _fresh(session: Session | Connection, message: dict[str, Any]) -> bool:
    began = SYSTEM.get().monotonic()
    connection = session.connection() if isinstance(session, Session) else session
    if _commits_by_itself(connection):
        raise RuntimeError(
            "this connection has isolation_level='AUTOCOMMIT': the message would count as done "
            "before its effect is. Take one with transactions"
        )
    if not _added(session, connection.dialect.name, message):
        return False
    return not (looks_again(began) and session.execute(IS_BELOW, message).scalar_one())


def _commits_by_itself(connection: Connection) -> bool:
    level = connection.get_execution_options().get("isolation_level")
    if level is None:  # as the engine was made; SQLAlchemy tells nobody else
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return level == "AUTOCOMMIT"


def _added(session: Session | Connection, dialect: str, message: dict[str, Any]) -> bool:
    statement = FRESH.get(dialect)
    if statement is not None:
        return session.execute(statement, message).first() is not None
    if session.execute(IS_BELOW, message).scalar_one():
        return False
    try:
        with session.begin_nested():
            session.execute(ADD, message)
    except IntegrityError:
        return cast(CursorResult[Any], session.execute(TAKE_OVER, message)).rowcount == 1
    return True


def _create(engine: Engine) -> None:
    with engine.connect() as connection:
        _create_in(connection)


def _create_in(connection: Connection) -> None:
    """Make the tables. Several processes may do so at once, and some databases let one fail."""
    for table in (ROWS, FLOORS):
        try:
            connection.execute(CreateTable(table, if_not_exists=True))
            connection.commit()
        except DBAPIError:
            connection.rollback()
            if not inspect(connection).has_table(table.name):
                raise


def _prune(engine: Engine, pruning: Pruning, cursors: Mapping[Place, int]) -> int:
    with engine.connect() as connection:
        return pruning.run(connection, cursors)


class Pruning:
    """Deletes rows below the cursor in two rounds.

    Messages below a cursor are granted to nobody, but a consumer that stood still may yet ask for
    one that was granted to it long ago. So the first round commits a floor, below which nothing is
    fresh, and one that comes `GAP` seconds later deletes the rows. A statement that began before
    the floor was there, and adds a row after the old one went, takes longer than that: it looks
    again (`looks_again`).
    """

    def __init__(self, cluster: str) -> None:
        """Begin without a round."""
        self._cluster = cluster
        #: Floors that were committed, offset and stamp, and when.
        self._told: dict[Place, tuple[int, int, float]] = {}

    def run(self, connection: Connection, cursors: Mapping[Place, int]) -> int:
        """Do a round; return how many rows were deleted. All below `cursors` is done."""
        deleted = 0
        for place, cursor in cursors.items():
            where = in_partition(self._cluster, *place)
            if place in self._told:
                offset, stamp, since = self._told[place]
                if SYSTEM.get().monotonic() < since + GAP:
                    continue
                deleted += _delete(connection, where, offset, stamp)
                del self._told[place]
            highest = connection.execute(HIGHEST, {**where, "at_offset": cursor}).first()
            if highest is not None:
                offset, stamp = highest.offset + 1, highest.stamp
                _raise_floor(connection, {**where, **at_position(offset, stamp)})
            connection.commit()
            if highest is not None:
                self._told[place] = (offset, stamp, SYSTEM.get().monotonic())
        return deleted


def looks_again(began: float) -> bool:
    """Tell whether what began then, by the clock, may have missed a floor and its row."""
    return SYSTEM.get().monotonic() > began + GAP / 2


def _delete(connection: Connection, where: dict[str, Any], offset: int, stamp: int) -> int:
    deleted = 0
    lowest = connection.execute(LOWEST, where).scalar()
    while lowest is not None and lowest < offset:
        lowest += _AT_ONCE
        below = at_position(min(lowest, offset), stamp)
        deleted += connection.execute(DELETE, {**where, **below}).rowcount
        connection.commit()
    return deleted


def _raise_floor(connection: Connection, floor: dict[str, Any]) -> None:
    """Set a floor, or raise the one that is there."""
    if connection.execute(FLOOR, floor).first() is None:
        try:
            with connection.begin_nested():
                connection.execute(SET_FLOOR, floor)
        except IntegrityError:
            pass  # another process was quicker
    connection.execute(RAISE_FLOOR, floor)
