"""`spark.read.format("weir")`: a topic between two cuts as a table (MISSION P.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from weir.spark import planning
from weir.spark.barrier_cuts import Complete
from weir.spark.bounds import Latest
from weir.spark.cuts import Cuts
from weir.spark.fetcher import Portion, portions, record_batches
from weir.spark.options import Options


@dataclass(frozen=True)
class Task(InputPartition):
    """The work of one Spark task."""

    portion: Portion


def tasks(portions: Iterable[Portion]) -> list[InputPartition]:
    """Return portions as Spark takes them."""
    return [Task(one) for one in portions]


class BatchReader(DataSourceReader):
    """Reads what lies between two bounds as of the planning; the same rows however often."""

    def __init__(self, options: Options) -> None:
        """Keep the options; no socket, since this is pickled."""
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises `BadOption` for bounds that are not there."""
        options, cuts = self._options, Cuts(self._options)
        complete = Complete(cuts)
        begin = complete.resolve("startingOffsets", options.starting)
        behind = complete.resolve("endingOffsets", options.ending or Latest())
        planning.check_order(options.topic, begin, behind)
        return tasks(portions(options, cuts.describe(), begin, behind))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages as record batches; Spark gives None for a read without tasks."""
        if not isinstance(partition, Task):
            return iter(())
        return record_batches(
            partition.portion,
            self._options.fetch_bytes_max,
            self._options.selection,
        )
