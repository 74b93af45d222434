"""Tables of a pipeline: a micro-batch and the account of it are one transaction."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from weir.errors import LakeMismatch
from weir.spark.lake import files as parquet
from weir.spark.lake.layout import Cut, NewFile
from weir.spark.lake.tables import Account, Table

ROWS = StructType().add("stamp", "long").add("device", "string", nullable=False)


def files(table: Table, *stamps: int) -> list[NewFile]:
    data = {"stamp": list(stamps), "device": ["a"] * len(stamps)}
    batch = pa.RecordBatch.from_pydict(data, table.schema)
    reports = parquet.written(iter([batch]), str(table.folder), "part", table.schema)
    return [parquet.new_file(row) for batch in reports for row in batch.to_pylist()]


def test_a_micro_batch_and_its_account_are_added_once(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", ROWS)
    assert (table.account, table.cut, table.number("q")) == (Account(), Cut(), -1)
    first = Account(0, stamp=9 << 16, messages=5, bad=2, repeated=1, rows=2)
    assert table.add("q", 0, files(table, 1 << 16, 9 << 16), first)
    # The replay of a run that was killed behind the transaction.
    assert not table.add("q", 0, files(table, 1 << 16), Account(0, rows=7))
    again = Table(tmp_path / "t", ROWS)
    assert (again.account, again.cut) == (first, Cut(9 << 16, 2))
    assert (again.number("q"), again.has("q", 0), again.has("q", 1)) == (0, True, False)
    # Nothing new, and further all the same.
    assert again.add("q", 1, [], Account(1, 12 << 16, 6, 3, 1, 2))
    assert table.cut == Cut(12 << 16, 2)
    (kept,) = table.files()
    assert (kept.rows, kept.stamps) == (2, (1 << 16, 9 << 16))
    assert table.vacuum(0) == 0


def test_a_file_that_is_gone_is_not_named(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", ROWS)
    lost = files(table, 1 << 16)
    (table.folder / lost[0].path).unlink()
    with pytest.raises(LakeMismatch, match="is not there as an executor wrote it"):
        table.add("q", 0, lost, Account(0, rows=1))
    short = files(table, 1 << 16)
    with (table.folder / short[0].path).open("r+b") as file:
        file.truncate(100)
    with pytest.raises(LakeMismatch, match="is not there as an executor wrote it"):
        table.add("q", 0, short, Account(0, rows=1))
    assert table.account == Account()


def test_of_two_runs_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "t", ROWS)
    from weir.spark.lake import delta_log

    commit, done = delta_log.commit, []

    def slow(*arguments: object) -> None:
        if not done:
            done.append(1)
            Table(tmp_path / "t").add("other", 0, [], Account(0, rows=0))
        commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_log, "commit", slow)
    with pytest.raises(LakeMismatch, match="another query writes there"):
        table.add("q", 0, files(table, 1 << 16), Account(0, rows=1))


def test_columns_that_differ_are_named(tmp_path: Path) -> None:
    with pytest.raises(LakeMismatch, match="holds no table"):
        Table(tmp_path / "t")
    table = Table(tmp_path / "t", ROWS)
    assert table.has_days
    with pytest.raises(LakeMismatch, match="device string, and its step gives stamp int64, de"):
        Table(tmp_path / "t", StructType().add("stamp", "long").add("device", "long"))
    with pytest.raises(LakeMismatch, match="column 'day'"):
        Table(tmp_path / "u", StructType().add("stamp", "long").add("day", "date"))
    with pytest.raises(LakeMismatch, match="two columns are called 'N'"):
        Table(tmp_path / "w", StructType().add("n", "long").add("N", "long"))
    with pytest.raises(LakeMismatch, match="has no type: cast it"):
        Table(tmp_path / "x", StructType().add("n", "void"))
    assert not Table(tmp_path / "v", StructType().add("day", "date")).has_days
    # Whether a value may be null is no difference.
    assert Table(tmp_path / "t", StructType().add("stamp", "long").add("device", "string"))
