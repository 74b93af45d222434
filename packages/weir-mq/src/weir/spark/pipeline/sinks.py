"""Where rows go beside a table: SQL, with the micro-batch's number in the same transaction, or a
topic, by weir's own sink, which remembers that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType

from weir.client.sync import client as sync
from weir.errors import BadPipeline
from weir.spark.pipeline.databases import LEDGER, Database, Postgres, Sqlite, quoted
from weir.spark.pipeline.plan import FILE, Plan, full_name
from weir.spark.sink.columns import check_columns
from weir.spark.sink.options import SinkOptions

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
#: The column that says which micro-batch a row is of.
BATCH = "weir_batch"
#: Columns that make a message, where there is one with its value.
_MESSAGE = ("value", "key", "tag", "headers", "time")


class RowSink(Protocol):
    """Takes each micro-batch of a step once, however often it is given."""

    def check(self, columns: StructType) -> None:
        """Raise `BadPipeline`, or what the broker refuses, if rows of these columns cannot go
        there.
        """

    def add(self, rows: DataFrame, query: str, number: int) -> None:
        """Add a micro-batch's rows, unless that was done."""


def open_sinks(plan: Plan, names: Sequence[str], step: str) -> list[RowSink]:
    """Return the sinks of a step. Raises `BadPipeline` for one that cannot be."""
    databases = {
        name: _database(plan, name, sql) for name in names if (sql := plan.sinks[name].sql)
    }
    opened: list[RowSink] = []
    for name in names:
        sink = plan.sinks[name]
        if sink.topic:
            opened.append(TopicSink(plan.url, full_name(sink.topic), step))
        else:
            database = databases[name]
            shares = sum(other.name == database.name for other in databases.values()) > 1
            opened.append(SqlSink(database, sink.table or step, step, is_only=not shares))
    return opened


def _database(plan: Plan, name: str, url: str) -> Database:
    """Return the database that a sink names. Raises `BadPipeline`, and `MissingLibrary`."""
    if url.startswith(_POSTGRES):
        try:
            return Postgres(url)
        except BadPipeline as error:
            raise BadPipeline(f"{FILE}: sinks.{name}: {error}") from None
    if not url.startswith(_SQLITE):
        raise BadPipeline(
            f"{FILE}: sinks.{name}: sql: give sqlite:///FILE or "
            "postgresql://USER@HOST:PORT/DATABASE"
        )
    path = plan.folder / url.removeprefix(_SQLITE)
    if not path.parent.is_dir():
        raise BadPipeline(f"{FILE}: sinks.{name}: sql: there is no folder {path.parent}")
    return Sqlite(path)


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
    """A table in a database, in which each micro-batch of a step is once.

    The rows and the number of the micro-batch are one transaction. The number is kept by the step,
    and by the table as well where that has another name.
    """

    def __init__(self, database: Database, table: str, step: str, *, is_only: bool = False) -> None:
        """Name the database, the table in it, and the step; nothing is opened yet. `is_only` says
        that the step has no other sink in that database.
        """
        self._database = database
        self._table = table
        self._step = step
        self._key = step if table == step else f"{step}/{table}"
        self._is_only = is_only

    def check(self, columns: StructType) -> None:
        """Create the table, unless it is there. Raises `BadPipeline` if it has other columns, or
        the database cannot be written.
        """
        database = self._database
        if BATCH in columns.names:
            raise BadPipeline(f"step {self._step}: a column {BATCH!r} is what its sink in SQL adds")
        database.check_names(columns.names)
        number = database.type(LongType())
        wanted = [(BATCH, number), *((f.name, database.type(f.dataType)) for f in columns)]
        text = database.type(StringType())
        ledger = [("step", text), ("query", text), ("batch", number)]
        with database.transaction() as cursor:
            self._create(cursor, LEDGER, ledger, ", PRIMARY KEY (step, query)")
            self._create(cursor, self._table, wanted, "")
            there = database.columns(cursor, self._table)
        if there != wanted:
            raise BadPipeline(
                f"{database.name}: table {self._table!r} has the columns {_words(there)}, and step "
                f"{self._step} gives {_words(wanted)}: name another table"
            )

    def add(self, rows: DataFrame, query: str, number: int) -> None:
        """Add a micro-batch's rows and its number in one transaction, unless that was done.

        Raises `BadPipeline` if micro-batches between are missing.
        """
        database = self._database
        with database.transaction() as cursor:
            last = self._last(cursor, query)
            if last is not None and last >= number:
                return
            if number != (0 if last is None else last + 1):
                raise self._missing(last, number)
            cells = [
                database.cell(F.col(_ticked(f.name)), f.dataType).alias(f.name) for f in rows.schema
            ]
            found = rows.select(*cells).toLocalIterator()
            database.insert(cursor, self._table, len(cells) + 1, ((number, *row) for row in found))
            database.mark(cursor, self._key, query, number)

    def _missing(self, last: int | None, number: int) -> BadPipeline:
        """Return the error for a micro-batch that is not the next one."""
        has = "no micro-batch" if last is None else f"micro-batches up to {last}"
        return BadPipeline(
            f"{self._database.name}: table {self._table!r} has {has} of step {self._step}, and "
            f"{number} comes: the database is older than the checkpoint or was lost, or the step "
            "was without this sink: restore the database; or drop this table, delete the step's "
            "table in the lake and its checkpoint, and the step is made again"
        )

    def _last(self, cursor: Any, query: str) -> int | None:
        """Return the last micro-batch that the table has, None before the first.

        A ledger once had no tables in it. Its row is this table's if the step has no other one in
        the database, and moves to where it is looked for now.
        """
        database = self._database
        last = database.last(cursor, self._key, query)
        if last is not None or self._key == self._step or not self._is_only:
            return last
        if database.columns(cursor, self._step):
            return None
        last = database.take(cursor, self._step, query)
        if last is not None:
            database.mark(cursor, self._key, query, last)
        return last

    def _create(
        self, cursor: Any, table: str, columns: Sequence[tuple[str, str]], key: str
    ) -> None:
        """Create a table that is not there: a user who may only write it can go on with it."""
        if not self._database.columns(cursor, table):
            given = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({given}{key})")


def _words(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
