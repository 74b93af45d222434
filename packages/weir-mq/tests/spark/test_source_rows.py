"""`format("weir")` in a real Spark: what arrives, in which portions, and what is refused."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from weir.model.arrow import SCHEMA
from weir.spark.source import WeirDataSource

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
WHEN_US = 1_767_323_045_678_901


def numbered(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


def test_the_columns_are_those_of_the_model(spark: SparkSession) -> None:
    # Spark demands equality with the first record batch's schema.
    schema = WeirDataSource({"topic": "t"}).schema()
    assert to_arrow_schema(schema, timezone="UTC").equals(SCHEMA)
    assert schema.names == [
        "topic", "partition", "offset", "stamp", "time", "key", "tag", "value", "headers",
    ]  # fmt: skip


def test_every_column_of_a_mixed_batch_arrives(stream: Stream, node: Node) -> None:
    node.create(stream.topic)
    node.send(
        stream.topic,
        [
            {"value": b"a", "key": b"k", "tag": "red", "time": WHEN_US, "headers": {"h": b"1"}},
            {"value": b"", "key": None, "tag": None, "time": WHEN_US + 1},
            {"value": "ü".encode(), "key": b"", "tag": "blau", "headers": {"x": b"", "y": b"\xff"}},
        ],
    )
    rows = stream.drain().rows
    assert [row.value for row in rows] == [b"a", b"", "ü".encode()]
    assert [row.key for row in rows] == [b"k", None, b""]
    assert [row.tag for row in rows] == ["red", None, "blau"]
    assert [row.headers for row in rows] == [{"h": b"1"}, {}, {"x": b"", "y": b"\xff"}]
    assert [row.offset for row in rows] == [0, 1, 2]
    assert {(row.topic, row.partition) for row in rows} == {(stream.topic, 0)}
    stamps = [row.stamp for row in rows]
    assert stamps == sorted(stamps)
    assert stamps[0] > 0
    # collect() turns UTC instants into local time without a zone.
    assert rows[0].time.astimezone(UTC) == WHEN
    assert (rows[1].time - rows[0].time).microseconds == 1


def test_two_streams_agree(stream: Stream, node: Node, tmp_path: Path) -> None:
    node.create(stream.topic, partitions=3)
    for partition in range(3):
        node.fill(stream.topic, partition, numbered(0, 1_000 + partition), batch_bytes=1_000)
    other = type(stream)(stream.spark, node.url, stream.topic, tmp_path / "other")
    whole = stream.drain()
    assert len(whole.rows) == 3_003
    pieces = other.drain(maxRowsPerBatch=1_700, minPartitions=7, maxBytesPerFetch=4_000)
    assert pieces.rows == whole.rows
    assert (whole.batches, pieces.batches) == ([3_003], [1_700, 1_303])


def test_a_broker_batch_above_the_limit_is_delivered(stream: Stream, node: Node) -> None:
    # Counterexample 28: one batch of 500 messages, and never more than 200 may come at once.
    node.create(stream.topic)
    node.fill(stream.topic, 0, numbered(0, 500))
    drained = stream.drain(maxRowsPerBatch=200)
    assert drained.batches == [200, 200, 100]
    assert [int(row.value) for row in drained.rows] == [*range(500)]


def test_available_now_ends_and_a_restart_continues(stream: Stream, node: Node) -> None:
    node.create(stream.topic, partitions=2)
    node.fill(stream.topic, 0, numbered(0, 10))
    assert stream.drain().batches == [10]
    assert stream.drain().batches == []
    node.fill(stream.topic, 1, numbered(0, 5))
    node.fill(stream.topic, 0, numbered(10, 12))
    # The checkpoint decides where to go on; startingOffsets is for new queries.
    again = stream.drain(startingOffsets="latest")
    assert again.batches == [7]
    assert [(row.partition, int(row.value)) for row in again.rows] == [
        *((0, number) for number in range(12)),
        *((1, number) for number in range(5)),
    ]


def test_a_query_begins_where_it_is_told(stream: Stream, node: Node) -> None:
    node.create(stream.topic, partitions=2)
    node.fill(stream.topic, 0, numbered(0, 10))
    node.fill(stream.topic, 1, numbered(0, 10))
    rows = stream.drain(startingOffsets='{"0": 8}').rows
    assert [row.offset for row in rows] == [8, 9, *range(10)]


def test_a_running_query_gets_what_is_published_later(
    spark: SparkSession, node: Node, stream: Stream
) -> None:
    node.create(stream.topic)
    reader = spark.readStream.format("weir").option("host", "127.0.0.1").option("PORT", node.port)
    seen: list[bytes] = []
    arrived = threading.Event()

    def collect(batch: object, _: int) -> None:
        seen.extend(row.value for row in batch.select("value").collect())  # type: ignore[attr-defined]
        if len(seen) >= 4:
            arrived.set()

    query = reader.option("topic", stream.topic).load().writeStream.foreachBatch(collect).start()
    try:
        node.fill(stream.topic, 0, numbered(0, 2))
        node.fill(stream.topic, 0, numbered(2, 4))
        assert arrived.wait(110), query.exception()
    finally:
        query.stop()
    assert seen == numbered(0, 4)


def test_a_missing_topic_is_a_clear_error(stream: Stream) -> None:
    query = stream.start()
    with pytest.raises(StreamingQueryException, match=f"has no topic '{stream.topic}'") as caught:
        query.awaitTermination(110)
    assert "weir topic create" in str(caught.value)


def test_a_misspelt_option_is_refused_at_once(stream: Stream) -> None:
    with pytest.raises(AnalysisException, match="has no option 'startingoffset'"):
        stream.start(startingOffset="latest")
