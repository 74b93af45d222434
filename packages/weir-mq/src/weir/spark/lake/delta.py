"""A lake as a Delta Lake table, by delta-rs: the driver adds names of files in one transaction.

The transaction names the query and its micro-batch, as Delta has it for streams, and where each
partition goes on: `weir/<partition>` at version <offset>. Delta keeps both for as long as the
table, so a replay adds nothing, and a query with a new checkpoint begins where the table ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.errors import LakeMismatch, MissingLibrary
from weir.model.arrow import SCHEMA
from weir.spark.lake import files as parquet
from weir.spark.lake.layout import (
    COMPACT_BYTES,
    Batch,
    Home,
    KeptFile,
    Snapshot,
    crowded,
    least_kept_ms,
    sync,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Columns of the table: those of a topic, and the day that its folders are named by.
TABLE = SCHEMA.append(pa.field("day", pa.date32()))
_LOG = "_delta_log"
#: The application whose version is the number of partitions that the table knows of.
_COUNT = "weir/partitions"


class DeltaLake:
    """The Delta table in a folder."""

    format = "delta"

    def __init__(self, folder: Path, home: Home | None) -> None:
        """Open the table, or create it for `home`. Raises `LakeMismatch`, `MissingLibrary`."""
        self.folder = folder
        _library()
        if home is not None and not self.is_at(folder):
            self._create(home)
        self.home = self._read_home()
        if home is not None:
            home.check(self.home, folder)

    @staticmethod
    def is_at(folder: Path) -> bool:
        """Whether a folder holds a Delta table."""
        return (folder / _LOG).is_dir() and any((folder / _LOG).iterdir())

    def snapshot(self) -> Snapshot:
        """Return the table as of now."""
        table = self._table()
        return Snapshot(table.version(), _files(table), _positions(table))

    def has(self, application: str, number: int) -> bool:
        """Whether the micro-batch of a query was added."""
        last = self._table().transaction_version(application)
        return last is not None and last >= number

    def add(self, batch: Batch) -> bool:
        """Add a micro-batch's files; return False, and add nothing, if it was added before.

        Raises `LakeMismatch` if the lake has some of the messages from elsewhere, or if another
        query adds at the same time.
        """
        library = _library()
        table = self._table()
        last = table.transaction_version(batch.application)
        if last is not None and last >= batch.number:
            return False
        batch.check(self.home, _positions(table), self.folder)
        count = max([table.transaction_version(_COUNT) or 0, *(p + 1 for p in batch.spans)])
        # Every query writes the count: so of two that add at the same time one fails.
        versions = {batch.application: batch.number, _COUNT: count} | {
            f"weir/{partition}": behind for partition, (_, behind) in sorted(batch.spans.items())
        }
        transactions = [library.Transaction(name, version) for name, version in versions.items()]
        actions = [
            library.transaction.AddAction(
                path=file.path,
                size=file.size,
                partition_values={"day": file.day},
                modification_time=file.modified_ms,
                data_change=True,
                stats=file.stats,
            )
            for file in batch.files
        ]
        try:
            table.create_write_transaction(
                actions,
                "append",
                TABLE,
                partition_by=["day"],
                commit_properties=library.CommitProperties(app_transactions=transactions),
            )
        except library.exceptions.CommitFailedError as error:
            raise LakeMismatch(
                f"{self.folder}: another query archives there at the same time: stop one of them "
                f"({error})"
            ) from None
        self._sync_log()
        return True

    def compact(self, spark: SparkSession, least: int) -> int:
        """Rewrite the small files of days that have `least` or more; return how many there were.

        Executors do it, a task a day; rows stay the same, and so do files for who reads them now.
        """
        before = {file.path for file in _files(self._table())}
        days = crowded(_files(self._table()), least)
        if not days:
            return 0
        root = str(self.folder)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for day in batch.column("day").to_pylist():
                    _library().DeltaTable(root).optimize.compact(
                        partition_filters=[("day", "=", day)],
                        target_size=COMPACT_BYTES,
                        max_concurrent_tasks=1,
                    )
                yield batch

        parquet.in_tasks(spark, [(day,) for day in days], "day string").mapInArrow(
            task, "day string"
        ).collect()
        self._sync_log()
        return len(before - {file.path for file in _files(self._table())})

    def vacuum(self, keep_ms: int) -> int:
        """Delete files that no version of the last `keep_ms` needs; return how many.

        Files that a reader needs stay, and those that a query writes now.
        """
        keep = least_kept_ms(self.folder, keep_ms, int(time.time() * 1_000))
        deleted = self._table().vacuum(
            retention_hours=-(-keep // 3_600_000),
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
        return len(deleted)

    def _create(self, home: Home) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _library().DeltaTable.create(
            str(self.folder),
            TABLE,
            mode="ignore",
            partition_by=["day"],
            description=json.dumps({"weir_topic": home.topic, "id": home.id}),
        )
        self._sync_log()
        sync(self.folder)

    def _read_home(self) -> Home:
        try:
            told = json.loads(self._table().metadata().description or "")
            return Home(str(told["weir_topic"]), int(told["id"]))
        except (ValueError, KeyError, TypeError):
            raise LakeMismatch(
                f"{self.folder} holds a Delta table that keeps no topic: give another folder"
            ) from None

    def _table(self) -> Any:
        return _library().DeltaTable(str(self.folder))

    def _sync_log(self) -> None:
        """Make the log durable: delta-rs leaves that to the system."""
        log = self.folder / _LOG
        newest = max(log.glob("*.json"), default=None)
        if newest is not None:
            sync(newest)
        sync(log)


def _files(table: Any) -> Sequence[KeptFile]:
    rows = pa.table(table.get_add_actions(flatten=True))
    names = ("path", "partition.day", "num_records", "size_bytes")
    columns = [rows[name].to_pylist() for name in names]
    return [
        KeptFile(path, str(day), n or 0, size) for path, day, n, size in zip(*columns, strict=True)
    ]


def _positions(table: Any) -> dict[int, int]:
    """Return where each partition goes on."""
    found = {
        partition: table.transaction_version(f"weir/{partition}")
        for partition in range(table.transaction_version(_COUNT) or 0)
    }
    return {partition: behind for partition, behind in found.items() if behind is not None}


def _library() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ModuleNotFoundError:
        raise MissingLibrary(
            "deltalake is not installed: pip install 'weir-mq[delta]', or archive as plain Parquet"
        ) from None
    return deltalake
