"""A database of the world: SQLite in memory, which takes virtual time and breaks in the ways in
which databases do.

Each transaction has it alone, from its first statement on. A connection may break in any statement,
before a commit, or behind one: then the commit happened, and its caller gets an error.
What a process that dies had under way is lost. `engine_of` needs SQLAlchemy.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from weir.testing.simulator.world import MS, SECOND, World

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: How long a statement, or a commit, is on its way in each direction, in virtual µs; and now and
#: then.
_WAY = (20, 2 * MS)
_SLOW = (5 * MS, 120 * MS)
_SLOWLY = 0.05
#: How likely a connection breaks in a statement, before a commit, and behind it.
_BREAKS = 0.01
_LOST = 0.02
_UNANSWERED = 0.05
#: How long one waits for others' transactions; and how long a transaction may do nothing.
_PATIENCE = 5 * SECOND
_IDLE = 3 * SECOND
_AGAIN = (200, 5 * MS)
_GONE = "no active connection"
#: What SQLAlchemy looks for in a driver.
_WORDS = (
    "DatabaseError",
    "Error",
    "IntegrityError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "sqlite_version",
    "sqlite_version_info",
)


class Database:
    """What all processes of a world share, and what survives them."""

    def __init__(self, world: World) -> None:
        """Begin empty."""
        self.world = world
        #: Whether nothing breaks any more.
        self.calm = False
        #: How many transactions were lost, and how many commits had no answer.
        self.lost = 0
        self.unanswered = 0
        self.sqlite = sqlite3.connect(":memory:", isolation_level=None)
        self.holder: DatabaseConnection | None = None
        #: When its holder used it last.
        self.used = 0
        self._connections: list[DatabaseConnection] = []

    def connect(self, owner: str) -> DatabaseConnection:
        """Return a connection of a process, by its name."""
        self._connections = [one for one in self._connections if not one.dead]
        connection = DatabaseConnection(self, owner)
        self._connections.append(connection)
        return connection

    def cut(self, owner: str) -> None:
        """End the connections of a process: it is dead."""
        for connection in self._connections:
            if connection.owner == owner:
                connection.die()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return what a query finds, of what is committed."""
        if self.holder is not None:
            self.holder.die()
        return self.sqlite.execute(statement).fetchall()

    def breaks(self, chance: float) -> bool:
        """Throw dice for a fault."""
        return not self.calm and self.world.chance(chance)


