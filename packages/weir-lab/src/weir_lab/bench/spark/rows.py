"""A topic into Spark's `noop` sink, beside the least that any Python source costs, in one run.

Two queries read the same record batches, all columns, in as many tasks; weir's come from a node and
are checked against CRC and hash. A third reads weir's column `value` alone. Four more decode values
of a schema to typed columns. A first query of each kind warms Spark up, uncounted.
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
from weir_lab.bench.spark.bare import NAME, BareSource
from weir_lab.bench.spark.typed import FORMATS, fill, schema_of, topic_of

TOPIC = "spark"
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
    many values of each format are `typed`; 0: none are.
    """

    messages: int = 4_000_000
    size: int = 100
    partitions: int = 2
    rounds: int = 3
    deadline_s: float = 300.0
    folder: str | None = None
    typed: int = 600_000

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise ValueError(f"partitions={self.partitions}: it must be 1 to {PARTITIONS_MAX}")
        if self.typed < 0:
            raise ValueError(f"typed={self.typed}: it must be 0 or more")
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

        frames: dict[str, Any] = {
            "weir": stream().load(),
            "columns": stream().option("columns", '["value"]').load(),
            "bare": spark.readStream.format(NAME).option("files", "\n".join(files)).load(),
            **{format: typed(format) for format in FORMATS if settings.typed},
        }
        if settings.typed:
            _check_typed(spark, side, parts, settings)
        for source, frame in frames.items():
            _query(source, frame, settings, folder)
        say("warmed up; these queries are not counted")
        queries = []
        for _ in range(settings.rounds):
            for source, frame in frames.items():
                queries.append(_query(source, frame, settings, folder))
                say(f"{source}: {queries[-1].rows_per_s:,.0f} rows/s")
        return _result(settings, side, queries, len(frames))


async def _fill(side: Own, settings: Settings) -> None:
    async with connect(side.node.url, name="weir-bench") as client:
        await client.create_topic(TOPIC, settings.partitions)
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


def _query(source: str, frame: Any, settings: Settings, folder: Path) -> Query:
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
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
    if rows != expected:
        raise RowsDiffer(f"{source}: Spark read {rows:,} of {expected:,} rows")
    busy = sum(one.durationMs["triggerExecution"] for one in progress) / 1e3
    return Query(source, rows, rows / busy, rows / seconds)


def _result(settings: Settings, side: Own, queries: list[Query], warm_ups: int) -> Result:
    def middle(source: str, figure: Callable[[Query], float]) -> float:
        return median(figure(one) for one in queries if one.source == source)

    own = middle("weir", lambda one: one.rows_per_s)
    bare = middle("bare", lambda one: one.rows_per_s)
    columns = middle("columns", lambda one: one.rows_per_s)
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
        warm_ups,
        filesystem_of(side.folder),
        queries,
    )
