"""Rows of micro-batches in SQL: which ones a table has, by the ledger; without a Spark session."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from weir.errors import BadPipeline
from weir.spark.pipeline import plan, sinks
from weir.spark.pipeline.databases import Sqlite
from weir.spark.pipeline.sinks import SqlSink

COLUMNS = StructType([StructField("n", LongType())])
PIPELINE = """
url = "weir://localhost:6800"
[bronze.events]
topics = ["locks"]
[silver.locks]
topic = "locks"
schema = "topic"
to = ["first", "second"]
[sinks.first]
sql = "sqlite:///r.db"
table = "one"
[sinks.second]
sql = "sqlite:///./r.db"
table = "two"
"""


class Rows:
    """The part of a DataFrame that a sink in SQL uses."""

    schema = COLUMNS

    def select(self, *columns: object) -> Rows:
        return self

    def toLocalIterator(self) -> Iterator[tuple[int]]:
        return iter([(7,)])


@pytest.fixture(autouse=True)
def plain_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let columns be made without a Spark session."""
    column = SimpleNamespace(alias=lambda name: name)
    monkeypatch.setattr(sinks, "F", SimpleNamespace(col=lambda name: column))


def add(sink: SqlSink, *numbers: int) -> None:
    sink.check(COLUMNS)
    for number in numbers:
        sink.add(cast("DataFrame", Rows()), "query", number)


def told(path: Path, query: str) -> list[tuple[Any, ...]]:
    sql = sqlite3.connect(path)
    try:
        return sql.execute(query).fetchall()
    finally:
        sql.close()


def ledger(path: Path) -> list[tuple[Any, ...]]:
    return told(path, "SELECT step, batch FROM weir_batches ORDER BY step")


def opened(folder: Path, text: str, *names: str) -> list[SqlSink]:
    (folder / plan.FILE).write_text(text)
    return cast("list[SqlSink]", sinks.open_sinks(plan.read(folder), names, "locks"))


def as_before(path: Path, table: str, last: int) -> None:
    """Write a table and its ledger as they were when that knew of no tables."""
    add(SqlSink(Sqlite(path), table, "locks"), *range(last + 1))
    sql = sqlite3.connect(path)
    with sql:
        sql.execute("UPDATE weir_batches SET step = 'locks'")
    sql.close()


def test_two_tables_of_one_step_have_each_micro_batch_each(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    first, second = opened(tmp_path, PIPELINE, "first", "second")
    third = SqlSink(Sqlite(path), "locks", "locks")
    for number in (0, 1, 1):
        for sink in (first, second, third):
            add(sink, number)
    for table in ("one", "two", "locks"):
        assert told(path, f"SELECT weir_batch, n FROM {table}") == [(0, 7), (1, 7)]
    # A table of the step's name is where older ledgers have it.
    assert ledger(path) == [("locks", 1), ("locks/one", 1), ("locks/two", 1)]


def test_the_only_table_goes_on_from_a_ledger_without_tables(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    as_before(path, "one", 2)
    (sink,) = opened(tmp_path, PIPELINE, "first")
    add(sink, 2, 2, 3)
    assert told(path, "SELECT weir_batch FROM one") == [(0,), (1,), (2,), (3,)]
    # The row has moved, so no other table goes on from it.
    assert ledger(path) == [("locks/one", 3)]


def test_a_ledger_without_tables_is_of_no_table_among_several(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    as_before(path, "one", 0)
    _, second = opened(tmp_path, PIPELINE, "first", "second")
    add(second, 0)
    assert told(path, "SELECT weir_batch FROM two") == [(0,)]
    assert ledger(path) == [("locks", 0), ("locks/two", 0)]


def test_a_table_of_the_steps_name_keeps_its_row(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    add(SqlSink(Sqlite(path), "locks", "locks"), 0)
    (sink,) = opened(tmp_path, PIPELINE, "first")
    add(sink, 0)
    assert told(path, "SELECT weir_batch FROM one") == [(0,)]
    assert ledger(path) == [("locks", 0), ("locks/one", 0)]


def test_a_database_that_was_lost_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    for table in ("locks", "one"):
        sink = SqlSink(Sqlite(path), table, "locks")
        add(sink, 0, 1)
        path.unlink()
        words = rf"'{table}' has no micro-batch of step locks, and 2 comes: .*restore the database"
        with pytest.raises(BadPipeline, match=words):
            add(sink, 2)
        assert told(path, f"SELECT * FROM {table}") == []
        assert ledger(path) == []
        # The step is made again.
        add(sink, 0)
        assert ledger(path)[-1][1] == 0
        path.unlink()


def test_a_database_that_is_older_is_refused(tmp_path: Path) -> None:
    sink = SqlSink(Sqlite(tmp_path / "r.db"), "one", "locks")
    add(sink, 0, 1)
    with pytest.raises(BadPipeline, match=r"up to 1 of step locks, and 3 comes: .*delete the step"):
        add(sink, 3)
    assert ledger(tmp_path / "r.db") == [("locks/one", 1)]
