"""The page that Prometheus reads of streaming queries, and what serves it beside a driver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from weir.errors import BadOption
from weir.server.observability.endpoint import CONTENT_TYPE, PLAIN, Answer, Family, Pages, Sample
from weir.spark.monitoring.readers import Told
from weir.spark.monitoring.standing import Standing

#: How long the page may take to be served, and to end.
_START_SECONDS = 10.0


def families(queries: Sequence[Standing], told: Told, now_ms: int) -> Iterator[Family]:
    """Yield every metric of queries as they stand `now_ms` milliseconds after 1970."""

    def of_queries(value: Callable[[Standing], float | None]) -> list[Sample]:
        found = ((query, value(query)) for query in queries)
        return [({"query": one.name}, of) for one, of in found if of is not None]

    for name, kind, about, value in _BY_QUERY:
        yield Family(f"weir_spark_{name}", kind, about, of_queries(value))

    messages: list[Sample] = []
    seconds: list[Sample] = []
    ages: list[Sample] = []
    for query in queries:
        for topic, position in query.positions.items():
            labels = {"query": query.name, "topic": told.topics.get(topic, str(topic))}
            lag = told.lags.get((query.name, topic))
            behind = lag.messages if lag else position.lag
            if behind is not None:
                messages.append((labels, behind))
            if lag:
                seconds.append((labels, lag.seconds))
            age = position.barrier_age(now_ms)
            if age is not None:
                ages.append((labels, age))
    about = "Messages of a topic that the query has not read."
    yield Family("weir_spark_lag_messages", "gauge", about, messages)
    about = "Seconds since the oldest message was published that the query has not read."
    yield Family("weir_spark_lag_seconds", "gauge", about, seconds)
    about = "Seconds since the barrier up to which the query has read everything."
    yield Family("weir_spark_barrier_age_seconds", "gauge", about, ages)
    about = "Times that the broker was not told how far queries are."
    yield Family("weir_spark_report_failures_total", "counter", about, [({}, told.failures)])


_BY_QUERY: Any = (
    ("running", "gauge", "1 while the query runs.", lambda one: int(one.running)),
    ("failures_total", "counter", "Times that the query ended by an error.",
     lambda one: one.failures),
    ("batches_total", "counter", "Micro-batches.", lambda one: one.batches),
    ("rows_total", "counter", "Rows read from topics.", lambda one: one.rows),
    ("lost_messages_total", "counter",
     "Messages that retention deleted before the query read them.", lambda one: one.lost),
    ("batch_seconds", "gauge", "How long the last micro-batch took.",
     lambda one: one.batch_seconds),
    ("last_batch_timestamp_seconds", "gauge", "When the last micro-batch ended.",
     lambda one: one.reported or None),
    ("bad_values_total", "counter", "Values that do not fit, of queries that count them.",
     lambda one: one.bad),
    ("late_rows_total", "counter", "Rows that came behind the watermark, and were left out.",
     lambda one: one.late),
    ("times_out_of_range_total", "counter",
     "Times that Spark cannot hold, of queries that count them.",
     lambda one: one.times_out_of_range),
)  # fmt: skip


class Page:
    """Serves /metrics and /healthz from a thread with a loop of its own."""

    def __init__(self, text: Callable[[], str], host: str, port: int) -> None:
        self._text = text
        self._host = host
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._bound = threading.Event()
        self._error: OSError | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="weir-spark-page", daemon=True)

    def __enter__(self) -> Page:
        self._thread.start()
        self._bound.wait(_START_SECONDS)
        if self._error is not None or not self.port:
            reason = self._error.strerror if self._error else "nothing listens yet"
            self._end()
            raise BadOption(
                f"port={self._port}: {self._host}:{self._port} cannot be listened on ({reason}): "
                "give another port, or 0 for a free one"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_START_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except (OSError, OverflowError) as error:
                self._error = error if isinstance(error, OSError) else OSError(0, str(error))
            finally:
                self._bound.set()

    async def _serve(self) -> None:
        async def figures() -> Answer:
            return 200, CONTENT_TYPE, self._text()

        async def healthy() -> Answer:
            return 200, PLAIN, "alive\n"

        pages = Pages({"/metrics": figures, "/healthz": healthy}, cheap=("/healthz",))
        async with pages.listening(self._host, self._port) as bound:
            self.port = bound
            self._bound.set()
            await self._stopping.wait()
