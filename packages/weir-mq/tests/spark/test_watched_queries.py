"""Watched queries on a real Spark and a real node: the page, and readers with names."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from weir import sync
from weir.spark import watch
from weir.spark.monitoring.listener import Watch

if TYPE_CHECKING:
    from rigs.spark_node import Node

SECONDS = 60.0


def figures(watching: Watch) -> dict[str, float]:
    """What the page says now, by name and query."""
    with urllib.request.urlopen(watching.url, timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'^weir_spark_(\w+)\{query="([^"]+)"[^}]*\} (\S+)$', text, re.MULTILINE)
    return {f"{name} {query}": float(value) for name, query, value in found}


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_query_is_a_reader_whose_lag_the_broker_counts(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    with sync.connect(node.url) as client:
        client.create_topic("watched", 2, order="total")
        node.send("watched", [{"value": b"%d" % n, "partition": n % 2} for n in range(10)])
        with watch(spark, node.url, port=0, every=0.2) as watching:
            query = (
                spark.readStream.format("weir").option("url", node.url)
                .option("topic", "watched").option("maxRowsPerBatch", 4).load()
                .writeStream.queryName("doors by hour").format("noop")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(processingTime="100 milliseconds").start()
            )  # fmt: skip
            name = "spark.doors-by-hour"
            try:
                wait_until(lambda: figures(watching).get(f"rows_total {name}") == 10)
                wait_until(lambda: figures(watching).get(f"lag_seconds {name}") == 0)
                found = figures(watching)
                assert found[f"running {name}"] == 1
                assert found[f"batches_total {name}"] >= 1
                assert found[f"lag_messages {name}"] == 0
                assert 0 <= found[f"barrier_age_seconds {name}"] < SECONDS
                # All of it was read, by a reader that holds nothing in hand.
                (reader,) = client.clusters("watched")
                assert (reader.name, reader.lag, reader.consumers) == (name, 0, 0)
                assert [share.cursor for share in reader.shares] == [5, 5]
            finally:
                query.stop()
            wait_until(lambda: figures(watching)[f"running {name}"] == 0)
            # It does not run, and the broker counts on.
            node.send("watched", [{"value": b"late", "partition": 1}] * 3)
            wait_until(lambda: figures(watching).get(f"lag_messages {name}") == 3)
            wait_until(lambda: figures(watching)[f"lag_seconds {name}"] > 0)
            assert figures(watching)[f"failures_total {name}"] == 0
    with pytest.raises(OSError, match="refused"):
        figures(watching)


def test_a_query_that_fails_is_seen_to_have_failed(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    node.create("failing")
    node.send("failing", [{"value": b"no number"}])
    with watch(spark, node.url, readers=False, every=0.2) as watching:
        rows = spark.readStream.format("weir").option("url", node.url).option("topic", "failing")
        query = (
            rows.load().selectExpr("if(offset < 9, raise_error('bad'), 'right') as text")
            .writeStream.format("noop").queryName("failing").trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(SECONDS)
        failed = 'weir_spark_failures_total{query="spark.failing"} 1'
        wait_until(lambda: failed in watching.text().splitlines())
    with sync.connect(node.url) as client:
        assert client.clusters("failing") == []
