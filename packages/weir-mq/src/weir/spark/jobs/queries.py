"""How jobs run: micro-batches of a topic under a checkpoint, to today's end or until stopped.

A job that aggregates writes what it makes of a micro-batch to a folder of that batch's number. A
replay has the same number and the same messages, so it overwrites what an earlier try left there.
In the end the folders are read as one table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from weir import errors
from weir.errors import BadOption, CheckpointMismatch, NotWritable, WeirError

#: How often a running query is asked how far it is.
LOOK_EVERY_SECONDS = 1
#: An error of ours as PySpark hands it on: the last line of a traceback of another process.
_OURS = re.compile(r"\bweir\.errors\.(\w+): (.+)")
#: What Java says of a disk that takes nothing more.
_FULL = re.compile(r"java\.io\.\w+: .*(No space left on device|Disk quota exceeded)")
#: The last line of a traceback of Python.
_ERROR = re.compile(r"(\w+\.)*\w+(Error|Exception): ")

#: Told the number of messages that a run has read so far.
Progress = Callable[[int], None]
#: Whether the job was asked to end.
Asked = Callable[[], bool]
#: What is done with a micro-batch: its messages, its query's id, its number.
Work = Callable[[DataFrame, str, int], None]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic to read: its broker, its name, and options of `format("weir")`."""

    url: str
    name: str
    options: Mapping[str, str | int] | None = None

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return it as a stream."""
        reader = spark.readStream.format("weir")
        for name, value in self._all().items():
            reader = reader.option(name, value)
        return reader.load()

    def table(self, spark: SparkSession) -> DataFrame:
        """Return it as a table, as of now."""
        reader = spark.read.format("weir")
        for name, value in self._all().items():
            reader = reader.option(name, value)
        return reader.load()

    def _all(self) -> dict[str, str | int]:
        return {"url": self.url, "topic": self.name, **(self.options or {})}


def run(
    messages: DataFrame,
    work: Work,
    checkpoint: str,
    *,
    name: str = "",
    progress: Progress | None = None,
    available_now: bool = True,
    is_stopped: Asked | None = None,
) -> str:
    """Do `work` with each micro-batch of a stream, in order; return the query's id.

    It ends at today's end, or with `available_now=False` when the query is stopped, `is_stopped`
    says so, which is asked every second, or without that, Ctrl-C comes. `name` is the query's.
    An error of `work`, or of weir's source, is raised as it is; others as Spark words them.
    """
    if not messages.isStreaming:
        raise BadOption("this DataFrame is no stream: load it with spark.readStream")
    failed: list[BaseException] = []

    def batch(frame: DataFrame, number: int) -> None:
        # Spark sets it for every micro-batch.
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        try:
            work(frame, query, number)
        except BaseException as error:
            failed.append(error)
            raise

    writer = messages.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
    if available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="1 second")
    query = (writer.queryName(name) if name else writer).start()
    try:
        wait(query, progress, is_stopped)
    except KeyboardInterrupt:
        # Ctrl-C is an end only for a query that follows and has no `is_stopped`.
        if available_now or is_stopped is not None:
            raise
    except PySparkException as error:
        cause = failed[0] if failed else error
        if _FULL.search(str(cause)):
            raise NotWritable(
                f"no space is left on a disk that Spark writes to: the checkpoint {checkpoint}, "
                "results, or its own files (spark.local.dir): make room there, then start again "
                "with the same folders: nothing is counted twice"
            ) from None
        raise_ours(cause)
    finally:
        if query.isActive:
            query.stop()
    return str(query.id)


def wait(
    query: StreamingQuery, progress: Progress | None = None, is_stopped: Asked | None = None
) -> None:
    """Return when a query has ended or is to be stopped; what ended it, if it failed, is raised."""
    counted: dict[int, int] = {}
    told = -1
    while True:
        ended = query.awaitTermination(LOOK_EVERY_SECONDS)
        counted |= {batch.batchId: batch.numInputRows for batch in query.recentProgress}
        messages = sum(counted.values())
        if progress is not None and messages != told:
            progress(messages)
            told = messages
        if ended or (is_stopped is not None and is_stopped()):
            return


def raise_ours(error: BaseException) -> NoReturn:
    """Raise the error of weir that Spark reports in `error`; if there is none, `error` itself."""
    if isinstance(error, WeirError):
        raise error
    for name, text in _OURS.findall(str(error)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.Refused):
            raise kind(text, 0) from None
        if isinstance(kind, type) and issubclass(kind, WeirError):
            raise kind(text) from None
    raise error


def reason(error: PySparkException) -> str:
    """Return the one line of a failure that says why; Spark's own are pages long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if _ERROR.match(line)]
    return (told or lines or [type(error).__name__])[-1 if told else 0]


def text_of(column: str) -> Column:
    """Return bytes as text; null where they are no UTF-8."""
    return F.try_validate_utf8(F.col(column).cast("string"))


@dataclass(frozen=True, slots=True)
class Parts:
    """Tables of micro-batches below a folder, for one query: `schema` is a DDL string."""

    out: str
    schema: str

    def write(self, frame: DataFrame, query: str, number: int) -> None:
        """Write what was made of a micro-batch, over whatever an earlier try of it left."""
        frame.write.mode("overwrite").parquet(f"{self.out}/batches/{query}/batch={number}")

    def read(self, spark: SparkSession, query: str) -> DataFrame:
        """Return the tables of all micro-batches as one; a new checkpoint begins a new one."""
        try:
            return spark.read.schema(self.schema).parquet(f"{self.out}/batches/{query}")
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            # No micro-batch has run: the topic is empty.
            return spark.createDataFrame([], self.schema)


def gathered(
    messages: DataFrame,
    parse: Callable[[DataFrame], DataFrame],
    parts: Parts,
    checkpoint: str,
    *,
    progress: Progress | None = None,
    available_now: bool = True,
    is_stopped: Asked | None = None,
) -> DataFrame:
    """Parse each micro-batch of a stream into `parts`, as `run` does its work; return all that this
    query has parsed so far, in earlier runs too.
    """

    def work(frame: DataFrame, query: str, number: int) -> None:
        parts.write(parse(frame), query, number)

    query = run(
        messages,
        work,
        checkpoint,
        progress=progress,
        available_now=available_now,
        is_stopped=is_stopped,
    )
    return parts.read(messages.sparkSession, query)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run read: `good` messages and `bad` ones are all of them."""

    messages: int
    good: int
    bad: int

    def check(self, where: str) -> None:
        """Raise `CheckpointMismatch` if good and bad messages are not all that were read."""
        if self.good + self.bad != self.messages:
            raise CheckpointMismatch(
                f"{self.good:,} good and {self.bad:,} bad messages are not the {self.messages:,} "
                f"that were read: {where} was changed by somebody else; begin with new folders"
            )

    def to_json(self) -> dict[str, Any]:
        """Return them for `--json`."""
        return {"messages": self.messages, "good": self.good, "bad": self.bad}
