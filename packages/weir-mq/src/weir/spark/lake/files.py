"""Writes messages as Parquet files, and merges small ones: in executors, a report a file.

No message passes through the driver: it gets one row for each file.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from weir.model.arrow import SCHEMA
from weir.spark.lake.layout import COMPACT_BYTES, KeptFile, NewFile, sync, writing

#: A row group is written when it has so many rows or bytes; a file is closed behind so many bytes.
GROUP_ROWS = 1 << 17
GROUP_BYTES = 32 << 20
FILE_BYTES_MAX = 2 * COMPACT_BYTES
#: So many days a task has open files of. Stamps rise in a partition, so a task rarely sees two.
OPEN_DAYS_MAX = 4
_MERGE_ROWS = 1 << 14
#: The column whose days rows are kept by.
STAMP = "stamp"

#: What the driver gets of each file.
REPORT = "path string, day string, rows long, bad long, size long, modified long, spans string, stats string, topics string"  # noqa: E501
_REPORT = pa.schema(
    [
        ("path", pa.string()),
        ("day", pa.string()),
        ("rows", pa.int64()),
        ("bad", pa.int64()),
        ("size", pa.int64()),
        ("modified", pa.int64()),
        ("spans", pa.string()),
        ("stats", pa.string()),
        ("topics", pa.string()),
    ]
)
Batches = Iterator[pa.RecordBatch]


def write(
    frame: DataFrame, folder: Path, prefix: str, schema: pa.Schema | None = None
) -> list[NewFile]:
    """Write the messages of a DataFrame as files below `folder`; no lake knows of them yet.

    `frame` has the columns of a topic, or those of `schema`. Names of files begin with `prefix`.
    """
    root = str(folder)
    columns = SCHEMA if schema is None else schema

    def task(batches: Batches) -> Batches:
        yield from written(batches, root, prefix, schema)

    return _reports(frame.select(*columns.names).mapInArrow(task, REPORT))


def merge(
    spark: SparkSession, folder: Path, groups: Sequence[Sequence[KeptFile]], prefix: str
) -> list[NewFile]:
    """Write each group of files as one, in a task of its own; no lake knows of them yet."""
    root = str(folder)

    def task(batches: Batches) -> Batches:
        for batch in batches:
            for paths in batch.column("paths").to_pylist():
                yield from written(_rows_of(root, json.loads(paths)), root, prefix)

    rows = [(json.dumps([file.path for file in group]),) for group in groups]
    return _reports(in_tasks(spark, rows, "paths string").mapInArrow(task, REPORT))


def in_tasks(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return rows of work, each in a task of its own."""
    frame = spark.createDataFrame(list(rows), schema)
    return frame.repartitionByRange(max(len(rows), 1), *frame.columns)


def _reports(frame: DataFrame) -> list[NewFile]:
    return [new_file(row.asDict()) for row in frame.collect()]


def new_file(report: Mapping[str, Any]) -> NewFile:
    """Return a file as `written` reports it."""
    spans = {int(p): (s[0], s[1], s[2]) for p, s in json.loads(report["spans"]).items()}
    return NewFile(
        report["path"],
        report["day"],
        report["rows"],
        report["bad"],
        report["size"],
        report["modified"],
        spans,
        report["stats"],
        tuple(json.loads(report["topics"])),
    )


def _rows_of(root: str, paths: Iterable[str]) -> Batches:
    for path in paths:
        with pq.ParquetFile(Path(root, path)) as file:
            yield from file.iter_batches(batch_size=_MERGE_ROWS, columns=SCHEMA.names)


def written(batches: Batches, root: str, prefix: str, schema: pa.Schema | None = None) -> Batches:
    """Write messages below `root`, by day; yield a report of the files once all are durable.

    With `schema` they are other rows, with these columns: by day if there is a column `stamp`.
    """
    folder = Path(root)
    has_days = schema is None or STAMP in schema.names

    def make(day: str) -> RowFile:
        if schema is not None:
            return RowFile(folder, day, prefix, schema)
        return DayFile(folder, day, prefix)

    open_files: dict[str, RowFile] = {}
    reports: list[dict[str, Any]] = []
    try:
        for batch in batches:
            columns = SCHEMA if schema is None else schema
            table = pa.table(batch.select(columns.names)).cast(columns)
            for day, rows in _parts(table, has_days):
                file = open_files.pop(day, None)
                if file is None:
                    while len(open_files) >= OPEN_DAYS_MAX:
                        reports.append(open_files.pop(next(iter(open_files))).close())
                    file = make(day)
                open_files[day] = file  # the newest is the last
                file.add(rows)
                if file.size >= FILE_BYTES_MAX:
                    reports.append(open_files.pop(day).close())
        while open_files:
            reports.append(open_files.pop(next(iter(open_files))).close())
    except BaseException:
        for file in open_files.values():
            file.discard()
        raise
    if reports:
        yield pa.RecordBatch.from_pylist(reports, _REPORT)


