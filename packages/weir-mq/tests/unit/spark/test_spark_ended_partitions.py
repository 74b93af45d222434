"""Micro-batches at barriers over a topic of which a partition ends, on a node in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from weir import sync, testing
from weir.spark import blocking_client
from weir.spark.options import Options
from weir.spark.source import StreamReader, WeirDataSource

PARTITIONS = 3


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node
        blocking_client.forget(Options.parse({"topic": "t", "url": node.url}).hosts)


def read(reader: StreamReader, start: dict[str, object]) -> tuple[dict[str, object], list[bytes]]:
    """Return where the next micro-batch ends, and what it has."""
    end = reader.latestOffset(start, ReadAllAvailable())
    found: list[bytes] = []
    for task in reader.partitions(start, end) if end != start else ():
        for batch in reader.read(task):
            found += batch.column("value").to_pylist()
    return end, found


@pytest.mark.parametrize("order", ["total", "partition"])
def test_batches_go_on_when_a_partition_has_ended(node: testing.Node, order: str) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, order)
        options = {"topic": "t", "url": node.url, "startingOffsets": "earliest"}
        reader = WeirDataSource(options).streamReader(WeirDataSource(options).schema())
        assert isinstance(reader, StreamReader)
        at = reader.initialOffset()
        for number in range(9):
            w.publish("t", b"%d" % number, partition=number % PARTITIONS)
        at, found = read(reader, at)
        assert sorted(found) == [b"%d" % number for number in range(9)]
        w.publish("t", b"last", partition=2)
        w.end_partition("t", 2)
        w.publish("t", b"behind", partition=1)
        at, found = read(reader, at)
        assert sorted(found) == [b"behind", b"last"]
        assert read(reader, at) == (at, [])
        w.publish("t", b"more", partition=0)
        at, found = read(reader, at)
        assert found == [b"more"]
