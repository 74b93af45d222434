"""Queries that follow topics: how fresh their rows are, and what partitions cost a micro-batch.

A message is as old as the time from its send, as its producer's clock says, until the micro-batch
that holds it has handed its rows to the driver, where the same clock is read. Producers keep to a
rate, whatever the query does.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.client.client import connect
from weir.errors import WeirError
from weir_lab.bench.flow import shared_out
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.pace import Paced, PacePlan, Step
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.sides.own import chunk_of

#: What the paced producers send to, each to a partition of its own.
PARTITIONS = 4
#: A query is as slow as a cold JVM for its first micro-batches.
WARM_SECONDS = 8.0
MANY = 64
ORDERS = ("partition", "total")
_WINDOW = 8
_LOOK_SECONDS = 0.05


class NotFollowed(WeirError):
    """A query did not hand over what was sent; the message says how much of it came."""


class Following(msgspec.Struct, frozen=True):
    """For `seconds` `rate` messages of `size` bytes a second; 0 s: not measured. And micro-batches
    of `rows` rows, so many `batches` of them counted; 0: not measured.
    """

    seconds: float = 20.0
    rate: int = 10_000
    size: int = 100
    rows: int = 10_000
    batches: int = 12
    deadline_s: float = 120.0

    @property
    def turns(self) -> int:
        """How often each topic is read: twice, since whatever else the machine does hits both."""
        return min(self.batches, 2)

    @property
    def rows_a_turn(self) -> int:
        """The rows of one more micro-batch than counts: the first has a query to begin."""
        return self.rows * (-(-self.batches // self.turns) + 1)

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        if self.seconds < 0 or self.batches < 0:
            raise ValueError("seconds to follow and batches to count must be 0 or more")
        if self.rate < PARTITIONS or self.rows < MANY or self.deadline_s <= 0:
            raise ValueError(f"give rate ≥ {PARTITIONS}, rows ≥ {MANY} and a deadline above 0 s")


class Followed(msgspec.Struct, frozen=True):
    """p99 of the ages in ms, by the order of the topic; and medians of the times of micro-batches
    in ms, over a topic of one partition and one of `MANY`. None: not measured.
    """

    freshness_p99_ms: float | None = None
    total_freshness_p99_ms: float | None = None
    one_partition_ms: float | None = None
    many_partitions_ms: float | None = None

    @property
    def partitions_ratio(self) -> float | None:
        """How many times as long a micro-batch takes over `MANY` partitions as over one."""
        if self.one_partition_ms is None or self.many_partitions_ms is None:
            return None
        return self.many_partitions_ms / self.one_partition_ms


def measure(spark: Any, url: str, settings: Following, folder: Path) -> Followed:
    """Follow a topic of each order, then read topics of one and of many partitions by turns.

    Raises `NotFollowed` unless all that was sent was handed over, once.
    """
    ages = dict.fromkeys(ORDERS, None) | {
        order: _age_p99(spark, url, order, settings, folder) for order in ORDERS if settings.seconds
    }
    times = _batch_times(spark, url, settings, folder) if settings.batches else (None, None)
    return Followed(ages["partition"], ages["total"], *times)


class Ages:
    """What micro-batches handed over, and how old it was by then, in µs."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.rows = 0
        self._pieces: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []

    def take(self, frame: Any, _: int) -> None:
        """Take a micro-batch with a column `time`, as `foreachBatch` hands it over."""
        sent = frame.select("time").toArrow()["time"]
        times = sent.cast(pa.timestamp("us", sent.type.tz)).cast(pa.int64()).to_numpy()
        self.rows += len(times)
        self._pieces.append((times, time.time_ns() // 1_000 - times))

    def p99_ms(self, since_us: int) -> float:
        """Return the p99 of what was sent from `since_us` on. Raises `NotFollowed` without any."""
        ages = [age[sent >= since_us] for sent, age in self._pieces]
        whole = np.concatenate([np.empty(0, np.int64), *ages])
        if not len(whole):
            raise NotFollowed("nothing that was to be measured was handed over")
        return float(np.percentile(whole, 99)) / 1e3


def _age_p99(spark: Any, url: str, order: str, settings: Following, folder: Path) -> float:
    topic, ages = f"followed-{order}", Ages()
    run(_created(url, topic, PARTITIONS, order))
    stream = spark.readStream.format("weir").option("url", url).option("topic", topic)
    frame = stream.option("columns", '["time"]').load()
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        writer = frame.writeStream.foreachBatch(ages.take)
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            sent, since_us = run(_paced(url, topic, settings))
            _wait(query, ages, sent, settings.deadline_s)
        finally:
            query.stop()
    return ages.p99_ms(since_us)


def _wait(query: Any, ages: Ages, sent: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while ages.rows < sent and query.isActive and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    if ages.rows != sent:
        why = query.exception()
        raise NotFollowed(f"{ages.rows:,} of {sent:,} rows were handed over: {why or 'too slow'}")


async def _created(url: str, topic: str, partitions: int, order: str = "partition") -> None:
    async with connect(url, name="weir-bench") as client:
        await client.create_topic(topic, partitions, order=order)  # type: ignore[arg-type]


async def _paced(url: str, topic: str, settings: Following) -> tuple[int, int]:
    """Return how much was sent, warm-up included, and when that was over, in µs since 1970."""
    numbers = [*range(PARTITIONS)]
    chunk = chunk_of(settings.size)
    plan = PacePlan(url, topic, numbers, PARTITIONS, settings.size, chunk, _WINDOW, PARTITIONS)
    async with Crew("weir_lab.bench.harness.pace", [plan], Paced) as crew:
        await crew.ready()
        sent = since_us = 0
        for seconds in (WARM_SECONDS, settings.seconds):
            since_us = time.time_ns() // 1_000
            crew.go(msgspec.json.encode(Step(settings.rate, seconds)))
            (paced,) = await crew.done()
            sent += paced.sent
        return sent, since_us


def _batch_times(
    spark: Any, url: str, settings: Following, folder: Path
) -> tuple[float | None, float | None]:
    counted: dict[int, list[int]] = {1: [], MANY: []}
    for partitions in counted:
        run(_filled(url, _spread(partitions), partitions, settings.rows_a_turn))
    for partitions in (1, MANY) * settings.turns:
        counted[partitions] += _drained(spark, url, partitions, settings, folder)
    return median(counted[1]), median(counted[MANY])


def _spread(partitions: int) -> str:
    return f"spread-{partitions}"


async def _filled(url: str, topic: str, partitions: int, rows: int) -> None:
    await _created(url, topic, partitions)
    async with connect(url, name="weir-bench") as client, client.producer(topic) as producer:
        for partition, count in enumerate(shared_out(rows, partitions)):
            await producer.send_many([bytes(100)] * count, partition=partition)


def _drained(spark: Any, url: str, partitions: int, settings: Following, folder: Path) -> list[int]:
    """Return the times of all micro-batches but the first, in ms."""
    stream = spark.readStream.format("weir").option("url", url)
    stream = stream.option("topic", _spread(partitions)).option("maxRowsPerBatch", settings.rows)
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        writer = stream.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            if not query.awaitTermination(int(settings.deadline_s) or 1):
                raise NotFollowed(f"a query did not end within {settings.deadline_s:g} s")
            done = [one for one in query.recentProgress if one.numInputRows]
        finally:
            query.stop()
    if (read := sum(one.numInputRows for one in done)) != (rows := settings.rows_a_turn):
        raise NotFollowed(f"{read:,} of {rows:,} rows over {partitions} partitions were read")
    return [one.durationMs["triggerExecution"] for one in done[1:]]
