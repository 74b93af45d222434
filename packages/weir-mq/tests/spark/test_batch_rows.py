"""`spark.read.format("weir")` in a real Spark: bounds that tile, and selections."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

from weir.order.clock import milliseconds_of

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream

TOPIC = "table"


def pushed() -> type[DataSource]:
    """Return a source of ten rows, every second one tagged a, that takes a filter over from Spark.

    Its classes are made here, so that Python workers, which lack this module, get them whole.
    """

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.tags = "ab" * 5

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
            for one in filters:
                if isinstance(one, EqualTo) and one.attribute == ("tag",):
                    self.tags = "".join(tag for tag in self.tags if tag == one.value)
                else:
                    yield one

        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            return ((tag,) for tag in self.tags)

    class Pushed(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushed"

        def schema(self) -> str:
            return "tag string"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return Pushed


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


def test_options_select_what_a_condition_would(
    spark: SparkSession, node: Node, stamps: list[int]
) -> None:
    key, tag, partition = F.col("key"), F.col("tag"), F.col("partition")
    selections = [
        ({"partitions": "[1]"}, partition == 1),
        ({"tags": '["odd"]'}, tag == "odd"),
        ({"tags": '[""]', "partitions": "[0]"}, tag.isNull() & (partition == 0)),
        ({"tags": '["even", "nobody"]', "keys": '["k1", {"hex": "6B32"}]'},
         (tag == "even") & key.isin(F.lit(b"k1"), F.lit(b"k2"))),
        ({"keys": "[null]"}, key.isNull()),
    ]  # fmt: skip
    for options, condition in selections:
        expected = table(spark, node).where(condition).orderBy("partition", "offset").collect()
        assert expected, options
        found = table(spark, node, **options).orderBy("partition", "offset").collect()
        assert found == expected, options


def test_columns_are_those_that_are_named(
    spark: SparkSession, node: Node, stamps: list[int]
) -> None:
    for columns, options in (
        (["value"], {}),
        (["offset", "partition", "headers"], {"tags": '["odd"]', "keys": '["k1", "k2"]'}),
        (["stamp", "time", "key", "tag", "topic"], {"partitions": "[1]"}),
    ):
        found = table(spark, node, columns=json.dumps(columns), **options)
        assert found.columns == columns
        expected = table(spark, node, **options).select(*columns)
        assert found.count() == expected.count() > 0
        assert found.exceptAll(expected).count() == 0 if "headers" not in columns else True


def test_one_frame_gives_each_query_its_own_rows(
    spark: SparkSession, node: Node, stamps: list[int]
) -> None:
    """Spark plans one read for a loaded frame, and may ask for it once for all its queries."""
    for options in ({}, {"tags": '["odd", "even"]'}, {"keys": '["k0", "k1", "k2"]'}):
        frame = table(spark, node, **options)
        total = 630 if not options else 30
        assert frame.where("tag = 'odd'").count() == 15
        assert frame.count() == total
        assert frame.where("partition = 7").count() == 0
        odd, even = frame.where("tag = 'odd'"), frame.where("tag = 'even'")
        assert odd.union(even).count() == 30
        assert odd.alias("a").join(frame.alias("b"), ["partition", "offset"]).count() == 15
        assert even.crossJoin(odd.select(F.col("offset").alias("o"))).count() == 15 * 15
        kept = frame.cache()
        assert kept.count() == total
        assert kept.where("tag = 'even'").count() == 15
        assert odd.count() == 15
        kept.unpersist()


def test_pushdown_is_refused_with_what_works(spark: SparkSession, node: Node) -> None:
    with pytest.raises(AnalysisException, match="load options keys, tags or partitions"):
        table(spark, node, pushdown="true")


def test_a_filter_that_is_pushed_down_still_reaches_other_queries(spark: SparkSession) -> None:
    """Why push-down is refused: once this PySpark plans each query by itself, it can come back."""
    spark.dataSource.register(pushed())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("pushed").load()
        assert frame.where("tag = 'a'").count() == 5
        leaks = frame.count() == 5
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert leaks, "PySpark plans per query: let format('weir') take filters over again"


def test_a_stream_selects_and_its_checkpoint_remembers(
    stream: Stream, node: Node, stamps: list[int]
) -> None:
    stream = type(stream)(stream.spark, stream.url, TOPIC, stream.folder)
    odd = {"tags": '["odd"]', "keys": '["k0"]'}
    expected = table(stream.spark, node, **odd).orderBy("partition", "offset").collect()
    drained = stream.drain(**odd, maxRowsPerBatch=100)
    assert drained.rows == expected
    assert len(expected) == 5
    with pytest.raises(StreamingQueryException, match="other options keys, tags or partitions"):
        stream.drain(tags='["even"]', keys='["k0"]')
    node.send(TOPIC, [{"value": b"new", "key": b"k0", "tag": tag} for tag in ("odd", "even")])
    again = stream.drain(**odd)
    assert [row.value for row in again.rows if row not in expected] == [b"new"]


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
