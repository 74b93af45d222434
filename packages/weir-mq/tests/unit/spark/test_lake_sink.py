"""The sink of lakes: a micro-batch is there once, however often it is written and committed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rigs.lakes import DAY_MS, messages
from weir.errors import BadOption, LakeMismatch
from weir.model.arrow import SCHEMA
from weir.spark.lake import sink
from weir.spark.lake.delta import DeltaLake
from weir.spark.lake.layout import Cut, Home, read_cut
from weir.spark.lake.sink import LakeWriter, WrittenTask, stream_writer
from weir.spark.lake.stream import Options
from weir.spark.lake.tables import Account, Table

MESSAGES = from_arrow_schema(SCHEMA)
ROWS = StructType().add("stamp", "long").add("n", "integer")


class Context:
    """What Spark tells a task."""

    def __init__(self, query: str, number: int) -> None:
        self._told = {sink.QUERY: query, sink.BATCH: str(number)}

    def getLocalProperty(self, name: str) -> str:
        return self._told[name]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> type:
    class Task:
        """Runs the tasks of a micro-batch, each with rows of its own, and commits them."""

        def __init__(self, of: LakeWriter, query: str, number: int) -> None:
            self.of, self.number = of, number
            self.told: list[object] = []
            here = Context(query, number)
            monkeypatch.setattr(sink.TaskContext, "get", classmethod(lambda cls: here))

        def write(self, *batches: pa.RecordBatch) -> Task:
            self.told.append(self.of.write(iter(batches)))
            return self

        def commit(self) -> None:
            self.of.commit([*self.told, None], self.number)  # type: ignore[list-item]

    return Task


def some(*stamps: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"stamp": list(stamps), "n": [0] * len(stamps)},
        pa.schema([("stamp", pa.int64()), ("n", pa.int32())]),
    )


def test_messages_are_in_the_lake_once_and_it_says_how_far_it_is_whole(
    tmp_path: Path, task: type
) -> None:
    folder = tmp_path / "lake"
    lake = DeltaLake(folder, Home("t", 7))
    of = stream_writer(folder, MESSAGES, False)
    first = (messages(0, 0, 10, DAY_MS), messages(1, 0, 5, DAY_MS))
    for _ in range(2):
        task(of, "q", 0).write(first[0]).write(first[1]).commit()
        assert lake.snapshot().rows == 15
        assert lake.snapshot().positions == {0: 10, 1: 5}
        assert read_cut(folder) == Cut(
            (DAY_MS + 9) << 16 | first[0]["stamp"][9].as_py() & 0xFFFF, 15
        )
        # Killed behind the transaction: the micro-batch that runs again says it.
        (folder / "_weir" / "cut.json").unlink()
    task(of, "q", 1).write().commit()
    assert read_cut(folder) is not None
    with pytest.raises(LakeMismatch, match="has partition 0 up to offset 9 already"):
        task(of, "other", 0).write(first[0]).commit()
    with pytest.raises(LakeMismatch, match="tasks of several queries"):
        of.commit([WrittenTask("a"), WrittenTask("b")], 2)
    assert lake.snapshot().rows == 15


def test_rows_make_a_table_that_a_stream_can_follow(tmp_path: Path, task: type) -> None:
    of = stream_writer(tmp_path / "t", ROWS, False)
    for _ in range(2):
        task(of, "q", 0).write(some(1, 5)).write(some(3)).write().commit()
        assert Table(tmp_path / "t").account == Account(0, 5, messages=3, rows=3)
        assert Table(tmp_path / "t").number("q") == 0
    task(of, "q", 1).write(some(4)).commit()
    assert Table(tmp_path / "t").account == Account(1, 5, messages=4, rows=4)
    with pytest.raises(LakeMismatch, match="and its step gives stamp int64, m string"):
        stream_writer(tmp_path / "t", StructType().add("stamp", "long").add("m", "string"), False)


def test_what_is_no_stream_of_a_lake_is_refused(tmp_path: Path) -> None:
    DeltaLake(tmp_path / "lake", Home("t", 7))
    with pytest.raises(BadOption, match="keeps a topic: write all columns of a topic"):
        stream_writer(tmp_path / "lake", ROWS, False)
    with pytest.raises(BadOption, match="a lake is only added to"):
        stream_writer(tmp_path / "lake", MESSAGES, True)
    with pytest.raises(BadOption, match="does not tell tasks which micro-batch"):
        stream_writer(tmp_path / "lake", MESSAGES, False).write(iter(()))


def test_an_exclusive_table_takes_rows_of_one_query_only(tmp_path: Path, task: type) -> None:
    """A query that lost its checkpoint is another one, and would add all rows again."""
    of = stream_writer(tmp_path / "t", ROWS, False, exclusive=True)
    task(of, "q", 0).write(some(1, 5)).commit()
    task(of, "q", 1).write(some(7)).commit()
    with pytest.raises(LakeMismatch, match="has rows of another query"):
        task(of, "anew", 0).write(some(1, 5, 7)).commit()
    assert Table(tmp_path / "t").account.rows == 3
    many = stream_writer(tmp_path / "t", ROWS, False)
    task(many, "anew", 0).write(some(9)).commit()
    assert Table(tmp_path / "t").account.rows == 4


def test_exclusive_is_true_or_false() -> None:
    given = {"path": "/t"}
    assert not Options.parse(given).exclusive
    assert Options.parse(given | {"exclusive": "True"}).exclusive
    with pytest.raises(BadOption, match="give true or false"):
        Options.parse(given | {"exclusive": "yes"})
