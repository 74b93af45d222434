"""`spark.read.format("weir")` in a real Spark: bounds, push-down, and that they tile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.model.stamp import milliseconds_of

if TYPE_CHECKING:
    from conftest import Node, Stream

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
TOPIC = "table"


def numbered(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


@pytest.fixture(scope="module")
def stamps(spark: SparkSession, node: Node) -> list[int]:
    """Fill two partitions in turn, several batches each; return the stamps in order."""
    node.create(TOPIC, 2)
    for part in range(6):
        first = part // 2 * 100
        node.fill(TOPIC, part % 2, numbered(first, first + 100))
    tagged = [{"value": b"t%d" % n, "key": b"k%d" % (n % 3), "tag": "even" if n % 2 == 0 else "odd"}
              for n in range(30)]  # fmt: skip
    node.send(TOPIC, tagged)
    frame = spark.read.format("weir").option("url", node.url).option("topic", TOPIC).load()
    return sorted(row.stamp for row in frame.select("stamp").distinct().collect())


def table(spark: SparkSession, node: Node, **options: object) -> DataFrame:
    reader = spark.read.format("weir").option("url", node.url).option("topic", TOPIC)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_a_table_is_all_there_is(spark: SparkSession, node: Node, stamps: list[int]) -> None:
    rows = table(spark, node).collect()
    assert len(rows) == 630
    places = sorted((row.partition, row.offset) for row in rows)
    assert len(set(places)) == 630
    assert len(stamps) >= 7, "too few batches for the other tests to mean much"


def test_bounds_by_offset(spark: SparkSession, node: Node, stamps: list[int]) -> None:
    some = table(
        spark, node, startingOffsets='{"0": 50, "1": 290}', endingOffsets='{"0": 60, "1": 291}'
    )
    assert sorted(row.value for row in some.collect()) == sorted([*numbered(50, 60), b"290"])


def test_barriers_and_times_tile(spark: SparkSession, node: Node, stamps: list[int]) -> None:
    whole = sorted((r.partition, r.offset) for r in table(spark, node).collect())
    for barrier in stamps[1::3]:
        below = table(spark, node, endingBarrier=barrier).collect()
        above = table(spark, node, startingBarrier=barrier).collect()
        assert max(row.stamp for row in below) == barrier
        assert not above or min(row.stamp for row in above) > barrier
        assert sorted((r.partition, r.offset) for r in below + above) == whole
    moment = milliseconds_of(stamps[len(stamps) // 2])
    before = table(
        spark, node, endingTime=datetime.fromtimestamp(moment / 1_000, UTC).isoformat()
    ).collect()
    since = table(spark, node, startingTime=moment).collect()
    assert all(milliseconds_of(row.stamp) < moment for row in before)
    assert all(milliseconds_of(row.stamp) >= moment for row in since)
    assert sorted((r.partition, r.offset) for r in before + since) == whole


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


@pytest.mark.usefixtures("pushing")
def test_pushed_filters_change_the_cost_and_not_the_rows(
    spark: SparkSession, node: Node, stamps: list[int]
) -> None:
    middle = stamps[len(stamps) // 2]
    conditions = [
        (F.col("partition") == 1) & (F.col("offset") >= 250) & (F.col("offset") < 260),
        F.col("stamp") > middle,
        (F.col("tag") == "odd") & (F.col("key") == F.lit(b"k1")),
        F.col("tag").isin("even", "nobody") & (F.col("value") != F.lit(b"t0")),
        F.col("key").isNull() & (F.col("partition") == 0),
    ]
    for condition in conditions:
        plain = table(spark, node).where(condition).orderBy("partition", "offset").collect()
        pushed = table(spark, node, pushdown="true").where(condition)
        assert pushed.orderBy("partition", "offset").collect() == plain
        assert plain, condition
    # A range that is not wanted is not even fetched: no task is planned for it.
    none = table(spark, node, pushdown="true").where("partition = 7")
    assert none.rdd.getNumPartitions() == 0 or none.count() == 0


def test_a_stream_begins_and_ends_at_a_bound(stream: Stream, node: Node, stamps: list[int]) -> None:
    stream = type(stream)(stream.spark, stream.url, TOPIC, stream.folder)
    first, last = stamps[1], stamps[-2]
    drained = stream.drain(startingBarrier=first, endingBarrier=last, maxRowsPerBatch=150)
    assert {row.stamp for row in drained.rows} == set(stamps[2:-1])
    expected = table(stream.spark, node, startingBarrier=first, endingBarrier=last).orderBy(
        "partition", "offset"
    )
    assert drained.rows == expected.collect()
    assert len(drained.batches) > 1
    # What comes later than the end stays out of a second run, too.
    node.fill(TOPIC, 0, [b"late"])
    again = stream.drain(startingBarrier=first, endingBarrier=last)
    assert len(again.rows) == len(drained.rows)
