"""Tells the broker how far queries are, so that `weir cluster list` shows them as readers.

A reader is a consumer cluster without consumers, named after the query: its position is the
query's, and the broker says how many messages lie behind that and how old the oldest is. It stays
when the query has ended, since the query may continue; `weir cluster delete` forgets it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType

from weir.client.administration import Cluster
from weir.client.sync.client import Client
from weir.errors import Refused, WeirError
from weir.spark.monitoring.standing import Standing, Standings

log = logging.getLogger(__name__)

#: How long `close` waits for a round that is under way.
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Lag:
    """What the broker says of a reader: messages not read, and seconds since the oldest of them was
    published, 0 if all are read.
    """

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Told:
    """What the broker said last: the names of topics by id, and lags by reader and topic id."""

    topics: dict[int, str]
    lags: dict[tuple[str, int], Lag]
    #: Rounds that failed; the next one says the same again.
    failures: int = 0


class Readers:
    """Tells a broker in a thread of its own, every `seconds`, where queries stand."""

    def __init__(
        self,
        standings: Standings,
        connect: Callable[[], Client],
        seconds: float,
        named: bool,
    ) -> None:
        """Take the queries, and what connects to the broker. Unless `named`, only the names of
        topics are asked for, and nothing is written to the broker.
        """
        self._standings = standings
        self._connect = connect
        self._seconds = seconds
        self._named = named
        self._client: Client | None = None
        self._told = Told({}, {})
        #: Where readers were put by this object, by reader and topic id.
        self._placed: dict[tuple[str, int], dict[int, int]] = {}
        self._warned = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weir-spark-readers", daemon=True)

    @property
    def told(self) -> Told:
        """What the broker said in the last round that succeeded, and how many failed."""
        return self._told

    def __enter__(self) -> Readers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End the thread, after one more round: the last micro-batches count too."""
        self._stopping.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            ending = False
            while not ending:
                ending = self._stopping.wait(self._seconds)
                self._round()
        finally:
            self._hang_up()

    def _round(self) -> None:
        """Tell and ask once. A broker that is away is no error of the query: figures go on."""
        lags: dict[tuple[str, int], Lag] = {}
        problem = ""
        try:
            if self._client is None:
                self._client = self._connect()
            problem = self._exchange(self._client, self._standings.all(), lags)
        except Exception as error:  # whatever it is, the thread goes on and somebody is told
            problem = str(error) or type(error).__name__
            self._hang_up()
        self._told = Told(self._told.topics, lags, self._told.failures + bool(problem))
        if problem and problem != self._warned:
            log.warning("the broker was not told how far queries are: %s", problem)
        self._warned = problem

    def _exchange(
        self,
        client: Client,
        queries: list[Standing],
        lags: dict[tuple[str, int], Lag],
    ) -> str:
        """Fill `lags`; return why a reader was refused, if one was: the others are told of."""
        topics, problem = self._told.topics, ""
        wanted = {topic for query in queries for topic in query.positions}
        if not wanted <= topics.keys():
            topics = {info.id: info.full_name for info in client.topics()}
            self._told = replace(self._told, topics=topics)
        for query in queries if self._named else []:
            for topic in sorted(query.positions.keys() & topics.keys()):
                try:
                    reader = self._place(client, topics[topic], query, topic)
                except Refused as error:
                    problem = str(error)
                    continue
                if reader is not None:
                    lags[query.name, topic] = Lag(reader.lag, reader.oldest_seconds or 0.0)
        return problem

    def _place(self, client: Client, name: str, query: Standing, topic: int) -> Cluster | None:
        """Put a reader where its query is, and return it; None if somebody has deleted it."""
        positions = dict(query.positions[topic].cut.positions)
        key = (query.name, topic)
        placed = self._placed.get(key, {})
        moved = {p: at for p, at in positions.items() if placed.get(p) != at}
        if moved:
            reader = client.seek_cluster(name, query.name, moved, create=True)
            self._placed[key] = positions
            return reader
        return next(iter(client.clusters(name, query.name)), None)

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except WeirError as error:
                log.debug("the connection had ended: %s", error)