class DatabaseConnection:
    """A connection in the words of `aiosqlite`, to whose adapter SQLAlchemy gives it."""

    isolation_level = ""

    def __init__(self, database: Database, owner: str) -> None:
        """Be open."""
        self.owner = owner
        self.dead = False
        self._is_closed = False
        self._database = database

    @property
    def _connection(self) -> object:
        """What the adapter looks at: None once this side has closed it. Of one that broke it would
        believe that it committed.
        """
        return None if self._is_closed else self

    def die(self) -> None:
        """Break; what is not committed is lost."""
        database = self._database
        if database.holder is self:
            database.lost += 1
            self._end("ROLLBACK")
        self.dead = True

    def cursor(self) -> Cursor:
        """Return what statements are executed with."""
        return Cursor(self)

    async def execute(self, statement: str, parameters: Sequence[Any]) -> Done:
        """Execute a statement, in a transaction that begins with the first one."""
        await self._way()
        if self._database.holder is not self:
            await self._begin()
        if self._database.breaks(_BREAKS):
            self.die()
            raise sqlite3.OperationalError(_GONE)
        self._database.used = self._database.world.now
        done = self._database.sqlite.execute(statement, parameters)
        rows = done.fetchall() if done.description else []
        await self._way()
        return Done(done, rows)

    async def commit(self) -> None:
        """Commit what is under way, if anything is."""
        database = self._database
        if database.holder is not self:
            self._check()
            return
        await self._way()
        if database.breaks(_LOST):
            self.die()
            raise sqlite3.OperationalError(_GONE)
        self._end("COMMIT")
        if database.breaks(_UNANSWERED):
            database.unanswered += 1
            self.die()
            await asyncio.sleep(0)
            raise sqlite3.OperationalError(_GONE)
        await self._way()

    async def rollback(self) -> None:
        """Undo what is under way, if anything is."""
        if self._database.holder is self:
            self._end("ROLLBACK")

    async def close(self) -> None:
        """End it; what is not committed is undone."""
        await self.rollback()
        self.dead = self._is_closed = True

    def stop(self) -> None:
        """End it at once."""
        self.die()

    async def create_function(self, *_: Any, **__: Any) -> None:
        """Do nothing: no statement of the world needs functions."""

    def _end(self, how: str) -> None:
        database = self._database
        database.holder = None
        database.sqlite.execute(how)

    def _check(self) -> None:
        if self.dead:
            raise sqlite3.OperationalError(_GONE)

    async def _begin(self) -> None:
        """Wait until nobody has a transaction, and begin one."""
        database, since = self._database, self._database.world.now
        while (holder := database.holder) is not None:
            if database.world.now > database.used + _IDLE:
                holder.die()  # its holder hangs
            elif database.world.now > since + _PATIENCE:
                raise sqlite3.OperationalError("database is locked")
            else:
                await self._sleep(*_AGAIN)
        database.holder, database.used = self, database.world.now
        database.sqlite.execute("BEGIN")

    async def _way(self) -> None:
        world = self._database.world
        await self._sleep(*(_SLOW if world.chance(_SLOWLY) else _WAY))

    async def _sleep(self, least: int, most: int) -> None:
        """Take time. Raises if the connection is broken behind it."""
        self._check()
        await asyncio.sleep(self._database.world.between(least, most) / SECOND)
        self._check()


class Done:
    """What is left of a statement that was executed."""

    def __init__(self, done: sqlite3.Cursor, rows: list[Any]) -> None:
        """Keep what it found."""
        self.description = done.description
        self.rowcount = done.rowcount
        self.lastrowid = done.lastrowid
        self.rows = rows


class Cursor:
    """A cursor in the words of `aiosqlite`."""

    arraysize = 1

    def __init__(self, connection: DatabaseConnection) -> None:
        """Have nothing."""
        self._connection = connection
        self._done: Done | None = None

    async def __aenter__(self) -> Cursor:
        return self

    @property
    def description(self) -> Any:
        """What columns there are, if any."""
        return None if self._done is None else self._done.description

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        return -1 if self._done is None else self._done.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The number of the row that was added last."""
        return None if self._done is None else self._done.lastrowid

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Execute a statement."""
        self._done = await self._connection.execute(statement, parameters)

    async def executemany(self, statement: str, many: Iterator[Sequence[Any]]) -> None:
        """Execute a statement several times."""
        for parameters in many:
            await self.execute(statement, parameters)

    async def fetchall(self) -> list[Any]:
        """Return the rows."""
        return [] if self._done is None else self._done.rows

    async def close(self) -> None:
        """Do nothing: nothing is kept open."""


def engine_of(database: Database, owner: str) -> AsyncEngine:
    """Return SQLAlchemy's engine for a process, by its name. Raises `ModuleNotFoundError`."""
    from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_dbapi
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import AsyncAdaptedQueuePool

    async def connect(*_: Any, **__: Any) -> DatabaseConnection:
        return database.connect(owner)

    words = {name: getattr(sqlite3, name) for name in _WORDS}
    driver = SimpleNamespace(Connection=DatabaseConnection, __version__="0", **words)
    return create_async_engine(
        "sqlite+aiosqlite://",
        module=AsyncAdapt_aiosqlite_dbapi(driver, sqlite3),  # type: ignore[arg-type]
        poolclass=AsyncAdaptedQueuePool,
        async_creator=connect,
    )
