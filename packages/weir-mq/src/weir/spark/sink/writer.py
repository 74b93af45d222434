"""Writes what Spark gives exactly once: tasks stage it, and the driver's commit publishes it.

Each attempt of a task stages runs of its own, which nobody sees. What Spark chose is published at
one stamp, under the query's name and the number of its batch; the broker remembers both, so a batch
that Spark runs again after a crash adds nothing. What no commit names expires within an hour.

Spark forks its Python workers and uses each for many tasks, and module globals live on between
them: so does a client, one a process and system.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from weir.client.client import Connecting
from weir.client.connection.system import SYSTEM
from weir.client.core.retries import Backoff
from weir.client.sinks import StagedPart
from weir.client.sync.client import Client, connected
from weir.errors import BadOption, CheckpointMismatch
from weir.spark.blocking_client import ANSWER_TIMEOUT, ask
from weir.spark.login import Hosts, credentials_of
from weir.spark.sink.columns import by_topic, check_columns
from weir.spark.sink.options import SinkOptions

log = logging.getLogger("weir.spark")

#: By hosts and process: a client does not outlive a fork.
_kept: dict[tuple[Hosts, int], Client] = {}

#: What Spark tells the tasks of a micro-batch. The names are its own, and a test holds them.
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedTask(WriterCommitMessage):
    """What a task has staged, for the driver."""

    query: str
    batch_id: int
    task: int
    parts: tuple[StagedPart, ...] = ()


def check(schema: StructType, overwrite: bool, options: SinkOptions) -> None:
    """Raise `BadOption` for what cannot be written."""
    if overwrite:
        raise BadOption(
            "a topic is never overwritten: use mode('append') or outputMode('append'), and delete "
            "the topic to begin anew"
        )
    check_columns(schema, options)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        """Keep the options; no socket, since this is pickled."""
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one attempt of a task."""
        context = TaskContext.get()
        query, batch = (
            None if context is None else context.getLocalProperty(name) for name in (QUERY, BATCH)
        )
        if batch is None or not (query or self._options.query):
            raise BadOption(
                "this Spark does not tell tasks which micro-batch they write: use foreachBatch "
                "with .write.option('id', ...).option('batch', batch_id)"
            )
        return stage(iterator, self._options, self._options.query or str(query), int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks have staged, unless that was done before."""
        publish(messages, self._options, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: nobody sees what is staged, and it expires."""


class TableWriter(DataSourceArrowWriter):
    """Writes a table at once."""

    def __init__(self, options: SinkOptions) -> None:
        """Draw a name, unless the user has given one; no socket, since this is pickled."""
        self._options = options
        self._query = options.query or f"write-{uuid4()}"
        if not options.query:
            log.warning(
                "df.write without an id: a write that is repeated is there twice. "
                ".option('id', ...) makes it repeatable"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one attempt of a task."""
        return stage(iterator, self._options, self._query, self._options.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged, unless that was done before."""
        publish(messages, self._options, self._options.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: nobody sees what is staged, and it expires."""


def stage(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, query: str, batch_id: int
) -> StagedTask:
    """Stage the rows of a task; return what names them. Raises as `SinkWriter.write`, and as
    `by_topic`.
    """
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    writer, rows = None, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if writer is None:
            sink = client_of(options.hosts).sink(query)
            writer = sink.writer(batch_id, schema=options.schema)
        for some in by_topic(batch, options, rows):
            writer.write(some.topic, some.messages, partition=some.partitions)
        rows += batch.num_rows
    parts = () if writer is None else tuple(writer.finish())
    return StagedTask(query, batch_id, task, parts)


def publish(
    messages: Sequence[WriterCommitMessage | None], options: SinkOptions, batch_id: int
) -> None:
    """Publish what tasks have staged, in the order of the tasks, as one batch of their query.

    Raises as `Sink.publish`, and `CheckpointMismatch` if tasks have staged for something else.
    """
    staged = sorted(
        (one for one in messages if isinstance(one, StagedTask)), key=lambda one: one.task
    )
    others = {(one.query, one.batch_id) for one in staged}
    if len(others) > 1 or any(number != batch_id for _, number in others):
        raise CheckpointMismatch(
            f"tasks have staged {sorted(others)}, and batch {batch_id} is to be published: start "
            "the query again"
        )
    parts = [part for one in staged for part in one.parts]
    if not parts:
        return  # a batch without rows
    (query, _), *_ = others
    if client_of(options.hosts).sink(query).publish(batch_id, parts).duplicate:
        log.warning("batch %d of %s was published before: nothing is added", batch_id, query)


def client_of(hosts: Hosts) -> Client:
    """Return this process's client of a system, connected; it dials again by itself.

    Raises `Disconnected` if no host can be reached: within seconds if none has an address.
    """
    key = hosts, SYSTEM.get().process()
    if key not in _kept:
        ask(hosts, lambda client: client.welcome)  # finds out soon about a name that is misspelt
        name = f"spark-sink-{key[1]}"
        connecting = Connecting([*hosts], name, Backoff(), ANSWER_TIMEOUT, credentials_of(hosts))
        _kept[key] = connected(connecting)
    return _kept[key]


def forget_all() -> None:
    """Close all clients of this process."""
    here = SYSTEM.get().process()
    for key in [key for key in _kept if key[1] == here]:
        _kept.pop(key).close()
