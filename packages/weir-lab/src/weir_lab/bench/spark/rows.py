"""A topic into Spark's `noop` sink, and rows into a topic, beside the least that any Python source
and sink cost, in one run.

Two queries read the same record batches, all columns, in as many tasks; weir's come from a node and
are checked against CRC and hash. A third reads weir's column `value` alone. Four more decode values
of a schema to typed columns. Two write the same rows, out of files: into a topic, where all is on
disk before it counts, and into a Python sink that discards them. A first query of each kind warms
Spark up, uncounted.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from weir.client.client import connect
from weir.errors import WeirError
from weir.model.arrow import SCHEMA, record_batch
from weir.model.limits import BATCH_BYTES_MAX, MIB
from weir.schema import Schema
from weir.schema.fields import Format
from weir_lab.bench.flow import shared_out
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.machine import filesystem_of
from weir_lab.bench.harness.payload import SIZE_MIN
from weir_lab.bench.harness.produce import Plan
from weir_lab.bench.harness.producers import Producers
from weir_lab.bench.sides.own import Own, chunk_of, running_own
from weir_lab.bench.spark import following
from weir_lab.bench.spark.bare import NAME, BareSource
from weir_lab.bench.spark.following import Followed, Following
from weir_lab.bench.spark.typed import FORMATS, fill, schema_of, topic_of

TOPIC = "spark"
WRITTEN = "spark-written"
#: The queries that write, into a topic and into nothing.
SINK, DISCARDED = "sink", "discarded"
PARTITIONS_MAX = 16
_WINDOW = 32

Say = Callable[[str], None]


class SparkParts(Protocol):
    """What the Spark room gives, which this one must not import."""

    def session(self) -> Any:
        """Return a session that knows `format("weir")`."""

    def typed(self, frame: Any, schema: Schema) -> Any:
        """Add the columns of a schema to a frame."""

    def combined(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join small record batches as the source does."""


class RowsDiffer(WeirError):
    """A query read another number of rows than there are; the message says how many."""


class Settings(msgspec.Struct, frozen=True):
    """`messages` of `size` bytes over `partitions`, so in as many tasks; `rounds` are counted. So
    many values of each format are `typed`, and so many rows `written`; 0: none are.
    """

    messages: int = 4_000_000
    size: int = 100
    partitions: int = 2
    rounds: int = 3
    deadline_s: float = 300.0
    folder: str | None = None
    typed: int = 600_000
    written: int = 2_000_000
    #: Of queries that follow a topic.
    following: Following = Following()

    @property
    def written_a_task(self) -> int:
        """How many rows each task writes."""
        return min(self.written, self.messages) // self.partitions

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise ValueError(f"partitions={self.partitions}: it must be 1 to {PARTITIONS_MAX}")
        self.following.check()
        if self.typed < 0 or self.written < 0:
            raise ValueError("typed and written must be 0 or more")
        if self.messages < self.partitions or self.rounds < 1 or self.deadline_s <= 0:
            raise ValueError("messages, rounds and deadline are too small")
        if not SIZE_MIN <= self.size <= BATCH_BYTES_MAX // 2:
            raise ValueError(f"size={self.size}: it must be {SIZE_MIN} to {BATCH_BYTES_MAX // 2:,}")


class Query(msgspec.Struct, frozen=True):
    """One query: its micro-batches' rows a second, and those of its whole life."""

    source: str
    rows: int
    rows_per_s: float
    query_rows_per_s: float


