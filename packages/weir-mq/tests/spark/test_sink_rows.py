"""Rows into a topic, exactly once: what is written, what breaks, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from rigs.spark_node import Node
from weir import sync
from weir.model.topic import partition_for
from weir.server.interpreter import environment

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Pipe:
    """A topic that is read, and one that is written to, under one checkpoint."""

    spark: SparkSession
    node: Node
    folder: Path
    name: str

    @property
    def target(self) -> str:
        return f"{self.name}.out"

    def create(self, partitions: int = 2) -> None:
        self.node.create(self.name, 2)
        self.node.create(self.target, partitions)

    def source(self, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("weir").option("url", self.node.url)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.option("topic", self.name).load()

    def write(self, frame: DataFrame, **options: object) -> None:
        """Write all that is there now."""
        writer = frame.writeStream.format("weir").option("url", self.node.url)
        if "topic" not in frame.columns:
            writer = writer.option("topic", self.target)
        for name, value in options.items():
            writer = writer.option(name, str(value))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(110)

    def written(self) -> list[Row]:
        reader = self.spark.read.format("weir").option("url", self.node.url)
        found = reader.option("topic", self.target).load()
        return found.orderBy("partition", "offset").collect()

    def values(self) -> list[bytes]:
        return sorted(bytes(row.value) for row in self.written())


@pytest.fixture
def pipe(spark: SparkSession, node: Node, tmp_path: Path, request: pytest.FixtureRequest) -> Pipe:
    return Pipe(spark, node, tmp_path, request.node.name.replace("[", "-").strip("]"))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def test_a_stream_is_written_with_all_its_columns_and_failed_attempts_add_nothing(
    pipe: Pipe,
) -> None:
    def failing_once(batches: Iterator[Any]) -> Iterator[Any]:
        """Fail in the first attempt of each task, when all of its rows were handed on."""
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    pipe.create(3)
    pipe.node.send(pipe.name, [
        {"value": b"v%d" % number, "key": b"k%d" % number if number % 3 else None,
         "tag": "even" if number % 2 == 0 else None, "time": 1_700_000_000_000_000 + number,
         "headers": {"n": b"%d" % number, "twice": b"%d" % (2 * number)} if number % 4 else {}}
        for number in range(400)
    ])  # fmt: skip
    frame = pipe.source().select("value", "key", "tag", "time", "headers")
    pipe.write(frame.mapInArrow(failing_once, frame.schema))
    rows = {bytes(row.value): row for row in pipe.written()}
    assert len(rows) == 400 == len(pipe.written())
    for number in range(400):
        row = rows[b"v%d" % number]
        key = b"k%d" % number if number % 3 else None
        assert (None if row.key is None else bytes(row.key)) == key
        assert row.tag == ("even" if number % 2 == 0 else None)
        assert round(row.time.timestamp() * 1e6) % 1_000_000 == number
        pairs = {"n": b"%d" % number, "twice": b"%d" % (2 * number)} if number % 4 else {}
        assert {name: bytes(value) for name, value in row.headers.items()} == pairs
        if key is not None:
            assert row.partition == partition_for(key, 3)


def test_a_micro_batch_that_is_run_again_adds_nothing(pipe: Pipe) -> None:
    pipe.create()
    for partition in range(2):
        pipe.node.fill(pipe.name, partition, numbered(300, 300 * partition))
    frame = pipe.source(maxRowsPerBatch=200).select("value", "partition")
    pipe.write(frame)
    assert pipe.values() == numbered(600)
    commits = pipe.folder / "checkpoint" / "commits"
    newest = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    pipe.node.fill(pipe.name, 0, numbered(10, 600))
    pipe.write(frame)
    assert pipe.values() == numbered(610)
    stamps = {row.stamp for row in pipe.written()}
    assert len(stamps) == len([*commits.glob("[0-9]*")])
    with sync.connect(pipe.node.url) as w:
        (known,) = w.sinks(pipe.target)
    assert known.batch_id == int(newest.name) + 1


def test_a_table_is_written_once_where_it_has_an_id(pipe: Pipe) -> None:
    pipe.create()
    table = pipe.spark.range(100).select(F.col("id").cast("string").alias("value"))
    writer = table.write.format("weir").mode("append").option("url", pipe.node.url)
    writer = writer.option("topic", pipe.target)
    everything = sorted(b"%d" % number for number in range(100))
    writer.save()
    assert pipe.values() == everything
    writer.save()
    assert pipe.values() == sorted(everything * 2)
    for _ in range(2):
        writer.option("id", "nightly").save()
    assert pipe.values() == sorted(everything * 3)
    for _ in range(2):
        writer.option("id", "nightly").option("batch", "1").save()
    assert pipe.values() == sorted(everything * 4)


def test_rows_of_two_topics_leave_in_one_write(pipe: Pipe) -> None:
    pipe.node.create(pipe.name, 2)
    with sync.connect(pipe.node.url) as w:
        w.create_topic(pipe.target, scatter_with=[f"{pipe.name}.bad"])
        w.create_topic(f"{pipe.name}.bad", scatter_with=[pipe.target])
    pipe.node.fill(pipe.name, 0, numbered(100))
    is_bad = F.col("value").cast("string").endswith("7")
    topic = F.when(is_bad, f"{pipe.name}.bad").otherwise(pipe.target)
    pipe.write(pipe.source().select("value", topic.alias("topic")))
    assert pipe.values() == [one for one in numbered(100) if not one.endswith(b"7")]
    with sync.connect(pipe.node.url) as w:
        bad = [*w.reader(f"{pipe.name}.bad", follow=False)]
    assert [message.value for message in bad] == [b"%05d7" % number for number in range(10)]
    assert {row.stamp for row in pipe.written()} == {message.stamp for message in bad}


def test_what_cannot_be_written_is_refused_by_name(pipe: Pipe) -> None:
    pipe.create()
    pipe.node.fill(pipe.name, 0, numbered(10))
    with pytest.raises(Exception, match="there is no column 'value'"):
        pipe.write(pipe.source().select("key"))
    table = pipe.spark.range(1).select(F.col("id").cast("string").alias("value"))
    writer = table.write.format("weir").mode("overwrite").option("topic", pipe.target)
    with pytest.raises(Exception, match="a topic is never overwritten"):
        writer.save()
    assert pipe.values() == []


@pytest.mark.timeout(240)
def test_killed_between_staging_and_publishing_it_loses_and_repeats_nothing(pipe: Pipe) -> None:
    pipe.create()
    for partition in range(2):
        pipe.node.fill(pipe.name, partition, numbered(20_000, 20_000 * partition))
    given: list[Any] = [pipe.node.url, pipe.name, pipe.target, pipe.folder, 10_000]
    with (pipe.folder / "driver.log").open("w") as log:
        subprocess.run(
            [sys.executable, str(HERE / "write_topic.py"), *map(str, given)],
            env=environment(),
            stdout=log,
            stderr=log,
            timeout=150,
            check=False,
        )
    checkpoint = pipe.folder / "checkpoint"
    begun = [path.name for path in (checkpoint / "offsets").glob("[0-9]*")]
    done = [path.name for path in (checkpoint / "commits").glob("[0-9]*")]
    text = (pipe.folder / "driver.log").read_text()
    assert (sorted(begun), sorted(done)) == (["0", "1"], ["0"]), text
    assert len(pipe.values()) == 10_000
    pipe.write(pipe.source(maxRowsPerBatch=10_000).select("value"))
    assert pipe.values() == numbered(40_000)
