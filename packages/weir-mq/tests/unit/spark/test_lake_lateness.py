"""Late rows of a lake: counted by the planner, left out by tasks, and never otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from weir.errors import BadOption
from weir.spark.lake import files as parquet
from weir.spark.lake.lateness import times
from weir.spark.lake.stream import LakeDataSource, LakeReader, Options
from weir.spark.lake.tables import Account, Table

ROWS = StructType().add("stamp", "long").add("at", "timestamp").add("n", "integer")
SECOND = 1_000_000


def add(table: Table, number: int, rows: list[tuple[int, int | None]]) -> None:
    """Add a file of rows (stamp, time in seconds), whose `n` is their stamp."""
    data = {
        "stamp": [stamp for stamp, _ in rows],
        "at": [None if at is None else at * SECOND for _, at in rows],
        "n": [stamp for stamp, _ in rows],
    }
    batch = pa.RecordBatch.from_pydict(data, table.schema)
    reports = parquet.written(iter([batch]), str(table.folder), f"p{number}", table.schema)
    files = [parquet.new_file(row) for one in reports for row in one.to_pylist()]
    last = max(stamp for stamp, _ in rows)
    before = table.account
    total = before.rows + len(rows)
    table.add("q", number, files, Account(number, last, total, rows=total))


def reader(folder: Path, **options: str) -> LakeReader:
    given = {"path": str(folder), "time": "at", "watermark": "10s", **options}
    return LakeReader(Options.parse(given), LakeDataSource(given).schema())


def read(of: LakeReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    rows: Iterator[pa.RecordBatch] = (
        batch for task in of.partitions(start, end) for batch in of.read(task)
    )
    return sorted(n for batch in rows for n in batch["n"].to_pylist())


@pytest.mark.parametrize("is_compacted", [False, True])
def test_rows_at_or_below_the_watermark_are_late(tmp_path: Path, is_compacted: bool) -> None:
    table = Table(tmp_path / "t", ROWS)
    add(table, 0, [(1, 5), (2, 30), (3, None)])
    of = reader(tmp_path / "t")
    first = of.latestOffset(of.initialOffset(), ReadAllAvailable())
    # Within a micro-batch nothing is late, and without rows there is no watermark.
    assert first == {"n": 3, "s": 3, "w": 30 * SECOND, "l": 0}
    assert read(of, of.initialOffset(), first) == [1, 2, 3]
    add(table, 1, [(4, 20), (5, 21), (6, 7), (7, None)])
    add(table, 2, [(8, 40)])
    if is_compacted:
        deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()
        assert len(table.files()) == 1
    second = of.latestOffset(first, ReadAllAvailable())
    assert second == {"n": 8, "s": 8, "w": 40 * SECOND, "l": 2}
    assert read(of, first, second) == [5, 7, 8]
    assert of.latestOffset(second, ReadAllAvailable()) == second
    # Late rows of several files are counted together; a lower time moves no watermark back.
    add(table, 3, [(9, 31), (10, 30)])
    add(table, 4, [(11, 29)])
    add(table, 5, [(12, 35)])
    third = of.latestOffset(second, ReadAllAvailable())
    assert third == {"n": 12, "s": 12, "w": 40 * SECOND, "l": 4}
    assert read(of, second, third) == [9, 12]
    # What was counted stays, where nothing is late any more.
    plain = LakeReader(Options.parse({"path": str(tmp_path / "t")}), ROWS)
    add(table, 6, [(13, 1)])
    fourth = plain.latestOffset(json.loads(json.dumps(third)), ReadAllAvailable())
    assert fourth == {"n": 13, "s": 13, "w": 40 * SECOND, "l": 4}
    assert read(plain, third, fourth) == [13]


def test_a_file_is_read_only_where_its_statistics_do_not_say_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "t", ROWS)
    add(table, 0, [(1, 50), (2, 60)])
    (file,) = table.files()
    path = [table.folder / file.path]

    def read(*_: object) -> None:
        raise AssertionError("it was read")

    with monkeypatch.context() as patch:
        patch.setattr("weir.spark.lake.lateness._read", read)
        assert times(path, "at", 0, 2, 49 * SECOND).newest == 60 * SECOND
        assert times(path, "at", 2, 9, 99 * SECOND).newest is None
        with pytest.raises(AssertionError, match="it was read"):
            times(path, "at", 0, 1, None)
    assert times(path, "at", 0, 1, None).newest == 50 * SECOND
    assert times(path, "at", 0, 2, 50 * SECOND).late == 1


def test_what_gives_no_watermark_is_refused(tmp_path: Path) -> None:
    Table(tmp_path / "t", ROWS)
    with pytest.raises(BadOption, match="give both, or neither"):
        Options.parse({"path": str(tmp_path / "t"), "time": "at"})
    with pytest.raises(BadOption, match="not what it is to be"):
        reader(tmp_path / "t", watermark="soon")
    with pytest.raises(BadOption, match="has no column 'none'"):
        reader(tmp_path / "t", time="none")
    with pytest.raises(BadOption, match="'n' is int32, and is to be a timestamp"):
        reader(tmp_path / "t", time="n")
