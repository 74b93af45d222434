"""Where rows go beside a table: SQL, with the micro-batch's number in the same transaction, or a
topic, by weir's own sink, which remembers that number.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

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

from weir.client.sync import client as sync
from weir.errors import BadPipeline
from weir.spark.pipeline.plan import FILE, Plan, full_name
from weir.spark.sink.columns import check_columns
from weir.spark.sink.options import SinkOptions

_SQLITE = "sqlite:///"
#: The column that says which micro-batch a row is of.
BATCH = "weir_batch"
#: The table that says which micro-batches were added.
LEDGER = "weir_batches"
_BUSY_SECONDS = 30.0
#: Columns that make a message, where there is one with its value.
_MESSAGE = ("value", "key", "tag", "headers", "time")
_CHUNK_ROWS = 1_000


class RowSink(Protocol):
    """Takes each micro-batch of a step once, however often it is given."""

    def check(self, columns: StructType) -> None:
        """Raise `BadPipeline`, or what the broker refuses, if rows of these columns cannot go
        there.
        """

    def add(self, rows: DataFrame, query: str, number: int) -> None:
        """Add a micro-batch's rows, unless that was done."""


def open_sink(plan: Plan, name: str, step: str) -> RowSink:
    """Return a sink of a pipeline for a step. Raises `BadPipeline` for one that cannot be."""
    sink = plan.sinks[name]
    if sink.topic:
        return TopicSink(plan.url, full_name(sink.topic), step)
    if not sink.sql.startswith(_SQLITE):
        raise BadPipeline(f"{FILE}: sinks.{name}: sql: give sqlite:///FILE")
    path = plan.folder / sink.sql.removeprefix(_SQLITE)
    if not path.parent.is_dir():
        raise BadPipeline(f"{FILE}: sinks.{name}: sql: there is no folder {path.parent}")
    return SqlSink(path, sink.table or step, step)


class TopicSink:
    """A topic, to which each micro-batch of a step is published once, all of it at one stamp.

    A row is a JSON object; or, if there is a column `value`, that is the message's value, and the
    columns `key`, `tag`, `headers` and `time` are what they are called. No other column is written.
    """

    def __init__(self, url: str, topic: str, step: str) -> None:
        """Name the broker, the topic and the step; nothing is opened yet."""
        self._url = url
        self._topic = topic
        self._step = step

    def check(self, columns: StructType) -> None:
        """Raise `BadOption` for columns that make no messages, and `UnknownTopic`."""
        if "value" in columns.names:
            named = [field for field in columns.fields if field.name in _MESSAGE]
            check_columns(StructType(named), SinkOptions.parse(self._options("check", 0)))
        with sync.connect(self._url) as client:
            client.describe(self._topic)

    def add(self, rows: DataFrame, query: str, number: int) -> None:
        """Publish a micro-batch's rows, unless that was done."""
        if "value" in rows.columns:
            messages = rows.select(*(name for name in _MESSAGE if name in rows.columns))
        else:
            messages = rows.select(F.to_json(F.struct("*")).alias("value"))
        writer = messages.write.format("weir").mode("append")
        for name, value in self._options(query, number).items():
            writer = writer.option(name, value)
        writer.save()

    def _options(self, query: str, number: int) -> dict[str, str]:
        return {
            "url": self._url,
            "topic": self._topic,
            "id": f"{self._step}.{query}",
            "batch": str(number),
            "nullValues": "empty",
        }


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
