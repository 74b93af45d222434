"""What a query in a real Spark reads, and what it is told of that it cannot read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from weir import sync, testing
from weir.spark import count_lost, typed
from weir.spark.rows import TIME_MAX, TIME_MIN

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream

HOUR = 3_600


@pytest.fixture
def memory() -> Iterator[testing.Node]:
    """A node whose time moves as told, so that retention deletes."""
    with testing.node() as node:
        yield node


def load(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.read.format("weir").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def counted(query: StreamingQuery) -> list[dict[str, Any]]:
    """Wait for the end; return what was counted of each micro-batch."""
    assert query.awaitTermination(110)
    rows = [progress.observedMetrics.get("weir_lost") for progress in query.recentProgress]
    return [row.asDict() for row in rows if row is not None]


def collect(frame: DataFrame, folder: Path) -> StreamingQuery:
    writer = count_lost(frame).writeStream.format("parquet").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(folder / "c")).start(str(folder / "out"))


def test_all_limits_hold_at_once(stream: Stream, node: Node) -> None:
    node.create(stream.topic)
    node.fill(stream.topic, 0, [b"x" * 1_000] * 100)
    drained = stream.drain(maxBytesPerBatch=40_000, maxRowsPerBatch=90, minRowsPerBatch=50)
    assert sum(drained.batches) == 100
    assert 2 < len(drained.batches) < 6, drained.batches
    assert [row.offset for row in drained.rows] == [*range(100)]


def test_retention_that_passes_a_query_is_told(
    spark: SparkSession, memory: testing.Node, tmp_path: Path
) -> None:
    with sync.connect(memory.url) as w:
        w.create_topic("t", partitions=2, retention="1h")
        w.publish("t", b"read", partition=0)
        reader = spark.readStream.format("weir").option("url", memory.url).option("topic", "t")
        on = reader.option("onDataLoss", "earliest").load()
        assert on.columns[-1] == "lost"
        nothing = {"lost": 0, "gaps": 0, "times_out_of_range": 0}
        assert counted(collect(on, tmp_path)) == [nothing]
        for partition in (0, 0, 0, 1):
            w.publish("t", b"gone", partition=partition)
        memory.advance(2 * HOUR)
        w.publish("t", b"there", partition=0)
        memory.advance(60)
        while w.parts("t")[0].start != 4 or w.parts("t")[1].start != 1:
            memory.advance(60)
        # It must not go on by itself.
        strict = reader.option("onDataLoss", "fail").load()
        strict = strict.withColumn("lost", F.lit(None).cast("long"))
        with pytest.raises(StreamingQueryException, match=r"are gone .*onDataLoss.*earliest"):
            counted(collect(strict, tmp_path))
        # What it has planned is done as it was planned, and then it sees the gaps.
        told = counted(collect(on, tmp_path))
        assert {name: sum(row[name] for row in told) for name in nothing} == {
            "lost": 4, "gaps": 2, "times_out_of_range": 0,
        }  # fmt: skip
        rows = spark.read.parquet(str(tmp_path / "out")).orderBy("partition", "offset").collect()
        assert [(row.partition, row.offset, row.lost, row.value) for row in rows] == [
            (0, 0, None, b"read"),
            (0, 1, 3, None),
            (0, 4, None, b"there"),
            (1, 0, 1, None),
        ]
        assert all(row.topic == "t" for row in rows)


def test_times_that_spark_cannot_hold_are_null_and_counted(
    spark: SparkSession, stream: Stream, node: Node, tmp_path: Path
) -> None:
    node.create(stream.topic)
    times = [0, TIME_MIN, TIME_MIN - 1, TIME_MAX, TIME_MAX + 1, 1 << 62]
    node.send(stream.topic, [{"value": b"%d" % time, "time": time} for time in times])
    reader = spark.readStream.format("weir").option("url", node.url)
    frame = reader.option("topic", stream.topic).load()
    assert counted(collect(frame, tmp_path)) == [{"times_out_of_range": 3}]
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset")
    seconds = found.select(F.unix_micros("time").alias("time")).collect()
    assert [row.time for row in seconds] == [0, TIME_MIN, None, TIME_MAX, None, None]
    rows = load(spark, node.url, topic=stream.topic).where("time is null").collect()
    assert {row.value for row in rows} == {b"%d" % times[at] for at in (2, 4, 5)}
    assert all(row.time.astimezone(UTC) == datetime(1970, 1, 1, tzinfo=UTC) for row in (
        load(spark, node.url, topic=stream.topic).where("offset = 0").collect()
    ))  # fmt: skip


def test_a_host_without_an_address_is_named(stream: Stream) -> None:
    query = stream.start(url="weir://no-such-host.invalid")
    with pytest.raises(StreamingQueryException, match=r"no-such-host\.invalid has no address"):
        query.awaitTermination(60)
    with pytest.raises(Exception, match=r"no-such-host\.invalid has no address"):
        load(stream.spark, "weir://no-such-host.invalid", topic="t").count()


def test_a_frame_is_a_snapshot(spark: SparkSession, node: Node) -> None:
    """Its first action sees what is there, and all later ones the same."""
    node.create("snapshot", 2)
    node.fill("snapshot", 0, [b"a"] * 3)
    frame = load(spark, node.url, topic="snapshot")
    assert frame.count() == 3
    node.fill("snapshot", 1, [b"b"] * 4)
    assert frame.count() == 3
    assert frame.where("partition = 1").count() == 0
    assert frame.union(frame).count() == 6
    assert frame.groupBy("partition").count().collect()[0]["count"] == 3
    assert load(spark, node.url, topic="snapshot").count() == 7


def test_a_value_of_50_mib_is_read(spark: SparkSession, node: Node) -> None:
    node.create("large")
    size = 50 << 20
    with sync.connect(node.url) as w:
        w.publish("large", b"x" * size)
        w.publish("large", b"small")
    frame = load(spark, node.url, topic="large")
    assert [row.size for row in frame.select(F.length("value").alias("size")).collect()] == [
        size,
        5,
    ]
    less = load(spark, node.url, topic="large", maxValueBytes=size - 1)
    with pytest.raises(Exception, match="over maxValueBytes=52,428,799: raise that option"):
        less.count()
    null = load(spark, node.url, topic="large", maxValueBytes=size - 1, largeValues="null")
    assert [row.value for row in null.collect()] == [None, b"small"]


def test_topics_of_a_prefix_are_read_together(stream: Stream, node: Node) -> None:
    stream = type(stream)(stream.spark, stream.url, "", stream.folder)
    with sync.connect(node.url) as w:
        for name in ("locks.a", "locks.b"):
            w.create_topic(name, 2)
            for number in range(10):
                w.publish(name, f"{name} {number}", partition=number % 2)
        given = {"topics": json.dumps(["locks.*"]), "maxRowsPerBatch": 7}
        first = stream.drain(**given)
        assert len(first.rows) == sum(first.batches) == 20
        assert max(first.batches) <= 7
        w.create_topic("locks.c")
        w.publish("locks.c", "locks.c 0")
        w.publish("locks.a", "locks.a 10", partition=1)
        second = stream.drain(**given)
        assert sum(second.batches) == 2
        values = [row.value.decode() for row in second.rows]
        assert sorted(values) == sorted(
            [*(f"locks.{x} {n}" for x in "ab" for n in range(10)), "locks.a 10", "locks.c 0"]
        )
        assert all(row.value.decode().startswith(row.topic) for row in second.rows)
        frame = load(stream.spark, node.url, topics='["locks.*"]', columns='["topic"]')
        counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
        assert counts == {"locks.a": 11, "locks.b": 10, "locks.c": 1}
        w.delete_topic("locks.b")
        with pytest.raises(StreamingQueryException, match=r"'locks\.b'.*it was deleted"):
            stream.drain(**given)


def test_names_that_spark_cannot_tell_apart_are_refused(spark: SparkSession) -> None:
    from weir.errors import BadRequest
    from weir.schema import Schema
    from weir.schema.fields import BadSchema

    text = {"type": "object", "properties": {"id": {"type": "integer"}, "ID": {"type": "string"}}}
    twice = Schema("json", json.dumps(text).encode())
    values = spark.createDataFrame([(b"{}",)], "value binary")
    with pytest.raises(BadSchema, match="fields 'id' and 'ID', and Spark takes names in any case"):
        typed(values, twice)
    del text["properties"]["ID"]
    fine = Schema("json", json.dumps(text).encode())
    with pytest.raises(BadRequest, match="has a column 'reason' already"):
        typed(values.withColumn("Reason", F.lit("")), fine)
    both = values.select("value", F.col("value").alias("Value"))
    with pytest.raises(BadRequest, match="2 columns 'value': rename all but one"):
        typed(both, fine)
    with pytest.raises(BadRequest, match="no column lost"):
        count_lost(values)


def test_a_number_that_is_none_is_bad(spark: SparkSession) -> None:
    from weir.schema import Schema

    text = {"type": "object", "properties": {"x": {"type": "number"}}}
    schema = Schema("json", json.dumps(text).encode())
    bodies = [b'{"x": 1.5}', b'{"x": NaN}', b'{"x": Infinity}', b'{"x": "NaN"}']
    values = spark.createDataFrame([(body,) for body in bodies], "value binary")
    for checked in (False, True):
        found = typed(values, schema, checked=checked).collect()
        assert [row.data and row.data.x for row in found] == [1.5, None, None, None], checked
        assert [row.reason is None for row in found] == [True, False, False, False]
