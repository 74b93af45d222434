"""Where rows go beside a table: SQL, with the micro-batch's number in the same transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from weir.errors import BadPipeline
from weir.spark.pipeline.plan import FILE, Plan

_SQLITE = "sqlite:///"
#: The column that says which micro-batch a row is of.
BATCH = "weir_batch"
#: The table that says which micro-batches were added.
LEDGER = "weir_batches"
_BUSY_SECONDS = 30.0
_CHUNK_ROWS = 1_000


def open_sink(plan: Plan, name: str, step: str) -> SqlSink:
    """Return a sink of a pipeline for a step. Raises `BadPipeline` for one that cannot be."""
    sink = plan.sinks[name]
    if sink.topic:
        raise BadPipeline(
            f"{FILE}: sinks.{name}: topic: this release writes to no topic from a pipeline: give "
            "sql, or read the step's table"
        )
    if not sink.sql.startswith(_SQLITE):
        raise BadPipeline(f"{FILE}: sinks.{name}: sql: give sqlite:///FILE")
    path = plan.folder / sink.sql.removeprefix(_SQLITE)
    if not path.parent.is_dir():
        raise BadPipeline(f"{FILE}: sinks.{name}: sql: there is no folder {path.parent}")
    return SqlSink(path, sink.table or step, step)


class SqlSink:
    """A table in an SQLite file, in which each micro-batch of a step is once.

    Numbers, text and bytes are what they are in SQL; times, dates and decimals are text, times in
    UTC; structs, arrays and maps are JSON. NaN is null, since SQLite has none.
    """

    def __init__(self, path: Path, table: str, step: str) -> None:
        """Name the file, the table in it, and the step; nothing is opened yet."""
        self._path = path
        self._table = table
        self._step = step

    def check(self, columns: StructType) -> None:
        """Create the table, unless it is there. Raises `BadPipeline` if it has other columns, or
        the file cannot be written.
        """
        if BATCH in columns.names:
            raise BadPipeline(f"step {self._step}: a column {BATCH!r} is what its sink in SQL adds")
        wanted = [(BATCH, "INTEGER"), *((f.name, _type(f.dataType)) for f in columns)]
        given = ", ".join(f"{_quoted(name)} {kind}" for name, kind in wanted)
        with self._transaction() as sql:
            sql.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(self._table)} ({given})")
            sql.execute(
                f"CREATE TABLE IF NOT EXISTS {LEDGER} "
                "(step TEXT, query TEXT, batch INTEGER, PRIMARY KEY (step, query))"
            )
            told = sql.execute(f"PRAGMA table_info({_quoted(self._table)})").fetchall()
        if (there := [(row[1], row[2]) for row in told]) != wanted:
            raise BadPipeline(
                f"{self._path}: table {self._table!r} has the columns "
                f"{', '.join(name for name, _ in there)}, and step {self._step} gives "
                f"{', '.join(name for name, _ in wanted)}: name another table"
            )

    def add(self, rows: DataFrame, query: str, number: int) -> None:
        """Add a micro-batch's rows and its number in one transaction, unless that was done."""
        with self._transaction() as sql:
            last = sql.execute(
                f"SELECT batch FROM {LEDGER} WHERE step = ? AND query = ?", (self._step, query)
            ).fetchone()
            if last is not None and last[0] >= number:
                return
            marks = ", ".join("?" * (len(rows.columns) + 1))
            insert = f"INSERT INTO {_quoted(self._table)} VALUES ({marks})"
            found = _plain(rows).toLocalIterator()
            while chunk := [(number, *row) for row in islice(found, _CHUNK_ROWS)]:
                sql.executemany(insert, chunk)
            sql.execute(
                f"INSERT OR REPLACE INTO {LEDGER} VALUES (?, ?, ?)", (self._step, query, number)
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection within a transaction; what fails in it changes nothing."""
        try:
            sql = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise BadPipeline(f"{self._path}: {error}") from None
        try:
            sql.execute("PRAGMA synchronous = FULL")
            sql.execute("BEGIN IMMEDIATE")
            yield sql
            sql.execute("COMMIT")
        except sqlite3.Error as error:
            raise BadPipeline(f"{self._path}: {error}") from None
        finally:
            sql.close()  # what was not committed is rolled back


def _plain(rows: DataFrame) -> DataFrame:
    """Return rows with columns that SQLite has types for."""
    return rows.select(*(_cell(f.name, f.dataType) for f in rows.schema))


def _cell(name: str, kind: DataType) -> Column:
    column = F.col(_ticked(name))
    match kind:
        case IntegralType() | StringType() | BinaryType():
            return column
        case BooleanType():
            return column.cast("int").alias(name)
        case FloatType() | DoubleType():
            return F.when(~F.isnan(column), column.cast("double")).alias(name)
        case StructType() | ArrayType() | MapType() | VariantType():
            return F.to_json(column).alias(name)
    return column.cast("string").alias(name)


def _type(kind: DataType) -> str:
    match kind:
        case IntegralType() | BooleanType():
            return "INTEGER"
        case FloatType() | DoubleType():
            return "REAL"
        case BinaryType():
            return "BLOB"
    return "TEXT"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