class Result(msgspec.Struct, frozen=True):
    """Medians over the rounds; `ratio` is weir's rate over the bare source's, `columns_ratio` that
    of the column `value` alone over all nine; `typed_rows_per_s` are those of typed columns, by
    format.

    `rows_per_s` counts the time of micro-batches, `query_rows_per_s` from start to end of a query.
    """

    messages: int
    rows_per_s: float
    query_rows_per_s: float
    bare_rows_per_s: float
    bare_query_rows_per_s: float
    ratio: float
    columns_rows_per_s: float
    columns_ratio: float
    typed_rows_per_s: dict[str, float]
    sink_rows_per_s: float | None
    sink_ratio: float | None
    #: p99 from the send of a message until a query that follows has it, by the topic's order.
    freshness_p99_ms: float | None
    total_freshness_p99_ms: float | None
    #: How many times as long a micro-batch takes over 64 partitions as over one.
    partitions_ratio: float | None
    one_partition_ms: float | None
    many_partitions_ms: float | None
    warm_up_queries_excluded: int
    filesystem: str | None
    queries: list[Query]


def measure(settings: Settings, parts: SparkParts, say: Say) -> Result:
    """Fill a topic, keep its record batches in files, run queries over both in turns.

    Raises `RowsDiffer`, `ValueError` for settings that make no sense, and what Spark raises.
    """
    settings.check()
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-", dir=settings.folder) as name,
        running_own(settings.folder) as side,
    ):
        folder = Path(name)
        run(_fill(side, settings))
        run(_fill_typed(side, settings))
        files = run(_kept(side, settings, parts, folder))
        say(f"{settings.messages:,} messages are there; starting Spark")
        spark = parts.session()
        spark.dataSource.register(BareSource)

        def stream(topic: str = TOPIC) -> Any:
            return (
                spark.readStream.format("weir").option("topic", topic).option("url", side.node.url)
            )

        def typed(format: Format) -> Any:
            values = stream(topic_of(format)).option("columns", '["value"]').load()
            return parts.typed(values, schema_of(format)).select("data", "reason")

        bare = spark.readStream.format(NAME).option("files", "\n".join(files))
        frames: dict[str, Any] = {
            "weir": stream().load(),
            "columns": stream().option("columns", '["value"]').load(),
            "bare": bare.load(),
            **{format: typed(format) for format in FORMATS if settings.typed},
        }
        if settings.written_a_task:
            some = bare.option("rows", settings.written_a_task).load().select("value")
            frames |= {SINK: some, DISCARDED: some}
        if settings.typed:
            _check_typed(spark, side, parts, settings)

        def query(source: str, frame: Any) -> Query:
            return _query(source, frame, settings, folder, side.node.url)

        for source, frame in frames.items():
            query(source, frame)
        say("warmed up; these queries are not counted")
        queries = []
        for _ in range(settings.rounds):
            for source, frame in frames.items():
                queries.append(query(source, frame))
                say(f"{source}: {queries[-1].rows_per_s:,.0f} rows/s")
        run(_check_written(side, settings))
        followed = following.measure(spark, side.node.url, settings.following, folder)
        return _result(settings, side, queries, len(frames), followed)


async def _fill(side: Own, settings: Settings) -> None:
    async with connect(side.node.url, name="weir-bench") as client:
        await client.create_topic(TOPIC, settings.partitions)
        await client.create_topic(WRITTEN, settings.partitions)
    counts = shared_out(settings.messages, settings.partitions)
    shares = [(number, count, number) for number, count in enumerate(counts)]
    plan = Plan(
        side.node.url,
        TOPIC,
        shares,
        settings.size,
        chunk_of(settings.size),
        _WINDOW,
        settings.deadline_s,
    )
    async with Producers([plan]) as producers:
        await producers.ready()
        producers.go()
        await producers.done()


async def _fill_typed(side: Own, settings: Settings) -> None:
    if not settings.typed:
        return
    async with connect(side.node.url, name="weir-bench") as client:
        for format in FORMATS:
            await fill(client, format, settings.typed, settings.partitions)


def _check_typed(spark: Any, side: Own, parts: SparkParts, settings: Settings) -> None:
    """Raise `RowsDiffer` unless each value of each format is there, and fits."""
    for format in FORMATS:
        table = spark.read.format("weir").option("topic", topic_of(format))
        frame = parts.typed(table.option("url", side.node.url).load(), schema_of(format))
        good = frame.where("reason is null and data.hub >= 1000000").count()
        if good != settings.typed:
            raise RowsDiffer(f"{format}: {good:,} of {settings.typed:,} values fit")


