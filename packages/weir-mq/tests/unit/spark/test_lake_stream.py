"""A lake as a stream: micro-batches end at stamps, whatever the files are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rigs.lakes import DAY_MS, messages, written
from weir.errors import BadOption, CheckpointMismatch, LakeMismatch
from weir.spark.lake.delta import DeltaLake
from weir.spark.lake.layout import Batch, Cut, Home, read_cut, write_cut
from weir.spark.lake.stamps import newest_stamp
from weir.spark.lake.stream import LakeDataSource, LakeReader, Options, admitted
from weir.spark.lake.tables import Table

#: Two partitions of ten messages on one day, at the same milliseconds, and ten on the next but one.
SPANS = ((0, 0, 10, DAY_MS), (1, 0, 10, DAY_MS), (0, 10, 20, 3 * DAY_MS))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return founded(tmp_path / "lake")


def founded(folder: Path) -> Path:
    lake = DeltaLake(folder, Home("t", 7))
    files = [file for span in SPANS for file in written(folder, messages(*span))]
    lake.add(Batch.of("q", 0, files))
    return folder


def stamp(day: int, ms: int) -> int:
    return (day * DAY_MS + ms) << 16


def reader(lake: Path, **options: object) -> LakeReader:
    given = {"path": str(lake), **{name: str(value) for name, value in options.items()}}
    return LakeReader(Options.parse(given), LakeDataSource(given).schema())


def read(of: LakeReader, start: dict[str, int], end: dict[str, int]) -> list[tuple[int, int]]:
    rows: Iterator[pa.RecordBatch] = (
        batch for task in of.partitions(start, end) for batch in of.read(task)
    )
    found = pa.Table.from_batches(rows)
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def test_a_micro_batch_ends_at_the_last_stamp_within_its_limit(lake: Path) -> None:
    end = stamp(4, 0)
    assert admitted([lake], 0, end, 30) == (end, 30)
    # Two messages have each stamp of the first day.
    for most in (6, 7):
        at, rows = admitted([lake], 0, end, most)
        assert (at >= stamp(1, 2), at < stamp(1, 3), rows) == (True, True, 6)
    # A whole day fits, and nothing of the next.
    at, rows = admitted([lake], 0, end, 20)
    assert (stamp(1, 9) <= at < stamp(3, 0), rows) == (True, 20)
    # A stamp is never torn, and something always comes.
    assert admitted([lake], 0, end, 1) == (stamp(1, 0), 2)
    assert admitted([lake], stamp(1, 0), end, 1) == (stamp(1, 1), 2)
    assert admitted([lake], stamp(3, 4), stamp(3, 6), 99) == (stamp(3, 6), 2)
    assert admitted([lake], stamp(3, 9), end, 99) == (end, 0)


def test_tables_of_one_query_end_at_one_stamp(lake: Path, tmp_path: Path) -> None:
    other = founded(tmp_path / "other")
    one = reader(lake, until=stamp(4, 0), maxRowsPerBatch=9, **{"with": json.dumps([str(other)])})
    two = reader(other, until=stamp(4, 0), maxRowsPerBatch=9, **{"with": json.dumps([str(lake)])})
    start = one.initialOffset()
    ends = []
    while (end := one.latestOffset(start, ReadMaxRows(9))) != start:
        assert two.latestOffset(start, ReadMaxRows(9)) == end
        ends.append(end["n"])
        start = end
    assert ends[:2] == [8, 16]
    assert ends[-1] == 60
    assert start["s"] == stamp(4, 0)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_micro_batches_are_the_rows_between_two_stamps(lake: Path, is_compacted: bool) -> None:
    if is_compacted:
        deltalake.DeltaTable(str(lake)).optimize.compact()
        assert len(Table(lake).files()) == 2
    of = reader(lake, until=stamp(4, 0), maxRowsPerBatch=7)
    start, found = of.initialOffset(), []
    while (end := of.latestOffset(start, ReadMaxRows(7))) != start:
        rows = read(of, start, end) if end["n"] > start["n"] else []
        assert len(rows) == end["n"] - start["n"]
        found += rows
        start = end
    assert sorted(found) == [*((0, n) for n in range(20)), *((1, n) for n in range(10))]


def test_a_stream_ends_where_its_tables_are_whole(lake: Path) -> None:
    of = reader(lake)
    nothing = of.initialOffset()
    assert of.latestOffset(nothing, ReadAllAvailable()) == nothing
    write_cut(lake, Cut(stamp(1, 4), 10))
    assert of.latestOffset(nothing, ReadAllAvailable()) == {"n": 10, "s": stamp(1, 4)}
    of.prepareForTriggerAvailableNow()
    write_cut(lake, Cut(stamp(3, 9), 30))
    assert of.latestOffset(nothing, ReadAllAvailable()) == {"n": 10, "s": stamp(1, 4)}
    assert newest_stamp(lake) == stamp(3, 9)


def test_what_is_no_stream_is_refused(lake: Path, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "needs the option path"),
        ({"path": str(lake), "topic": "t"}, "no option 'topic'"),
        ({"path": str(lake), "until": "now"}, "is not what it is to be"),
        ({"path": str(lake), "maxRowsPerBatch": "0"}, "1 or more"),
        ({"path": str(lake), "after": "{}"}, "another source"),
    ]
    for given, words in cases:
        with pytest.raises((BadOption, CheckpointMismatch), match=words):
            LakeDataSource(given)
    with pytest.raises(LakeMismatch, match="holds no table"):
        LakeDataSource({"path": str(tmp_path / "none")}).schema()
    of = reader(lake)
    offset: Any = {"e": 7, "p": {"00000": 1}}
    with pytest.raises(CheckpointMismatch, match="another source"):
        of.latestOffset(offset, ReadAllAvailable())


def test_a_cut_that_is_no_cut_is_told(lake: Path) -> None:
    assert read_cut(lake) is None
    write_cut(lake, Cut(5, 2))
    assert read_cut(lake) == Cut(5, 2)
    (lake / "_weir" / "cut.json").write_text("{")
    with pytest.raises(LakeMismatch, match="delete it"):
        read_cut(lake)
