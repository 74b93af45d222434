"""The log of a Delta Lake table, by delta-rs: transactions that name files, and upkeep.

What a transaction says beside its files are versions of applications, as Delta has them for
streams: whole numbers that stay for as long as the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.errors import LakeMismatch, MissingLibrary
from weir.spark.lake import files as parquet
from weir.spark.lake.layout import (
    COMPACT_BYTES,
    KeptFile,
    NewFile,
    crowded,
    least_kept_ms,
    sync,
    writing,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = "_delta_log"


def is_at(folder: Path) -> bool:
    """Whether a folder holds a Delta table."""
    return (folder / _LOG).is_dir() and any((folder / _LOG).iterdir())


def create(folder: Path, schema: pa.Schema, by_day: bool, description: str) -> None:
    """Create a table, durably, unless one is there. Raises `MissingLibrary`."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        library().DeltaTable.create(
            str(folder),
            schema,
            mode="ignore",
            partition_by=["day"] if by_day else None,
            description=description,
        )
        sync_log(folder)
        sync(folder)


def read(folder: Path) -> Any:
    """Return the table as of now, as delta-rs has it."""
    return library().DeltaTable(str(folder))


def kept_files(table: Any) -> Sequence[KeptFile]:
    """Return the files of a table; those of one that is not kept by days have the day ""."""
    rows = pa.table(table.get_add_actions(flatten=True))
    none = [None] * len(rows)

    def column(name: str) -> list[Any]:
        return rows[name].to_pylist() if name in rows.column_names else none

    stamps = zip(column("min.stamp"), column("max.stamp"), strict=True)
    return [
        KeptFile(path, str(day or ""), n or 0, size, None if low is None else (low, high))
        for path, day, n, size, (low, high) in zip(
            column("path"),
            column("partition.day"),
            column("num_records"),
            column("size_bytes"),
            stamps,
            strict=True,
        )
    ]


def commit(
    folder: Path,
    table: Any,
    files: Sequence[NewFile],
    schema: pa.Schema,
    versions: Mapping[str, int],
) -> None:
    """Add files in one durable transaction, which sets the versions of applications.

    Raises `LakeMismatch` if another transaction set one of them since `table` was read.
    """
    has_days = "day" in schema.names
    actions = [
        library().transaction.AddAction(
            path=file.path,
            size=file.size,
            partition_values={"day": file.day} if has_days else {},
            modification_time=file.modified_ms,
            data_change=True,
            stats=file.stats,
        )
        for file in files
    ]
    transactions = [library().Transaction(name, version) for name, version in versions.items()]
    try:
        with writing(folder / _LOG):
            table.create_write_transaction(
                actions,
                "append",
                schema,
                partition_by=["day"] if has_days else None,
                commit_properties=library().CommitProperties(app_transactions=transactions),
            )
    except library().exceptions.CommitFailedError as error:
        raise LakeMismatch(
            f"{folder}: another query writes there at the same time: stop one of them ({error})"
        ) from None
    sync_log(folder)


def compact(spark: SparkSession, folder: Path, least: int) -> int:
    """Rewrite the small files of days that have `least` or more; return how many there were.

    Executors do it, a task a day; rows stay the same, and present readers keep their files.
    """
    before = kept_files(read(folder))
    days = crowded(before, least)
    if not days:
        return 0
    root = str(folder)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for day in batch.column("day").to_pylist():
                with writing(Path(root)):
                    library().DeltaTable(root).optimize.compact(
                        partition_filters=[("day", "=", day)] if day else None,
                        target_size=COMPACT_BYTES,
                        max_concurrent_tasks=1,
                    )
            yield batch

    parquet.in_tasks(spark, [(day,) for day in days], "day string").mapInArrow(
        task, "day string"
    ).collect()
    sync_log(folder)
    after = {file.path for file in kept_files(read(folder))}
    return len({file.path for file in before} - after)


def vacuum(folder: Path, keep_ms: int) -> int:
    """Delete files that no version of the last `keep_ms` needs; return how many.

    Files that a reader needs stay, and those that a query writes now.
    """
    keep = least_kept_ms(folder, keep_ms, int(time.time() * 1_000))
    deleted = read(folder).vacuum(
        retention_hours=-(-keep // 3_600_000),
        dry_run=False,
        enforce_retention_duration=False,
        full=True,
    )
    return len(deleted)


def sync_log(folder: Path) -> None:
    """Make the log durable: delta-rs leaves that to the system."""
    log = folder / _LOG
    newest = max(log.glob("*.json"), default=None)
    with writing(log):
        if newest is not None:
            sync(newest)
        sync(log)


def library() -> Any:
    """Return delta-rs. Raises `MissingLibrary`."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ModuleNotFoundError:
        raise MissingLibrary(
            "deltalake is not installed: pip install 'weir-mq[delta]', or archive as plain Parquet"
        ) from None
    return deltalake
