"""`watch`: a `StreamingQueryListener` of Spark, with readers and a page that show what it hears."""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from weir.client.sync.client import Client, connect
from weir.errors import BadOption
from weir.spark.monitoring.page import Page, families
from weir.spark.monitoring.readers import Readers
from weir.spark.monitoring.standing import BAD, OBSERVATION, Standings

_EVERY_SECONDS_LEAST = 0.1
#: How long Spark may take to report that a query has ended, and how often that is looked for.
_REPORTED_SECONDS = 5.0
_LOOK_SECONDS = 0.02


class QueryListener(StreamingQueryListener):
    """Keeps what Spark reports of the streaming queries of a session."""

    def __init__(self, standings: Standings) -> None:
        """Keep it in `standings`."""
        self._standings = standings

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Begin with a query, or go on with one that ran before."""
        self._standings.start(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Add a micro-batch."""
        self._standings.report(event.progress, time.time())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended."""
        self._standings.end(str(event.id), event.exception is not None)


class Watch:
    """What is watched in a session. Use it in a `with` block, or `close` it."""

    def __init__(
        self, spark: SparkSession, readers: Readers, standings: Standings, port: int | None,
        host: str,
    ) -> None:  # fmt: skip
        """Begin. Raises `BadOption` if the page's address is taken."""
        self._spark = spark
        self._readers = readers
        self._standings = standings
        self._listener = QueryListener(standings)
        self._stack = ExitStack()
        self.url = ""
        with ExitStack() as stack:
            if port is not None:
                page = stack.enter_context(Page(self.text, host, port))
                shown = f"[{host}]" if ":" in host else host
                self.url = f"http://{shown}:{page.port}/metrics"
            stack.enter_context(readers)
            spark.streams.addListener(self._listener)
            stack.callback(spark.streams.removeListener, self._listener)
            self._stack = stack.pop_all()

    def text(self) -> str:
        """Return the figures as they are now, in Prometheus' text format."""
        now = time.time()
        found = families(self._standings.all(), self._readers.told, round(now * 1_000))
        return "".join(f"{line}\n" for family in found for line in family.lines())

    def close(self) -> None:
        """Stop watching: tell the broker once more where the queries stand. Queries run on."""
        self._await_ends()
        self._stack.close()

    def _await_ends(self) -> None:
        """Return when Spark has reported the end of each query that has ended: it reports behind
        them, and their last micro-batches before that.
        """
        deadline = time.monotonic() + _REPORTED_SECONDS
        while time.monotonic() < deadline:
            active = {str(query.id) for query in self._spark.streams.active}
            if all(one.id in active for one in self._standings.all() if one.running):
                return
            time.sleep(_LOOK_SECONDS)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


def watch(
    spark: SparkSession,
    url: str,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    readers: bool = True,
    every: float = 5.0,
) -> Watch:
    """Watch the streaming queries of a session; see `weir.spark.watch`."""
    if not every >= _EVERY_SECONDS_LEAST:
        raise BadOption(f"every={every!r}: give {_EVERY_SECONDS_LEAST:g} seconds or more")
    standings = Standings()

    def dial() -> Client:
        return connect(url, name="spark-watch")

    return Watch(spark, Readers(standings, dial, every, readers), standings, port, host)


def count_bad(frame: DataFrame, reason: str) -> DataFrame:
    """Count values that do not fit; see `weir.spark.count_bad`."""
    return frame.observe(OBSERVATION, F.count_if(F.col(reason).isNotNull()).alias(BAD))
