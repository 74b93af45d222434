"""A Spark query ends with an error where a later lineage does not have all that it has read. That
a core set was promoted is played by a node in memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from rigs.promotions import set_lineages
from rigs.spark_node import Stream
from weir import sync, testing
from weir.model.ids import group_of


def test_a_query_that_has_read_beyond_the_fork_fails_and_says_how_to_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    with testing.node() as node, sync.connect(node.url) as w:
        topic = w.create_topic("t", 2)
        for number in range(8):
            w.publish("t", b"%d" % number, partition=number % 2)
        stream = Stream(spark, node.url, "t", tmp_path / "before")
        assert len(stream.drain().rows) == 8
        set_lineages(node, group_of(topic.id, 1), (1, 3))
        w.publish("t", b"8", partition=1)
        with pytest.raises(StreamingQueryException) as caught:
            stream.drain()
        assert "OffsetOutOfRange: the query has read t/1 up to 4" in str(caught.value)
        told = '{"0": 4, "1": 3}'
        assert f"startingOffsets {told}" in str(caught.value)
        behind = Stream(spark, node.url, "t", tmp_path / "behind").drain(startingOffsets=told)
        assert [(row.partition, row.offset) for row in behind.rows] == [(1, 3), (1, 4)]
