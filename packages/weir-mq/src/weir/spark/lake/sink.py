"""Writes a stream to a lake, or to a table of one: the sink of `format("weir-lake")`.

Executors write files; the driver's commit names them in one transaction, under the query and the
number of the micro-batch, as the archive job and pipelines do. So a micro-batch that Spark runs
again adds nothing, and a lake goes on by either.

Options: `path`, a lake, which is founded by an archive job or a pipeline, or a table, which is
created with the first micro-batch and has the stream's columns; `exclusive`, true if a table takes
the rows of one query only, since one that begins anew would add all rows again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from weir.errors import BadOption, LakeMismatch
from weir.model.arrow import SCHEMA
from weir.spark.lake import delta_log, files
from weir.spark.lake.delta import DeltaLake
from weir.spark.lake.files import STAMP
from weir.spark.lake.layout import Batch, Cut, NewFile, read_cut, write_cut
from weir.spark.lake.stamps import newest_stamp
from weir.spark.lake.tables import Table
from weir.spark.sink.writer import BATCH, QUERY


@dataclass(frozen=True)
class WrittenTask(WriterCommitMessage):
    """What a task has written, for the driver: its query, and a report of each file."""

    query: str
    reports: tuple[Mapping[str, Any], ...] = ()


class LakeWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, path: Path, rows: pa.Schema | None, exclusive: bool = False) -> None:
        """Write messages to the lake at `path`, or rows with these columns to the table there,
        which takes those of one query only if it is `exclusive`.
        """
        self._path = path
        self._rows = rows
        self._exclusive = exclusive

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task as files that nobody knows of yet."""
        context = TaskContext.get()
        query, number = (
            None if context is None else context.getLocalProperty(name) for name in (QUERY, BATCH)
        )
        if not query or number is None:
            raise BadOption("this Spark does not tell tasks which micro-batch they write")
        prefix = f"{int(number):08}-{uuid.uuid4().hex[:8]}"
        found = files.written(iterator, str(self._path), prefix, self._rows)
        return WrittenTask(query, tuple(row for batch in found for row in batch.to_pylist()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Name the files that the tasks have written, unless the micro-batch was added before.

        Raises `LakeMismatch` if the table has rows of another query, and is exclusive.
        """
        told = [one for one in messages if isinstance(one, WrittenTask)]
        queries = {one.query for one in told}
        if len(queries) > 1:
            raise LakeMismatch(f"{self._path}: tasks of several queries wrote one micro-batch")
        new = [files.new_file(report) for one in told for report in one.reports]
        if self._rows is None:
            _add_messages(self._path, queries, batchId, new)
            return
        if self._exclusive:
            _check_query(self._path, queries)
        _add_rows(self._path, queries, batchId, new)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: no table names the files, and vacuum deletes them."""


def stream_writer(
    path: Path, columns: StructType, overwrite: bool, exclusive: bool = False
) -> LakeWriter:
    """Return a writer for the lake or the table at `path`, which is created if nothing is there.

    Raises `BadOption`, and `LakeMismatch` for a table with other columns.
    """
    if overwrite:
        raise BadOption("a lake is only added to: use outputMode('append')")
    if not delta_log.is_at(path) or Table(path).schema.names != SCHEMA.names:
        return LakeWriter(path, Table(path, columns).schema, exclusive)
    if columns.names != SCHEMA.names:
        raise BadOption(f"{path} keeps a topic: write all columns of a topic, in their order")
    return LakeWriter(path, None)


def _add_messages(path: Path, queries: set[str], number: int, new: Sequence[NewFile]) -> None:
    lake = DeltaLake(path, None)
    for query in queries if new else ():
        lake.add(Batch.of(query, number, new, may_lack=True))
    # A run that was killed behind the transaction left this out, so it is done either way.
    cut = Cut(newest_stamp(path), lake.snapshot().rows)
    if read_cut(path) != cut:
        write_cut(path, cut)


def _check_query(path: Path, queries: set[str]) -> None:
    table = Table(path)
    if table.account.batch >= 0 and any(table.number(query) < 0 for query in queries):
        raise LakeMismatch(
            f"{path} has rows of another query, and this one would add them again, since its "
            "checkpoint was deleted, or all rows are to be made anew (--full-refresh): delete the "
            "table, and the next run makes it again"
        )


def _add_rows(path: Path, queries: set[str], number: int, new: Sequence[NewFile]) -> None:
    table = Table(path)
    before = table.account
    rows = before.rows + sum(file.rows for file in new)
    # The stream below ends micro-batches at stamps: all rows up to the highest one are here.
    told = [json.loads(file.stats).get("maxValues", {}) for file in new]
    stamp = max([before.stamp, *(one.get(STAMP, 0) for one in told)])
    account = replace(before, batch=number, stamp=stamp, messages=rows, rows=rows)
    for query in queries:
        table.add(query, number, new, account)
