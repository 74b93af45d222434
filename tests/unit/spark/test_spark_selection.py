"""Filters that a reader takes over from Spark, and those that it leaves."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from weir.model.arrow import record_batch
from weir.model.batch import Batch, encode
from weir.spark.batch import FilteringReader
from weir.spark.cuts import Standing
from weir.spark.options import Options
from weir.spark.planning import Cut
from weir.spark.selection import Selection
from weir.wire.messages import PositionsReply, TopicInfo

INFO = TopicInfo(1, "default", "t", "partition", [])


class Cuts:
    """Partitions in which a message's stamp is ten times its offset."""

    def standing(self, stamp: int = 0) -> Standing:
        return Standing(INFO, [PositionsReply(0, 100, 0)] * 3)

    def first_from(self, standing: Standing, stamp: int) -> dict[int, int]:
        return {p: min(-(-stamp // 10), 100) for p in range(len(standing.places))}


def selection(*filters: Filter) -> Selection:
    taken = Selection()
    for given in filters:
        narrowed = taken.taking(given)
        assert narrowed is not None, given
        taken = narrowed
    return taken


def narrowed(*filters: Filter) -> dict[int, tuple[int, int]]:
    begin, end = Cut(1, dict.fromkeys(range(3), 20)), Cut(1, dict.fromkeys(range(3), 100))
    first, behind = selection(*filters).narrow(Cuts(), begin, end)  # type: ignore[arg-type]
    return {
        p: (first.positions[p], at) for p, at in behind.positions.items() if first.positions[p] < at
    }


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], {0: (20, 100), 1: (20, 100), 2: (20, 100)}),
        ([EqualTo(("partition",), 1)], {1: (20, 100)}),
        ([In(("partition",), (0, 2)), In(("partition",), (2, 7))], {2: (20, 100)}),
        ([In(("partition",), (0,)), GreaterThan(("offset",), 30)], {0: (31, 100)}),
        ([In(("partition",), (0,)), LessThanOrEqual(("offset",), 30)], {0: (20, 31)}),
        ([EqualTo(("partition",), 0), EqualTo(("offset",), 50)], {0: (50, 51)}),
        ([EqualTo(("partition",), 0), EqualTo(("offset",), 500)], {}),
        ([EqualTo(("partition",), 0), LessThan(("offset",), -5)], {}),
        ([EqualTo(("partition",), 0), GreaterThanOrEqual(("stamp",), 450)], {0: (45, 100)}),
        ([EqualTo(("partition",), 0), GreaterThan(("stamp",), 450)], {0: (46, 100)}),
        ([EqualTo(("partition",), 0), LessThan(("stamp",), 450)], {0: (20, 45)}),
        ([EqualTo(("partition",), 0), LessThan(("stamp",), -1)], {}),
        (
            [
                EqualTo(("partition",), 0),
                GreaterThan(("stamp",), 300),
                LessThan(("stamp",), 600),
                LessThan(("offset",), 40),
            ],
            {0: (31, 40)},
        ),
    ],
)
def test_ranges_shrink_to_what_is_asked_for(
    filters: list[Filter], expected: dict[int, tuple[int, int]]
) -> None:
    assert narrowed(*filters) == expected


def test_rows_are_chosen_by_key_and_tag() -> None:
    raw = encode(
        [b"0", b"1", b"2", b"3"],
        keys=[b"a", None, b"b", b"a"],
        tags=["red", "red", None, "blue"],
        group=65_536,
    )
    batch = Batch(bytes(raw))
    rows = record_batch(batch, "t", 0)

    def passing(*filters: Filter) -> Any:
        where = selection(*filters).where
        return where.filter(rows).column("value").to_pylist() if where.wants(batch) else None

    assert passing() == [b"0", b"1", b"2", b"3"]
    assert passing(EqualTo(("key",), bytearray(b"a"))) == [b"0", b"3"]
    assert passing(EqualTo(("key",), b"a"), EqualTo(("tag",), "blue")) == [b"3"]
    assert passing(In(("tag",), ("red", "green"))) == [b"0", b"1"]
    assert passing(EqualTo(("key",), b"nobody")) == []
    assert passing(EqualTo(("tag",), "green")) is None, "told by the list of tags alone"


def test_what_cannot_be_kept_to_exactly_stays_with_spark() -> None:
    reader = FilteringReader(Options("t", (("broker", 1),)))
    mine = [EqualTo(("partition",), 1), IsNotNull(("offset",)), EqualTo(("key",), b"a")]
    theirs = [
        IsNotNull(("key",)),
        EqualTo(("value",), b"x"),
        EqualNullSafe(("key",), b"a"),
        Not(EqualTo(("partition",), 2)),
        GreaterThan(("partition",), 1),
        In(("offset",), (1, 2)),
        EqualTo(("key",), "text"),
        EqualTo(("headers", "x"), b"1"),
    ]
    left = reader.pushFilters([*mine, *theirs])
    assert [id(given) for given in left] == [id(given) for given in theirs]
