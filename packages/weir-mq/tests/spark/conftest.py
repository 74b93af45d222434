"""A node and a Spark session for the tests of this folder: both real, one of each a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import weir
from weir.spark.session import session

NODE = """
import sys
from weir.server.config.sections import Config, NodeConfig
from weir.server.processes.node import run
run(Config(node=NodeConfig(data=sys.argv[1], port=0)), lambda host, port: print(port, flush=True))
"""


#: What runs for a minute gains nothing from the JVM's optimising compiler.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True)
class Node:
    """A broker in a process of its own, and short words for what tests do with it."""

    port: int

    @property
    def url(self) -> str:
        return f"weir://127.0.0.1:{self.port}"

    def create(self, topic: str, partitions: int = 1) -> None:
        async def work() -> None:
            async with weir.connect(self.url) as client:
                await client.create_topic(topic, partitions)

        asyncio.run(work())

    def send(self, topic: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Publish messages one by one, each with any of `Producer.send`'s arguments."""

        async def work() -> None:
            async with weir.connect(self.url) as client, client.producer(topic) as producer:
                for message in messages:
                    producer.send(**message)

        asyncio.run(work())

    def fill(self, topic: str, partition: int, values: Sequence[bytes], **options: Any) -> None:
        """Publish many values to one partition in large batches."""

        async def work() -> None:
            async with (
                weir.connect(self.url) as client,
                client.producer(topic, partition=partition, **options) as producer,
            ):
                await producer.send_many(values)

        asyncio.run(work())


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker that all tests share, each with topics of its own."""
    folder = tmp_path_factory.mktemp("node")
    source = Path(weir.__file__).parents[1]
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(folder / "data")],
            env={"PYTHONPATH": str(source)},
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the node did not start: {(folder / 'node.log').read_text()}"
        yield Node(int(line))
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark takes ten seconds to start, so there is one."""
    started = session("weir-tests", cores=2, memory="1g", **QUICK)
    yield started
    started.stop()


@dataclass(frozen=True)
class Drained:
    """Rows of an availableNow query, and the rows of each of its micro-batches."""

    rows: list[Row]
    batches: list[int]


@dataclass(frozen=True)
class Stream:
    """Runs availableNow queries over one topic into Parquet, under one checkpoint."""

    spark: SparkSession
    url: str
    topic: str
    folder: Path

    def start(self, **options: object) -> StreamingQuery:
        reader = self.spark.readStream.format("weir")
        given = {"url": self.url, "topic": self.topic, **options}
        for name, value in given.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.format("parquet").trigger(availableNow=True)
        checkpoint = str(self.folder / "checkpoint")
        return writer.option("checkpointLocation", checkpoint).start(str(self.folder / "out"))

    def drain(self, **options: object) -> Drained:
        """Run to the end and return all that the sink holds, earlier runs included."""
        query = self.start(**options)
        assert query.awaitTermination(110)
        rows = self.spark.read.parquet(str(self.folder / "out")).orderBy("partition", "offset")
        batches = [progress.numInputRows for progress in query.recentProgress]
        return Drained(rows.collect(), [count for count in batches if count])


@pytest.fixture
def stream(
    spark: SparkSession, node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> Stream:
    """A stream over a topic named after the test; the test creates it."""
    return Stream(spark, node.url, request.node.name.replace("[", "-").strip("]"), tmp_path)
