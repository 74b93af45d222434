"""Databases that a step's rows go to: SQLite, in a file, and PostgreSQL, on a server.

Each says which type a column of Spark has there, and gives transactions: what fails in one changes
nothing. What they have in common is DB-API: a cursor with `execute` and `fetchone`.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from weir.errors import BadPipeline, MissingLibrary

#: The table that says which micro-batches were added.
LEDGER = "weir_batches"
#: How long a database may keep a transaction waiting for another.
_BUSY_SECONDS = 30
_CONNECT_SECONDS = 10
#: PostgreSQL cuts longer names.
_NAME_BYTES_MAX = 63
#: Years that Python, and so the driver, has times for.
_YEARS = (1, 9_999)


class Database(Protocol):
    """A database that has tables of rows and a table of micro-batches."""

    @property
    def name(self) -> str:
        """What it is called in errors; without a password."""

    def type(self, kind: DataType) -> str:
        """Return the type of a column, as `columns` tells it."""

    def cell(self, column: Column, kind: DataType) -> Column:
        """Return a column as the driver can write it there."""

    def check_names(self, names: Sequence[str]) -> None:
        """Raise `BadPipeline` for names of columns that it cannot have."""

    def columns(self, cursor: Any, table: str) -> list[tuple[str, str]]:
        """Return the names and types of a table's columns; none if it is not there."""

    def last(self, cursor: Any, step: str, query: str) -> int | None:
        """Return the last micro-batch of a step's query, None before the first. Another run that
        asks for it waits for the end of the transaction.
        """

    def insert(self, cursor: Any, table: str, columns: int, rows: Iterator[Sequence[Any]]) -> None:
        """Add rows to a table."""

    def mark(self, cursor: Any, step: str, query: str, number: int) -> None:
        """Say which micro-batch is the last. `last` was asked for the same before."""

    def take(self, cursor: Any, step: str, query: str) -> int | None:
        """Remove the row of a step's query; return its micro-batch, None if there was none."""

    def transaction(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block that has a cursor. Raises `BadPipeline` for what the database refuses."""


class Sqlite:
    """SQLite: times, dates and decimals are text, structs and lists JSON, NaN is null."""

    def __init__(self, path: Path) -> None:
        """Name the file; nothing is opened yet."""
        self._path = path

    @property
    def name(self) -> str:
        """The file."""
        return str(self._path)

    def type(self, kind: DataType) -> str:
        """Return the type of a column."""
        match kind:
            case IntegralType() | BooleanType():
                return "INTEGER"
            case FloatType() | DoubleType():
                return "REAL"
            case BinaryType():
                return "BLOB"
        return "TEXT"

    def cell(self, column: Column, kind: DataType) -> Column:
        """Return a column as SQLite has it."""
        match kind:
            case IntegralType() | StringType() | BinaryType():
                return column
            case BooleanType():
                return column.cast("int")
            case FloatType() | DoubleType():
                return F.when(~F.isnan(column), column.cast("double"))
            case StructType() | ArrayType() | MapType() | VariantType():
                return F.to_json(column)
        return column.cast("string")

    def check_names(self, names: Sequence[str]) -> None:
        """All names can be."""

    def columns(self, cursor: Any, table: str) -> list[tuple[str, str]]:
        """Return the names and types of a table's columns; none if it is not there."""
        told = cursor.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        return [(row[1], row[2]) for row in told]

    def last(self, cursor: Any, step: str, query: str) -> int | None:
        """Return the last micro-batch of a step's query, None before the first."""
        found = cursor.execute(
            f"SELECT batch FROM {LEDGER} WHERE step = ? AND query = ?", (step, query)
        ).fetchone()
        return None if found is None else int(found[0])

    def insert(self, cursor: Any, table: str, columns: int, rows: Iterator[Sequence[Any]]) -> None:
        """Add rows to a table."""
        marks = ", ".join("?" * columns)
        cursor.executemany(f"INSERT INTO {quoted(table)} VALUES ({marks})", rows)

    def mark(self, cursor: Any, step: str, query: str, number: int) -> None:
        """Say which micro-batch is the last."""
        cursor.execute(f"INSERT OR REPLACE INTO {LEDGER} VALUES (?, ?, ?)", (step, query, number))

    def take(self, cursor: Any, step: str, query: str) -> int | None:
        """Remove the row of a step's query; return its micro-batch, None if there was none."""
        found = self.last(cursor, step, query)
        cursor.execute(f"DELETE FROM {LEDGER} WHERE step = ? AND query = ?", (step, query))
        return found

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield a cursor within a transaction, which is the only one that writes."""
        try:
            sql = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise BadPipeline(f"{self._path}: {error}") from None
        try:
            sql.execute("PRAGMA synchronous = FULL")
            sql.execute("BEGIN IMMEDIATE")
            yield sql.cursor()
            sql.execute("COMMIT")
        except sqlite3.Error as error:
            raise BadPipeline(f"{self._path}: {error}") from None
        finally:
            sql.close()  # what was not committed is rolled back


class Postgres:
    """PostgreSQL: columns have its own types, structs and lists are `json`.

    Text has no NUL there, so that becomes U+FFFD. A time or a date outside the years 1 to 9999 is
    null, since Python has none.
    """

    def __init__(self, url: str) -> None:
        """Name the server and the database as postgresql://USER@HOST:PORT/NAME; nothing is opened
        yet. Raises `MissingLibrary`, and `BadPipeline` for what is no URL.
        """
        self._url = url
        self._psycopg = _psycopg()
        try:
            self._psycopg.conninfo.conninfo_to_dict(url)
            parts = urlsplit(url)
            place = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
        except (ValueError, self._psycopg.Error):
            raise BadPipeline("sql: give postgresql://USER@HOST:PORT/DATABASE") from None
        self._name = f"postgresql://{place}{parts.path}"

    @property
    def name(self) -> str:
        """The URL, without user and password."""
        return self._name

    def type(self, kind: DataType) -> str:
        """Return the type of a column."""
        match kind:
            case BooleanType():
                return "boolean"
            case IntegralType():
                return "bigint"
            case FloatType() | DoubleType():
                return "double precision"
            case BinaryType():
                return "bytea"
            case DecimalType():
                return f"numeric({kind.precision},{kind.scale})"
            case TimestampType():
                return "timestamp with time zone"
            case TimestampNTZType():
                return "timestamp without time zone"
            case DateType():
                return "date"
            case StructType() | ArrayType() | MapType() | VariantType():
                return "json"
        return "text"

    def cell(self, column: Column, kind: DataType) -> Column:
        """Return a column as PostgreSQL reads it: text, where Python's type says less."""
        match kind:
            case IntegralType() | BinaryType() | BooleanType():
                return column
            case FloatType() | DoubleType():
                return column.cast("double")
            case StructType() | ArrayType() | MapType() | VariantType():
                return F.to_json(column)
            case TimestampType() | TimestampNTZType() | DateType():
                return F.when(F.year(column).between(*_YEARS), column.cast("string"))
            case DecimalType():
                return column.cast("string")
        return F.replace(column.cast("string"), F.lit("\0"), F.lit("\N{REPLACEMENT CHARACTER}"))

    def check_names(self, names: Sequence[str]) -> None:
        """Raise `BadPipeline` for a name that PostgreSQL would cut."""
        for name in names:
            if len(name.encode()) > _NAME_BYTES_MAX:
                raise BadPipeline(
                    f"{self._name}: the column {name!r} has more than {_NAME_BYTES_MAX} bytes in "
                    "its name: rename it"
                )

    def columns(self, cursor: Any, table: str) -> list[tuple[str, str]]:
        """Return the names and types of a table's columns; none if it is not there."""
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (quoted(table),),
        )
        return [(row[0], row[1]) for row in cursor.fetchall()]

    def last(self, cursor: Any, step: str, query: str) -> int | None:
        """Return the last micro-batch of a step's query, None before the first. A driver that was
        thought dead has the same row, so one of both waits.
        """
        cursor.execute(
            f"INSERT INTO {LEDGER} VALUES (%s, %s, NULL) ON CONFLICT DO NOTHING", (step, query)
        )
        cursor.execute(
            f"SELECT batch FROM {LEDGER} WHERE step = %s AND query = %s FOR UPDATE", (step, query)
        )
        found = cursor.fetchone()
        return None if found is None or found[0] is None else int(found[0])

    def insert(self, cursor: Any, table: str, columns: int, rows: Iterator[Sequence[Any]]) -> None:
        """Add rows to a table."""
        with cursor.copy(f"COPY {quoted(table)} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def mark(self, cursor: Any, step: str, query: str, number: int) -> None:
        """Say which micro-batch is the last."""
        cursor.execute(
            f"UPDATE {LEDGER} SET batch = %s WHERE step = %s AND query = %s", (number, step, query)
        )

    def take(self, cursor: Any, step: str, query: str) -> int | None:
        """Remove the row of a step's query; return its micro-batch, None if there was none."""
        cursor.execute(
            f"DELETE FROM {LEDGER} WHERE step = %s AND query = %s RETURNING batch", (step, query)
        )
        found = cursor.fetchone()
        return None if found is None or found[0] is None else int(found[0])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield a cursor within a transaction, which is durable once it is committed."""
        try:
            with (
                self._psycopg.connect(self._url, connect_timeout=_CONNECT_SECONDS) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(f"SET LOCAL lock_timeout = '{_BUSY_SECONDS}s'")
                cursor.execute("SET LOCAL TIME ZONE 'UTC'")
                cursor.execute("SET LOCAL datestyle = 'ISO'")
                # A commit that the server may forget would be a micro-batch that is lost.
                cursor.execute(
                    "SELECT set_config('synchronous_commit', 'on', true) "
                    "WHERE current_setting('synchronous_commit') = 'off'"
                )
                yield cursor
        except self._psycopg.Error as error:
            raise BadPipeline(f"{self._name}: {' '.join(str(error).split())}") from None


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _psycopg() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError:
        raise MissingLibrary(
            "psycopg is not installed: pip install 'weir-mq[postgres]', or use sqlite:///FILE"
        ) from None
