"""The least that a Python data source of Spark costs: Arrow batches out of a file, nothing else.

What `weir bench spark` holds `format("weir")` against: the same columns and batches, in the same
number of tasks, without a broker, a socket or a check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
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
    """One file of Arrow batches, read by one task."""

    path: str


class BareSource(DataSource):
    """`format("weir-bare")` with the option `files`: paths, divided by line ends."""

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
        return BareReader(self._files())

    def _files(self) -> list[str]:
        return str(self.options["files"]).splitlines()


class BareReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One micro-batch that holds everything."""

    def __init__(self, files: list[str]) -> None:
        """Take the paths, which workers open."""
        self._files = files

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
        return [File(path) for path in self._files]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a file, as they lie there."""
        if not isinstance(partition, File):
            return
        with pa.memory_map(partition.path) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
