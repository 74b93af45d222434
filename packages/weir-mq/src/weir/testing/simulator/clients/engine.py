"""SQLAlchemy's asynchronous engine over a database of the world.

Needs SQLAlchemy: import it where that is here.
"""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any

from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_dbapi
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from weir.testing.simulator.clients.database import Database, DatabaseConnection

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


def engine_of(database: Database, owner: str) -> AsyncEngine:
    """Return what a process, by its name, reaches the database by."""

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
