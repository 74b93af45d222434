"""What a task gives to Spark: the messages of its range, and a row for each gap in it.

Only a query that says `onDataLoss=earliest` has gaps, and the column `lost`. A `time` that Spark
has no timestamp for, before the year 1 or after the year 9999, is null.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import RangeLost
from weir.model.arrow import schema_of
from weir.spark.fetcher import Portion, record_batches
from weir.spark.options import Options
from weir.spark.planning import Range

#: How many messages are gone from a row's `offset` on; null in the row of a message.
LOST = pa.field("lost", pa.int64())
#: Microseconds since 1970 of 0001-01-01T00:00:00 and of 9999-12-31T23:59:59.999999.
TIME_MIN, TIME_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999


def columns_of(options: Options) -> pa.Schema:
    """Return the columns that a query reads, as they come."""
    schema = schema_of(options.columns)
    return schema.append(LOST) if options.over_gaps else schema


def read_rows(portion: Portion, options: Options) -> Iterator[pa.RecordBatch]:
    """Yield a portion's rows in offset order, with `columns_of` the options.

    Raises `RangeLost` for messages that are gone, unless the query is to go on without them.
    """
    part = portion.range
    if portion.lost:
        if not options.over_gaps:
            # A micro-batch that is replayed was planned when the option was another.
            raise RangeLost(
                f"messages {part.first:,} to {part.behind - 1:,} of {portion.source.topic}/"
                f"{part.partition} are gone, and the checkpoint has planned to go on without them: "
                "set .option('onDataLoss', 'earliest') again"
            )
        yield _gap(portion, part, options)
        return
    while len(part):
        try:
            for batch in record_batches(
                replace(portion, range=part),
                options.fetch_bytes_max,
                options.selection,
                options.columns,
            ):
                yield _row_columns(batch, options)
            return
        except RangeLost as error:
            if not options.over_gaps or error.behind <= part.first:
                raise
            yield _gap(portion, Range(part.partition, error.first, error.behind), options)
            part = Range(part.partition, error.behind, part.behind)


def _row_columns(batch: pa.RecordBatch, options: Options) -> pa.RecordBatch:
    if "time" in options.columns:
        batch = timed(batch)
    return (
        batch.append_column(LOST, pa.nulls(batch.num_rows, LOST.type))
        if options.over_gaps
        else batch
    )


def timed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with null for each `time` that Spark has no timestamp for."""
    place = batch.schema.get_field_index("time")
    times = batch.column(place)
    numbers = times.view(pa.int64())
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (ends["min"] >= TIME_MIN and ends["max"] <= TIME_MAX):
        return batch
    fits = pc.and_(pc.greater_equal(numbers, TIME_MIN), pc.less_equal(numbers, TIME_MAX))
    known = pc.if_else(fits, times, pa.scalar(None, times.type))
    return batch.set_column(place, batch.schema.field(place), known)


def _gap(portion: Portion, gap: Range, options: Options) -> pa.RecordBatch:
    schema = columns_of(options)
    known = {
        "topic": portion.source.topic,
        "partition": gap.partition,
        "offset": gap.first,
        "lost": len(gap),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array([known.get(field.name)], field.type) for field in schema], schema=schema
    )
