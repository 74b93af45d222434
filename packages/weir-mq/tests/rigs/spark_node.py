"""A node and a Spark session for the tests of this folder: both real, one of each a process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import weir


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


@dataclass(frozen=True)
class Drained:
    """Rows of an availableNow query, and the rows of each of its micro-batches."""

    rows: list[Row]
    batches: list[int]


@dataclass(frozen=True)
class Stream:
    """Runs availableNow queries over one topic into Parquet, under one checkpoint; without a topic,
    options say what they read.
    """

    spark: SparkSession
    url: str
    topic: str
    folder: Path

    def start(self, **options: object) -> StreamingQuery:
        reader = self.spark.readStream.format("weir")
        given = {"url": self.url, **({"topic": self.topic} if self.topic else {}), **options}
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
