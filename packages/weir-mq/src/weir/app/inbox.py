"""`Inbox`: effects of messages in the user's database that happen exactly once (DESIGN §5 Consume).

A message may be delivered twice: its ack was lost, its consumer died behind the commit, or stood
still for longer than its lease. What must not happen twice is written in one transaction with the
message's row in `weir_inbox`; whoever comes second finds the row.
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
from weir.client.core.durations import seconds
from weir.errors import MissingLibrary
from weir.model.message import Message
from weir.model.topic import DEFAULT_NAMESPACE, check_name, split_name

try:
    from sqlalchemy import Connection, CursorResult, Engine, inspect
    from sqlalchemy.exc import DBAPIError, IntegrityError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session
    from sqlalchemy.schema import CreateTable
except ImportError:
    raise MissingLibrary("SQLAlchemy is not installed: pip install 'weir-mq[inbox]'") from None

from weir.app import inbox_tables as t

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

    metadata = t.METADATA

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
                **t.place(self.cluster, topic, partition),
                **t.position(message.offset, message.stamp),
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

    async def keep_pruned(self, client: Client, topic: str) -> None:
        """Prune below the cluster's cursors from time to time, until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            try:
                found = await client.clusters(topic, self.cluster)
                cursors = {share.partition: share.cursor for one in found for share in one.shares}
                await self.prune(topic, cursors)
            except Exception as error:  # some drivers say in words of their own that nobody answers
                log.warning("the inbox of cluster %s is not pruned: %s", self.cluster, error)

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
    return not (looks_again(began) and session.execute(t.IS_BELOW, message).scalar_one())


def _commits_by_itself(connection: Connection) -> bool:
    level = connection.get_execution_options().get("isolation_level")
    if level is None:  # as the engine was made; SQLAlchemy tells nobody else
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return level == "AUTOCOMMIT"


def _added(session: Session | Connection, dialect: str, message: dict[str, Any]) -> bool:
    statement = t.FRESH.get(dialect)
    if statement is not None:
        return session.execute(statement, message).first() is not None
    if session.execute(t.IS_BELOW, message).scalar_one():
        return False
    try:
        with session.begin_nested():
            session.execute(t.ADD, message)
    except IntegrityError:
        return cast(CursorResult[Any], session.execute(t.TAKE_OVER, message)).rowcount == 1
    return True


def _create(engine: Engine) -> None:
    with engine.connect() as connection:
        _create_in(connection)


def _create_in(connection: Connection) -> None:
    """Make the tables. Several processes may do so at once, and some databases let one fail."""
    for table in (t.ROWS, t.FLOORS):
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
            where = t.place(self._cluster, *place)
            if place in self._told:
                offset, stamp, since = self._told[place]
                if SYSTEM.get().monotonic() < since + GAP:
                    continue
                deleted += _delete(connection, where, offset, stamp)
                del self._told[place]
            highest = connection.execute(t.HIGHEST, {**where, "at_offset": cursor}).first()
            if highest is not None:
                offset, stamp = highest.offset + 1, highest.stamp
                _raise_floor(connection, {**where, **t.position(offset, stamp)})
            connection.commit()
            if highest is not None:
                self._told[place] = (offset, stamp, SYSTEM.get().monotonic())
        return deleted


def looks_again(began: float) -> bool:
    """Tell whether what began then, by the clock, may have missed a floor and its row."""
    return SYSTEM.get().monotonic() > began + GAP / 2


def _delete(connection: Connection, where: dict[str, Any], offset: int, stamp: int) -> int:
    deleted = 0
    lowest = connection.execute(t.LOWEST, where).scalar()
    while lowest is not None and lowest < offset:
        lowest += _AT_ONCE
        below = t.position(min(lowest, offset), stamp)
        deleted += connection.execute(t.DELETE, {**where, **below}).rowcount
        connection.commit()
    return deleted


def _raise_floor(connection: Connection, floor: dict[str, Any]) -> None:
    """Set a floor, or raise the one that is there."""
    if connection.execute(t.FLOOR, floor).first() is None:
        try:
            with connection.begin_nested():
                connection.execute(t.SET_FLOOR, floor)
        except IntegrityError:
            pass  # another process was quicker
    connection.execute(t.RAISE_FLOOR, floor)
