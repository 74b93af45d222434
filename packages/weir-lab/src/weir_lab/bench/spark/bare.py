"""The least that a Python data source of Spark costs: Arrow batches out of a file, nothing else;
and the least that a sink costs: it takes them, and discards them.

What `weir bench spark` holds `format("weir")` against: the same columns and batches, in the same
number of tasks, without a broker, a socket or a check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

NAME = "weir-bare"


@dataclass(frozen=True)
class File(InputPartition):
    """One file of Arrow batches, of which one task reads so many rows."""

    path: str
    rows: int


class BareSource(DataSource):
    """`format("weir-bare")` with the option `files`: paths, divided by line ends; and with `rows`,
    how many of each file are read. As a sink it needs none.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that queries use."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the first file."""
        with pa.memory_map(self._files()[0]) as source:
            return from_arrow_schema(pa.ipc.open_file(source).schema)

    def streamReader(self, schema: StructType) -> BareReader:
        """Return a reader of all files."""
        return BareReader(self._files(), int(self.options.get("rows", 1 << 62)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DiscardingWriter:
        """Return a writer that keeps nothing."""
        return DiscardingWriter()

    def _files(self) -> list[str]:
        return str(self.options["files"]).splitlines()


class BareReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One micro-batch that holds everything."""

    def __init__(self, files: list[str], rows: int) -> None:
        """Take the paths, which workers open, and how many rows of each are read."""
        self._files = files
        self._rows = rows

    def initialOffset(self) -> dict[str, Any]:
        """Return the beginning."""
        return {"done": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return that there is none."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: files do not grow."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end."""
        return {"done": 1}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end, for the progress."""
        return {"done": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for each file."""
        return [File(path, self._rows) for path in self._files]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a file, as they lie there."""
        if not isinstance(partition, File):
            return
        with pa.memory_map(partition.path) as source:
            reader = pa.ipc.open_file(source)
            left = partition.rows
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number).slice(0, left)
                if not batch.num_rows:
                    return
                left -= batch.num_rows
                yield batch


@dataclass(frozen=True)
class Taken(WriterCommitMessage):
    """How many rows a task took."""

    rows: int


class DiscardingWriter(DataSourceStreamArrowWriter):
    """Takes all rows as Arrow, and does nothing with them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Count them."""
        return Taken(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing."""
