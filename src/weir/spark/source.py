"""`spark.readStream.format("weir")`: a topic as Arrow columns, each message once (MISSION P.1).

Spark makes a `StreamReader` three times: in the driver's planner, which pickles it; in a process
of its own that plans micro-batches for as long as the query runs; and in every task. So it is made
of options alone, and connections belong to processes (`weir.spark.connections`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from weir.client.blocking import BlockingClient
from weir.errors import UnknownTopic
from weir.model.arrow import SCHEMA
from weir.spark import planning
from weir.spark.connections import ask
from weir.spark.errors import BadOption
from weir.spark.fetching import Source, record_batches
from weir.spark.options import Options
from weir.spark.planning import Cut, Range
from weir.wire.messages import PositionsReply, TopicInfo

Offset = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Task(InputPartition):
    """The work of one Spark task: a range, and where it is to be had."""

    source: Source
    range: Range


class WeirDataSource(DataSource):
    """`format("weir")`; `weir.spark.options` lists what it can be told."""

    def __init__(self, options: dict[str, str]) -> None:
        """Check the options, so that `load()` refuses what cannot work. Raises `BadOption`."""
        super().__init__(options)
        self._checked = Options.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name that queries use."""
        return "weir"

    def schema(self) -> StructType:
        """Return the columns of every topic: `weir.model.arrow.SCHEMA`."""
        return from_arrow_schema(SCHEMA)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return a reader; no broker is asked yet."""
        return StreamReader(self._checked)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches between two cuts, and reads the ranges that lie between them."""

    def __init__(self, options: Options) -> None:
        """Keep the options; no socket, since this is pickled."""
        self._options = options
        self._initial: Cut | None = None
        self._target: Cut | None = None

    # Planning, in a process of its own.

    def initialOffset(self) -> Offset:
        """Return where a query without a checkpoint begins; the same however often it is asked."""
        if self._initial is None:
            self._initial = self._first_cut()
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set; Spark hands it to `latestOffset`."""
        rows = self._options.batch_rows_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Pin today's end: what is published later belongs to the next run."""
        self._target = self._end()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the cut that the next micro-batch ends at, or `start` itself if nothing is new.

        Two round trips to the broker. Raises `RangeLost` and `CheckpointMismatch`.
        """
        begin = Cut.from_json(start)
        end = self._target or self._end()
        if self._target is None:
            planning.check_growth(self._options.topic, begin, end)
        if not planning.moved(begin, end):
            # The same text: Spark takes any other for new data and runs an empty batch.
            return start
        return planning.advance(begin, end, _rows_max(limit)).to_json()

    def reportLatestOffset(self) -> Offset:
        """Return the committed end, which the query's progress shows beside its own position."""
        return self._end().to_json()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of the micro-batch [start, end); a replay gets the same ranges."""
        options = self._options
        begin, behind = Cut.from_json(start), Cut.from_json(end)
        info = self._describe()
        # Whether the messages are still there shows when they are read; here, whether the topic is.
        there = {p: behind.positions.get(p, 0) for p in range(len(info.addresses))}
        planning.check_growth(options.topic, behind, Cut(info.id, there))
        parts = planning.ranges(begin, behind, options.partitions_min, options.partition_rows_max)
        return [
            Task(Source(options.hosts, options.topic, info.addresses[part.partition]), part)
            for part in parts
        ]

    # Reading, in Spark's workers.

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages as record batches; Spark gives None for a batch without tasks."""
        if not isinstance(partition, Task):
            return iter(())
        return record_batches(partition.source, partition.range, self._options.fetch_bytes_max)

    def commit(self, end: Offset) -> None:
        """Do nothing: it comes one batch late, and for the last batch never.

        So nothing may hang on it (counterexample 28); the checkpoint is the query's position.
        """

    # What the broker is asked.

    def _first_cut(self) -> Cut:
        # A pinned end counts as the latest, lest a query begin behind where it must end.
        if self._options.starting == "latest":
            return self._target or self._end()
        info, places = self._positions()
        first = {partition: place.start for partition, place in enumerate(places)}
        if isinstance(self._options.starting, dict):
            _check_starting(self._options.topic, self._options.starting, places)
            first |= self._options.starting
        return Cut(info.id, first)

    def _end(self) -> Cut:
        info, places = self._positions()
        return Cut(info.id, {partition: place.end for partition, place in enumerate(places)})

    def _positions(self) -> tuple[TopicInfo, list[PositionsReply]]:
        return self._ask(lambda client: client.positions(self._options.topic))

    def _describe(self) -> TopicInfo:
        return self._ask(lambda client: client.describe(self._options.topic))

    def _ask(self, question: Callable[[BlockingClient], T]) -> T:
        options = self._options
        try:
            return ask(options.hosts, question)
        except UnknownTopic as error:
            places = ", ".join(f"{host}:{port}" for host, port in options.hosts)
            raise UnknownTopic(
                f"{places} has no topic {options.topic!r}: check the options topic and url, or "
                f"create it with `weir topic create {options.topic}`"
            ) from error


def _rows_max(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    # Spark only hands back what getDefaultReadLimit returned, or all: another one would be ignored.
    raise BadOption(f"format('weir') cannot keep to {limit}: use the option maxRowsPerBatch")


def _check_starting(
    topic: str, starting: Mapping[int, int], places: Sequence[PositionsReply]
) -> None:
    for partition, offset in starting.items():
        if not 0 <= partition < len(places):
            raise BadOption(
                f"startingOffsets names partition {partition}; {topic} has partitions 0 to "
                f"{len(places) - 1}"
            )
        first, behind = places[partition].start, places[partition].end
        if not first <= offset <= behind:
            raise BadOption(
                f"startingOffsets names offset {offset:,} of {topic}/{partition}, which holds "
                f"{first:,} to {behind:,}"
            )
