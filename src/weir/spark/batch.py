"""`spark.read.format("weir")`: a topic between two cuts as a table (MISSION P.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from weir.spark import planning
from weir.spark.bounds import Latest
from weir.spark.complete import Complete
from weir.spark.cuts import Cuts
from weir.spark.fetching import Source, record_batches
from weir.spark.options import Options
from weir.spark.planning import Cut, Range
from weir.wire.messages import TopicInfo


@dataclass(frozen=True)
class Task(InputPartition):
    """The work of one Spark task: a range, and where it is to be had."""

    source: Source
    range: Range


def tasks(options: Options, info: TopicInfo, begin: Cut, behind: Cut) -> list[InputPartition]:
    """Return the tasks that read [begin, behind), in the portions that the options ask for."""
    parts = planning.ranges(begin, behind, options.partitions_min, options.partition_rows_max)
    hosts, topic, large = options.hosts, options.topic, options.large
    return [
        Task(Source(hosts, topic, info.addresses[part.partition], large), part) for part in parts
    ]


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
        return tasks(options, cuts.describe(), begin, behind)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages as record batches; Spark gives None for a read without tasks."""
        if not isinstance(partition, Task):
            return iter(())
        return record_batches(
            partition.source,
            partition.range,
            self._options.fetch_bytes_max,
            self._options.selection,
        )