def _parts(rows: pa.Table, has_days: bool) -> Iterator[tuple[str, pa.Table]]:
    if has_days:
        yield from by_day(rows)
    elif len(rows):
        yield "", rows


def by_day(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each day of their stamps, in UTC, as (2026-01-31, rows)."""
    milliseconds = pc.shift_right(rows[STAMP], 16)
    days = milliseconds.cast(pa.timestamp("ms")).cast(pa.date32())
    for day in pc.unique(days).sort():
        yield str(day), rows.filter(pc.equal(days, day))


class RowFile:
    """A Parquet file that is being written: of a day, or of none where `day` is empty."""

    def __init__(self, root: Path, day: str, prefix: str, schema: pa.Schema) -> None:
        """Create the file; its name is new in the world. Raises `NotWritable`, as all here do."""
        folder = root / f"day={day}" if day else root
        self._root = root
        self._day = day
        self._path = folder / f"{prefix}-{uuid.uuid4().hex}.parquet"
        with writing(self._path):
            _make_durable_folder(folder)
            self._file: BinaryIO = self._path.open("xb")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._stamps: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes in the file so far."""
        return self._file.tell()

    def add(self, rows: pa.Table) -> None:
        """Write rows, at least one, once there are enough of them for a row group."""
        self.count(rows)
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def count(self, rows: pa.Table) -> None:
        """Keep what the report says of rows."""
        self._rows += len(rows)
        if STAMP in rows.column_names:
            stamps = pc.min_max(rows[STAMP]).as_py()
            low, high = self._stamps or (stamps["min"], stamps["max"])
            self._stamps = (min(low, stamps["min"]), max(high, stamps["max"]))

    def close(self) -> dict[str, Any]:
        """Make the file durable, and return what the driver is to know of it."""
        try:
            self._flush()
            with writing(self._path):
                self._writer.close()
                self._file.flush()
                os.fsync(self._file.fileno())
                size = self._file.tell()
                self._file.close()
                sync(self._path.parent)
        except BaseException:
            self.discard()
            raise
        return {
            "path": self._path.relative_to(self._root).as_posix(),
            "day": self._day,
            "size": size,
            "modified": int(time.time() * 1_000),
            **self.told(),
        }

    def told(self) -> dict[str, Any]:
        """Return what the report says of the rows."""
        stats: dict[str, Any] = {"numRecords": self._rows}
        if self._stamps is not None:
            low, high = self._stamps
            stats |= {"minValues": {STAMP: low}, "maxValues": {STAMP: high}}
            stats |= {"nullCount": {STAMP: 0}}
        return {
            "rows": self._rows,
            "bad": 0,
            "spans": "{}",
            "stats": json.dumps(stats),
            "topics": "[]",
        }

    def discard(self) -> None:
        """Remove the file: its task failed, and nobody will name it."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            with writing(self._path):
                self._writer.write_table(rows, row_group_size=GROUP_ROWS)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0


class DayFile(RowFile):
    """A Parquet file of one day's messages that is being written."""

    def __init__(self, root: Path, day: str, prefix: str) -> None:
        """Create the file; its name is new in the world."""
        super().__init__(root, day, prefix, SCHEMA)
        self._bad = 0
        self._spans: dict[int, tuple[int, int, int]] = {}
        self._topics: set[str] = set()

    def count(self, rows: pa.Table) -> None:
        """Keep what the report says of messages."""
        super().count(rows)
        self._bad += rows["value"].null_count
        self._topics.update(pc.unique(rows["topic"]).to_pylist())
        partitions, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
        for partition in np.unique(partitions):
            its = offsets[partitions == partition]
            first, behind, count = int(its.min()), int(its.max()) + 1, len(its)
            known = self._spans.get(int(partition))
            if known is not None:
                first, behind = min(first, known[0]), max(behind, known[1])
                count += known[2]
            self._spans[int(partition)] = (first, behind, count)

    def told(self) -> dict[str, Any]:
        """Return what the report says of the messages."""
        low, high = self._stamps or (0, 0)
        least = {"partition": min(self._spans), "offset": min(s[0] for s in self._spans.values())}
        most = {
            "partition": max(self._spans),
            "offset": max(s[1] for s in self._spans.values()) - 1,
        }
        stats = {
            "numRecords": self._rows,
            "minValues": {**least, STAMP: low},
            "maxValues": {**most, STAMP: high},
            "nullCount": {"partition": 0, "offset": 0, STAMP: 0, "value": self._bad},
        }
        return {
            "rows": self._rows,
            "bad": self._bad,
            "spans": json.dumps({str(p): span for p, span in sorted(self._spans.items())}),
            "stats": json.dumps(stats),
            "topics": json.dumps(sorted(self._topics)),
        }


def _make_durable_folder(folder: Path) -> None:
    """Create a folder whose name is durable, with those above it that are not there."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync(one.parent)
