"""Files of a lake: what a task writes, and what it tells the driver."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rigs.lakes import DAY_MS, messages, written
from weir.errors import NotWritable
from weir.model.arrow import SCHEMA
from weir.spark.lake import files as parquet


def test_rows_lie_by_the_day_of_their_stamps(tmp_path: Path) -> None:
    files = written(tmp_path, messages(0, 0, 10, DAY_MS - 4), messages(1, 5, 8, DAY_MS))
    assert [(file.day, file.rows, dict(file.spans)) for file in files] == [
        ("1970-01-01", 4, {0: (0, 4, 4)}),
        ("1970-01-02", 9, {0: (4, 10, 6), 1: (5, 8, 3)}),
    ]
    for file in files:
        assert file.path.startswith(f"day={file.day}/part-")
        assert file.size == (tmp_path / file.path).stat().st_size
        assert file.topics == ("t",)
    stats = json.loads(files[1].stats)
    assert stats["numRecords"] == 9
    assert (stats["minValues"]["stamp"], stats["maxValues"]["offset"]) == (DAY_MS << 16, 9)


def test_all_columns_come_back_as_they_were(tmp_path: Path) -> None:
    rows = messages(2, 7, 12)
    (file,) = written(tmp_path, rows)
    back = pq.read_table(tmp_path / file.path, partitioning=None)
    assert back.schema.names == SCHEMA.names
    assert back.to_pylist() == rows.to_pylist()


def test_values_that_were_too_large_are_counted(tmp_path: Path) -> None:
    rows = messages(0, 0, 3)
    value = pa.array([b"a", None, b"c"], pa.binary())
    (file,) = written(tmp_path, rows.set_column(7, SCHEMA.field("value"), value))
    assert (file.rows, file.bad) == (3, 1)


def test_few_days_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "OPEN_DAYS_MAX", 2)
    open_files: set[str] = set()
    most = 0
    create, close = parquet.DayFile.__init__, parquet.DayFile.close

    def creating(self: parquet.DayFile, root: Path, day: str, prefix: str) -> None:
        nonlocal most
        create(self, root, day, prefix)
        open_files.add(day)
        most = max(most, len(open_files))

    def closing(self: parquet.DayFile) -> dict[str, object]:
        report = close(self)
        open_files.discard(str(report["day"]))
        return report

    monkeypatch.setattr(parquet.DayFile, "__init__", creating)
    monkeypatch.setattr(parquet.DayFile, "close", closing)
    batches = [messages(0, day, day + 1, day * DAY_MS) for day in (1, 2, 3, 4, 1)]
    files = written(tmp_path, *batches)
    assert most == 2
    assert sorted(file.day for file in files) == [
        "1970-01-02", "1970-01-02", "1970-01-03", "1970-01-04", "1970-01-05",
    ]  # fmt: skip


def test_a_file_ends_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FILE_BYTES_MAX", 1)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    files = written(tmp_path, messages(0, 0, 4), messages(0, 4, 8))
    assert [file.rows for file in files] == [4, 4]
    assert pq.ParquetFile(tmp_path / files[0].path).num_row_groups == 2


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> object:
        yield messages(0, 0, 4)
        raise OSError("the broker went")

    with pytest.raises(OSError, match="went"):
        list(parquet.written(broken(), str(tmp_path), "part"))  # type: ignore[arg-type]
    assert list(tmp_path.rglob("*.parquet")) == []


def test_nothing_is_reported_of_nothing(tmp_path: Path) -> None:
    assert written(tmp_path) == []
    assert written(tmp_path, messages(0, 0, 0)) == []


@pytest.mark.parametrize("where", ["os.fsync", "pyarrow.parquet.ParquetWriter.write_table"])
def test_a_full_disk_is_told_by_its_file_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    written(tmp_path, messages(0, 0, 10))
    before = {*tmp_path.glob("day=*/*")}
    monkeypatch.setattr(where, full)
    told = rf"{tmp_path}/day=\S+/part-\S+ cannot be written \(No space left on device\): make room"
    with pytest.raises(NotWritable, match=told):
        written(tmp_path, messages(0, 10, 20))
    assert {*tmp_path.glob("day=*/*")} == before
