"""Keep a topic in a lake: Delta Lake or plain Parquet, each message once, read as one table.

Executors write a micro-batch as Parquet files by day; then the driver adds their names in one
transaction, under the query's id and the micro-batch's number. A driver that is killed in between
leaves files that no table names, which vacuum deletes; the replay writes the messages again. One
that is killed behind the transaction adds nothing when Spark runs the micro-batch again.

The lake also says where each partition goes on. So a query whose checkpoint was lost begins where
the lake ends, and `read` joins the lake with what the broker has behind it, row for row.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from weir.client.sync import client as sync
from weir.errors import BadOption
from weir.model.arrow import SCHEMA
from weir.spark.jobs.queries import Asked, Progress, Topic, Totals, run
from weir.spark.lake import Format, Home, Lake, open_lake
from weir.spark.lake import files as parquet
from weir.spark.lake.layout import Batch, NewFile, Snapshot

#: A day with so many small files is compacted.
COMPACT_FILES = 16
#: What was replaced is deleted after so many hours.
KEEP_HOURS = 7 * 24
#: A following query looks for small files and old ones after so many micro-batches.
_TIDY_EVERY = 32
_CHECKPOINT = "_weir/checkpoint"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How a lake is tidied up: `compact_files` small files of a day are merged, and what was
    replaced is deleted after `keep_hours`, at least one; 0 files or None hours leave that out.
    """

    compact_files: int = COMPACT_FILES
    keep_hours: float | None = KEEP_HOURS


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run added, and what the lake holds now.

    `messages` were read; `good` ones are whole, `bad` ones have no value in the lake because it was
    too large. `repeated` micro-batches were in the lake already and added nothing. `compacted` and
    `deleted` are files.
    """

    messages: int = 0
    good: int = 0
    bad: int = 0
    batches: int = 0
    repeated: int = 0
    files: int = 0
    bytes: int = 0
    compacted: int = 0
    deleted: int = 0
    lake_messages: int = 0
    lake_files: int = 0
    version: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def archive(
    spark: SparkSession,
    url: str,
    topic: str,
    folder: str,
    *,
    format: Format | None = None,
    checkpoint: str | None = None,
    rows_per_batch: int = 1_000_000,
    available_now: bool = True,
    upkeep: Upkeep | None = None,
    progress: Progress | None = None,
    is_stopped: Asked | None = None,
) -> Archived:
    """Add what a topic holds, and is not in the lake, up to today's end or until Ctrl-C.

    `checkpoint` is a folder of Spark's, by default within the lake. Started again, it goes on,
    whatever ended the last run. Raises `LakeMismatch`, `BadOption`, `NotWritable` where a disk is
    full, and what the source raises.
    """
    started = time.monotonic()
    lake = open_lake(folder, _home(url, topic), format)
    source = Topic(url, topic, options(lake, rows_per_batch))
    job = _Job(lake, upkeep or Upkeep(), available_now)
    run(
        source.stream(spark),
        job.take,
        checkpoint or f"file://{lake.folder / _CHECKPOINT}",
        progress=progress,
        available_now=available_now,
        is_stopped=is_stopped,
    )
    job.tidy(spark)
    now = lake.snapshot()
    Totals(job.done.messages, job.done.good, job.done.bad).check(folder)
    return replace(
        job.done,
        lake_messages=now.rows,
        lake_files=len(now.files),
        version=now.version,
        seconds=time.monotonic() - started,
    )


def add(
    messages: DataFrame, folder: str, application: str, number: int, *, format: Format | None = None
) -> Archived:
    """Add the messages of a table, of one topic, in one transaction (application, number).

    Done again it adds nothing, and numbers of an application must rise: so a backfill is repeated
    until it is through. `messages` has the columns of a topic; a stream calls this for each
    micro-batch. Raises `LakeMismatch` if the lake has some of the messages under another name.
    """
    if messages.isStreaming:
        raise BadOption("this DataFrame is a stream: use archive(), or foreachBatch")
    if not application or application.startswith("weir/") or number < 0:
        raise BadOption("application is a name of yours, not weir/..., and number is from 0 on")
    if missing := [name for name in SCHEMA.names if name not in messages.columns]:
        raise BadOption(f"the DataFrame has no column {missing[0]!r}: read the topic whole")
    first = messages.select("topic").first()
    if first is None:
        return Archived()
    lake = open_lake(folder, Home(first.topic, 0), format)
    return take(lake, messages, application, number, is_stream=False)


def read(
    spark: SparkSession, folder: str, *, topic: str | None = None, tail: str | None = None
) -> DataFrame:
    """Return a lake as a table with the columns of a topic, as of now.

    Raises `LakeMismatch` if it keeps another topic than `topic`.

    With `tail`, a broker's URL, what the broker has behind the lake is part of it: the lake's
    last micro-batch ends at a barrier (for a topic in total order), and the tail begins there, so
    each message is in it once. Where vacuum may run meanwhile, call it and work on what it returns
    in a block of `weir.spark.lake.layout.reading`, which keeps the files.
    """
    lake = open_lake(folder)
    if topic is not None:
        Home(topic, 0).check(lake.home, lake.folder)
    now = lake.snapshot()
    archived = _table(spark, lake.folder, now)
    if tail is None:
        return archived
    begin = json.dumps({str(p): at for p, at in sorted(now.positions.items())})
    behind = Topic(tail, lake.home.topic, {"startingOffsets": begin, "largeValues": "null"})
    if lake.home.id:
        lake.home.check(_home(tail, lake.home.topic), lake.folder)
    return archived.unionByName(behind.table(spark))


def _table(spark: SparkSession, folder: Path, now: Snapshot) -> DataFrame:
    schema = from_arrow_schema(SCHEMA)
    if not now.files:
        return spark.createDataFrame([], schema)
    paths = [f"file://{folder / file.path}" for file in now.files]
    # Spark takes the day of their folders for one more column.
    return spark.read.schema(schema).parquet(*paths).select(*SCHEMA.names)


def _home(url: str, topic: str) -> Home:
    with sync.connect(url) as client:
        info = client.describe(topic)
    return Home(topic, info.id)


def options(lake: Lake, rows_per_batch: int) -> dict[str, str | int]:
    """Return the options of the source; a checkpoint that is there has the last word."""
    positions = lake.snapshot().positions
    begin = json.dumps({str(p): at for p, at in sorted(positions.items())})
    given: dict[str, str | int] = {"maxRowsPerBatch": rows_per_batch, "largeValues": "null"}
    return {**given, "startingOffsets": begin} if positions else given


class _Job:
    """Adds micro-batches to a lake, and keeps count."""

    def __init__(self, lake: Lake, upkeep: Upkeep, available_now: bool) -> None:
        self._lake = lake
        self._upkeep = upkeep
        self._follows = not available_now
        self.done = Archived()

    def take(self, messages: DataFrame, query: str, number: int) -> None:
        """Add a micro-batch, unless it was added before."""
        one = take(self._lake, messages, query, number)
        self.done = plus(self.done, one)
        if self._follows and self.done.batches % _TIDY_EVERY == 0:
            self.tidy(messages.sparkSession)

    def tidy(self, spark: SparkSession) -> None:
        """Compact crowded days, and delete what nobody needs any more."""
        merged, deleted = tidy(self._lake, spark, self._upkeep)
        self.done = replace(
            self.done,
            compacted=self.done.compacted + merged,
            deleted=self.done.deleted + deleted,
        )


class Tidied(Protocol):
    """A lake, or a table of one."""

    def compact(self, spark: SparkSession, least: int, /) -> int:
        """Merge the small files of days that have `least` or more; return how many there were."""

    def vacuum(self, keep_ms: int, /) -> int:
        """Delete what no version of the last `keep_ms` needs; return how many files."""


def tidy(table: Tidied, spark: SparkSession, upkeep: Upkeep) -> tuple[int, int]:
    """Compact crowded days, and delete what nobody needs any more; return how many files."""
    merged = table.compact(spark, upkeep.compact_files) if upkeep.compact_files else 0
    if upkeep.keep_hours is None:
        return merged, 0
    return merged, table.vacuum(int(upkeep.keep_hours * 3_600_000))


def take(
    lake: Lake, messages: DataFrame, application: str, number: int, is_stream: bool = True
) -> Archived:
    """Add the messages of a micro-batch to an open lake, unless they were added before. Of a table
    of somebody's, which is not read by a stream of weir, each offset must be there.
    """
    if lake.has(application, number):
        return Archived(repeated=1)
    files = parquet.write(messages, lake.folder, f"{number:08}-{uuid.uuid4().hex[:8]}")
    if not files:
        return Archived()
    batch = Batch.of(application, number, files, may_lack=is_stream)
    if not lake.add(batch):
        return Archived(repeated=1)
    return _added(batch, files)


def _added(batch: Batch, files: Sequence[NewFile]) -> Archived:
    bad = sum(file.bad for file in files)
    return Archived(
        messages=batch.messages,
        good=sum(file.rows for file in files) - bad,
        bad=bad,
        batches=1,
        files=len(files),
        bytes=sum(file.size for file in files),
    )


def plus(one: Archived, other: Archived) -> Archived:
    """Return what two micro-batches added together."""
    added = asdict(other)
    return Archived(**{name: value + added[name] for name, value in asdict(one).items()})
