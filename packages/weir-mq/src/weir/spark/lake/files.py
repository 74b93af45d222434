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
from weir.spark.lake.layout import COMPACT_BYTES, KeptFile, NewFile, sync

#: A row group is written when it has so many rows or bytes; a file is closed behind so many bytes.
GROUP_ROWS = 1 << 17
GROUP_BYTES = 32 << 20
FILE_BYTES_MAX = 2 * COMPACT_BYTES
#: So many days a task has open files of. Stamps rise in a partition, so a task rarely sees two.
OPEN_DAYS_MAX = 4
_MERGE_ROWS = 1 << 14

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


def write(frame: DataFrame, folder: Path, prefix: str) -> list[NewFile]:
    """Write the messages of a DataFrame as files below `folder`; no lake knows of them yet.

    `frame` has the columns of a topic. Names of files begin with `prefix`.
    """
    root = str(folder)

    def task(batches: Batches) -> Batches:
        yield from written(batches, root, prefix)

    return _reports(frame.select(*SCHEMA.names).mapInArrow(task, REPORT))


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


def written(batches: Batches, root: str, prefix: str) -> Batches:
    """Write messages below `root`, by day; yield a report of the files once all are durable."""
    open_files: dict[str, DayFile] = {}
    reports: list[dict[str, Any]] = []
    try:
        for batch in batches:
            for day, rows in by_day(pa.table(batch.select(SCHEMA.names)).cast(SCHEMA)):
                file = open_files.pop(day, None)
                if file is None:
                    while len(open_files) >= OPEN_DAYS_MAX:
                        reports.append(open_files.pop(next(iter(open_files))).close())
                    file = DayFile(Path(root), day, prefix)
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


def by_day(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each day of their stamps, in UTC, as (2026-01-31, rows)."""
    milliseconds = pc.shift_right(rows["stamp"], 16)
    days = milliseconds.cast(pa.timestamp("ms")).cast(pa.date32())
    for day in pc.unique(days).sort():
        yield str(day), rows.filter(pc.equal(days, day))


class DayFile:
    """A Parquet file of one day that is being written."""

    def __init__(self, root: Path, day: str, prefix: str) -> None:
        """Create the file; its name is new in the world."""
        folder = root / f"day={day}"
        _make_durable_folder(folder)
        self._day = day
        self._path = folder / f"{prefix}-{uuid.uuid4().hex}.parquet"
        self._file: BinaryIO = self._path.open("xb")
        self._writer = pq.ParquetWriter(self._file, SCHEMA, compression="zstd")
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = self._bad = 0
        self._spans: dict[int, tuple[int, int, int]] = {}
        self._stamps: tuple[int, int] | None = None
        self._topics: set[str] = set()

    @property
    def size(self) -> int:
        """Bytes in the file so far."""
        return self._file.tell()

    def add(self, rows: pa.Table) -> None:
        """Write rows, once there are enough of them for a row group."""
        self._count(rows)
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> dict[str, Any]:
        """Make the file durable, and return what the driver is to know of it."""
        try:
            self._flush()
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
            "path": f"{self._path.parent.name}/{self._path.name}",
            "day": self._day,
            "rows": self._rows,
            "bad": self._bad,
            "size": size,
            "modified": int(time.time() * 1_000),
            "spans": json.dumps({str(p): span for p, span in sorted(self._spans.items())}),
            "stats": self._stats(),
            "topics": json.dumps(sorted(self._topics)),
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
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=GROUP_ROWS)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0

    def _count(self, rows: pa.Table) -> None:
        self._rows += len(rows)
        self._bad += rows["value"].null_count
        self._topics.update(pc.unique(rows["topic"]).to_pylist())
        stamps = pc.min_max(rows["stamp"]).as_py()
        low, high = self._stamps or (stamps["min"], stamps["max"])
        self._stamps = (min(low, stamps["min"]), max(high, stamps["max"]))
        partitions, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
        for partition in np.unique(partitions):
            its = offsets[partitions == partition]
            first, behind, count = int(its.min()), int(its.max()) + 1, len(its)
            known = self._spans.get(int(partition))
            if known is not None:
                first, behind = min(first, known[0]), max(behind, known[1])
                count += known[2]
            self._spans[int(partition)] = (first, behind, count)

    def _stats(self) -> str:
        low, high = self._stamps or (0, 0)
        least = {"partition": min(self._spans), "offset": min(s[0] for s in self._spans.values())}
        most = {
            "partition": max(self._spans),
            "offset": max(s[1] for s in self._spans.values()) - 1,
        }
        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": {**least, "stamp": low},
                "maxValues": {**most, "stamp": high},
                "nullCount": {"partition": 0, "offset": 0, "stamp": 0, "value": self._bad},
            }
        )


def _make_durable_folder(folder: Path) -> None:
    """Create a folder whose name is durable, with those above it that are not there."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync(one.parent)
