"""Late rows of a lake that is read as a stream: how many there are, and up to when all came.

A row is late if its time is at or below the watermark, which is a delay behind the highest time of
all micro-batches before. The planner counts late rows, and tasks leave out the same ones: both go
by the files and by what the checkpoint says, so a replay finds them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.spark.lake.files import STAMP

_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Lateness:
    """The column that has a row's time, and how far the watermark is behind, in microseconds."""

    column: str
    delay_us: int

    @classmethod
    def of(cls, column: str, delay_seconds: float) -> Lateness:
        """Return it for a delay in seconds."""
        return cls(column, round(delay_seconds * _US))

    def watermark(self, newest: int | None) -> int | None:
        """Return the time at and below which rows are late; None before the first row."""
        return None if newest is None else newest - self.delay_us


@dataclass(frozen=True, slots=True)
class Times:
    """What a micro-batch has: its highest time in microseconds since 1970, None without one, and
    how many rows are late.
    """

    newest: int | None = None
    late: int = 0


def times(paths: Sequence[Path], column: str, low: int, high: int, watermark: int | None) -> Times:
    """Look through the rows of files with stamps in (low, high].

    Only files that may have late rows, or rows of other micro-batches, are read.
    """
    newest: int | None = None
    late = 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.metadata.num_row_groups):
                found = _told(file, group, column, low, high, watermark)
                if found is None:
                    found = _read(file, group, column, low, high, watermark)
                late += found.late
                if found.newest is not None:
                    newest = found.newest if newest is None else max(newest, found.newest)
    return Times(newest, late)


def is_late(rows: pa.Table, column: str, watermark: int) -> pa.ChunkedArray:
    """Return for each row whether it is late; one without a time is not."""
    return pc.fill_null(pc.less_equal(_micros(rows[column]), watermark), False)


def _told(
    file: pq.ParquetFile, group: int, column: str, low: int, high: int, watermark: int | None
) -> Times | None:
    """Return what a row group's statistics say; None if they do not say enough."""
    metadata = file.metadata.row_group(group)
    by_name = {metadata.column(at).path_in_schema: at for at in range(metadata.num_columns)}
    stamps = metadata.column(by_name[STAMP]).statistics
    if stamps is None or not stamps.has_min_max:
        return None
    if stamps.max <= low or stamps.min > high:
        return Times()
    known = metadata.column(by_name[column]).statistics
    is_whole = low < stamps.min and stamps.max <= high
    type = file.schema_arrow.field(column).type
    if not is_whole or known is None or not known.has_min_max or type.unit != "us":
        return None
    if watermark is not None and known.min_raw <= watermark:
        return None
    return Times(known.max_raw)


def _read(
    file: pq.ParquetFile, group: int, column: str, low: int, high: int, watermark: int | None
) -> Times:
    rows = file.read_row_group(group, columns=[STAMP, column])
    rows = rows.filter(pc.and_(pc.greater(rows[STAMP], low), pc.less_equal(rows[STAMP], high)))
    newest = pc.max(_micros(rows[column])).as_py()
    if watermark is None:
        return Times(newest)
    return Times(newest, pc.sum(is_late(rows, column, watermark)).as_py() or 0)


def _micros(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