async def _kept(side: Own, settings: Settings, parts: SparkParts, folder: Path) -> list[str]:
    """Write each partition's record batches to a file, joined as the source joins them."""
    found: dict[int, list[pa.RecordBatch]] = {n: [] for n in range(settings.partitions)}
    async with (
        asyncio.timeout(settings.deadline_s),
        connect(side.node.url, name="weir-bench") as client,
        client.reader(TOPIC, max_bytes=8 * MIB, follow=False) as reader,
    ):
        async for one in reader.batches():
            batch = record_batch(one.batch, TOPIC, one.partition, one.skip, len(one))
            found[one.partition].append(batch)
    paths = []
    for partition, batches in found.items():
        path = folder / f"partition-{partition}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in parts.combined(batches):
                writer.write_batch(batch)
        paths.append(str(path))
    return paths


async def _check_written(side: Own, settings: Settings) -> None:
    """Raise `RowsDiffer` unless each row of each query is in the topic, once."""
    expected = settings.written_a_task * settings.partitions * (settings.rounds + 1)
    async with connect(side.node.url, name="weir-bench") as client:
        there = sum(one.messages for one in await client.topic_stats(WRITTEN))
    if there != expected:
        raise RowsDiffer(f"{there:,} of {expected:,} rows are in the topic that was written")


def _query(source: str, frame: Any, settings: Settings, folder: Path, url: str) -> Query:
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        writer = frame.writeStream.trigger(availableNow=True)
        if source == SINK:
            writer = writer.format("weir").option("url", url).option("topic", WRITTEN)
        else:
            writer = writer.format(NAME if source == DISCARDED else "noop")
        began = time.perf_counter()
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            if not query.awaitTermination(int(settings.deadline_s)):
                raise WeirError(f"a query did not end within {settings.deadline_s:g} s")
        finally:
            query.stop()
        seconds = time.perf_counter() - began
        progress = [one for one in query.recentProgress if one.numInputRows]
    rows = sum(one.numInputRows for one in progress)
    expected = settings.typed if source in FORMATS else settings.messages
    if source in (SINK, DISCARDED):
        expected = settings.written_a_task * settings.partitions
    if rows != expected:
        raise RowsDiffer(f"{source}: Spark read {rows:,} of {expected:,} rows")
    busy = sum(one.durationMs["triggerExecution"] for one in progress) / 1e3
    return Query(source, rows, rows / busy, rows / seconds)


def _result(
    settings: Settings, side: Own, queries: list[Query], warm_ups: int, followed: Followed
) -> Result:
    def middle(source: str, figure: Callable[[Query], float]) -> float:
        return median(figure(one) for one in queries if one.source == source)

    own = middle("weir", lambda one: one.rows_per_s)
    bare = middle("bare", lambda one: one.rows_per_s)
    columns = middle("columns", lambda one: one.rows_per_s)
    sink = discarded = None
    if settings.written_a_task:
        sink = middle(SINK, lambda one: one.rows_per_s)
        discarded = middle(DISCARDED, lambda one: one.rows_per_s)
    return Result(
        settings.messages,
        own,
        middle("weir", lambda one: one.query_rows_per_s),
        bare,
        middle("bare", lambda one: one.query_rows_per_s),
        own / bare,
        columns,
        columns / own,
        {one: middle(one, lambda q: q.rows_per_s) for one in FORMATS if settings.typed},
        sink,
        sink / discarded if sink and discarded else None,
        followed.freshness_p99_ms,
        followed.total_freshness_p99_ms,
        followed.partitions_ratio,
        followed.one_partition_ms,
        followed.many_partitions_ms,
        warm_ups,
        filesystem_of(side.folder),
        queries,
    )
