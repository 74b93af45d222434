"""A lake as a Delta Lake table, by delta-rs: the driver adds names of files in one transaction.

The transaction names the query and its micro-batch, as Delta has it for streams, and where each
partition goes on: `weir/<partition>` at version <offset>. Delta keeps both for as long as the
table, so a replay adds nothing, and a query with a new checkpoint begins where the table ends.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.errors import LakeMismatch
from weir.model.arrow import SCHEMA
from weir.spark.lake import delta_log
from weir.spark.lake.layout import Batch, Home, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Columns of the table: those of a topic, and the day that its folders are named by.
TABLE = SCHEMA.append(pa.field("day", pa.date32()))
#: The application whose version is the number of partitions that the table knows of.
_COUNT = "weir/partitions"


class DeltaLake:
    """The Delta table in a folder."""

    format = "delta"

    def __init__(self, folder: Path, home: Home | None) -> None:
        """Open the table, or create it for `home`. Raises `LakeMismatch`, `MissingLibrary`."""
        self.folder = folder
        delta_log.library()
        if home is not None and not self.is_at(folder):
            told = json.dumps({"weir_topic": home.topic, "id": home.id})
            delta_log.create(folder, TABLE, True, told)
        self.home = self._read_home()
        if home is not None:
            home.check(self.home, folder)

    @staticmethod
    def is_at(folder: Path) -> bool:
        """Whether a folder holds a Delta table."""
        return delta_log.is_at(folder)

    def snapshot(self) -> Snapshot:
        """Return the table as of now."""
        table = delta_log.read(self.folder)
        return Snapshot(table.version(), delta_log.kept_files(table), _positions(table))

    def has(self, application: str, number: int) -> bool:
        """Whether the micro-batch of a query was added."""
        last = delta_log.read(self.folder).transaction_version(application)
        return last is not None and last >= number

    def add(self, batch: Batch) -> bool:
        """Add a micro-batch's files; return False, and add nothing, if it was added before.

        Raises `LakeMismatch` if the lake has some of the messages from elsewhere, or if another
        query adds at the same time.
        """
        table = delta_log.read(self.folder)
        last = table.transaction_version(batch.application)
        if last is not None and last >= batch.number:
            return False
        batch.check(self.home, _positions(table), self.folder)
        count = max([table.transaction_version(_COUNT) or 0, *(p + 1 for p in batch.spans)])
        # Every query writes the count: so of two that add at the same time one fails.
        versions = {batch.application: batch.number, _COUNT: count} | {
            f"weir/{partition}": behind for partition, (_, behind) in sorted(batch.spans.items())
        }
        delta_log.commit(self.folder, table, batch.files, TABLE, versions)
        return True

    def compact(self, spark: SparkSession, least: int) -> int:
        """Rewrite the small files of days that have `least` or more; return how many there were.

        Executors do it, a task a day; rows stay the same, and present readers keep their files.
        """
        return delta_log.compact(spark, self.folder, least)

    def vacuum(self, keep_ms: int) -> int:
        """Delete files that no version of the last `keep_ms` needs; return how many.

        Files that a reader needs stay, and those that a query writes now.
        """
        return delta_log.vacuum(self.folder, keep_ms)

    def _read_home(self) -> Home:
        try:
            told = json.loads(delta_log.read(self.folder).metadata().description or "")
            return Home(str(told["weir_topic"]), int(told["id"]))
        except (ValueError, KeyError, TypeError):
            raise LakeMismatch(
                f"{self.folder} holds a Delta table that keeps no topic: give another folder"
            ) from None


def _positions(table: Any) -> dict[int, int]:
    """Return where each partition goes on."""
    found = {
        partition: table.transaction_version(f"weir/{partition}")
        for partition in range(table.transaction_version(_COUNT) or 0)
    }
    return {partition: behind for partition, behind in found.items() if behind is not None}
