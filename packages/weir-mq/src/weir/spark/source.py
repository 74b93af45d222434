"""`format("weir")`: a topic as Arrow columns, as a stream or as a table, to read and to write.

Spark makes a `StreamReader` three times: in the driver's planner, which pickles it; in a process
of its own that plans micro-batches for as long as the query runs; and in every task. So it is made
of options alone, and connections belong to processes (`weir.spark.blocking_client`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from weir.errors import BadOption
from weir.spark import planning
from weir.spark.admission import Admission
from weir.spark.fetcher import Portion, combined
from weir.spark.options import NAMES as READ_NAMES
from weir.spark.options import UNLIMITED, Latest, Options
from weir.spark.rows import columns_of, read_rows
from weir.spark.sink.options import NAMES, SinkOptions
from weir.spark.stream import Offset, Stream
from weir.spark.tokens import with_tokens
from weir.spark.topics import topics_of

T = TypeVar("T")


@dataclass(frozen=True)
class Task(InputPartition):
    """The work of one Spark task: a portion, or several small ones."""

    portions: tuple[Portion, ...]


def tasks(portions: Sequence[Portion], options: Options) -> list[InputPartition]:
    """Return portions as Spark takes them; small ones share a task."""
    lengths = [0 if one.lost else len(one.range) for one in portions]  # a gap is one row
    together = planning.shared(lengths, options.partitions_min, options.partition_rows_max)
    portions = with_tokens(portions, options)
    return [Task(tuple(portions[part])) for part in together]


class BatchReader(DataSourceReader):
    """Reads what lies between two bounds as of the planning; the same rows however often."""

    def __init__(self, options: Options) -> None:
        """Keep the options; no socket, since this is pickled."""
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises `BadOption` for bounds that are not there."""
        topics = topics_of(self._options)
        begin = topics.begin(self._options.starting)
        behind = topics.until(self._options.ending or Latest())
        topics.check_order(begin, behind)
        return tasks(topics.portions(begin, topics.in_lineages(behind)), self._options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages as record batches; Spark gives None for a read without tasks."""
        return _read(partition, self._options)


class WeirDataSource(DataSource):
    """`format("weir")`; `weir.spark.options` lists what it can be told."""

    def __init__(self, options: dict[str, str]) -> None:
        """Check the options, so that `load()` refuses what cannot work. Raises `BadOption`.

        Spark does not say here whether it reads or writes.
        """
        super().__init__(options)
        self._to_write = _parsed(SinkOptions.parse, options)
        self._to_read = _parsed(Options.parse, options)
        if isinstance(self._to_write, BadOption) and isinstance(self._to_read, BadOption):
            # The one for which more of the options have a meaning.
            raise self._to_write if _is_sink(options) else self._to_read

    @classmethod
    def name(cls) -> str:
        """Return the name that queries use."""
        return "weir"

    def schema(self) -> StructType:
        """Return the columns that are asked for, by default all of `weir.model.arrow.SCHEMA`; and
        `lost` behind them if the query goes on over gaps.
        """
        return from_arrow_schema(columns_of(_sound(self._to_read)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what is there now; no broker is asked yet."""
        return BatchReader(_sound(self._to_read))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of a stream; no broker is asked yet."""
        return StreamReader(_sound(self._to_read))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a table. Raises `BadOption` for columns that make no messages."""
        # A process that reads would take as long to import it as all the rest of weir.
        from weir.spark.sink.writer import TableWriter, check

        options = _sound(self._to_write)
        check(schema, overwrite, options)
        return TableWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes a stream. Raises `BadOption` for columns that make no messages."""
        from weir.spark.sink.writer import StreamWriter, check

        options = _sound(self._to_write)
        check(schema, overwrite, options)
        return StreamWriter(options)


def _parsed(parse: Callable[[Mapping[str, str]], T], options: Mapping[str, str]) -> T | BadOption:
    try:
        return parse(options)
    except BadOption as error:
        return error


def _sound(options: T | BadOption) -> T:
    if isinstance(options, BadOption):
        raise options
    return options


def _is_sink(options: Mapping[str, str]) -> bool:
    """Whether any option is one of a sink alone."""
    alone = {name.lower() for name in NAMES} - {name.lower() for name in READ_NAMES}
    return any(name.lower() in alone for name in options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Hands on to a `Stream` what Spark asks for."""

    def __init__(self, options: Options) -> None:
        """Keep the options; no socket, since this is pickled."""
        self._options = options
        self._stream = Stream(options)

    # Planning, in a process of its own.

    def initialOffset(self) -> Offset:
        """Return where a query without a checkpoint begins; the same however often it is asked."""
        return self._stream.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set; Spark hands it to `latestOffset`."""
        given = self._options.admission
        if given.rows_max is not None:
            return ReadMaxRows(given.rows_max)
        if given.bytes_max is not None:
            return ReadMaxBytes(given.bytes_max)
        return ReadAllAvailable() if given.rows_min is None else ReadMinRows(given.rows_min)

    def prepareForTriggerAvailableNow(self) -> None:
        """Pin today's end: what is published later belongs to the next run."""
        self._stream.pin_end()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the cut that the next micro-batch ends at, or `start` itself if nothing is new."""
        return self._stream.latest(start, _admission(limit, self._options.admission))

    def reportLatestOffset(self) -> Offset:
        """Return the committed end, which the query's progress shows beside its own position."""
        return self._stream.committed()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of the micro-batch [start, end); a replay gets the same ranges."""
        return tasks(self._stream.portions(start, end), self._options)

    # Reading, in Spark's workers.

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages as record batches; Spark gives None for a batch without tasks."""
        return _read(partition, self._options)

    def commit(self, end: Offset) -> None:
        """Do nothing: it comes one batch late, and for the last batch never.

        So nothing may hang on it (counterexample 28); the checkpoint is the query's position.
        """


def _read(partition: InputPartition | None, options: Options) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Task):
        return iter(())
    return combined(chain.from_iterable(read_rows(one, options) for one in partition.portions))


def _admission(limit: ReadLimit, given: Admission) -> Admission:
    """Return what a micro-batch may hold: Spark hands back one of the limits, as there is none that
    has several, or says that all is to be taken.
    """
    match limit:
        case ReadAllAvailable():
            return UNLIMITED
        case ReadMaxRows(most):
            return replace(given, rows_max=most)
        case ReadMaxBytes(most):
            return replace(given, bytes_max=most)
        case ReadMinRows(least):
            return replace(given, rows_min=least)
    # Another one would be ignored.
    raise BadOption(f"format('weir') cannot keep to {limit}: use the option maxRowsPerBatch")
