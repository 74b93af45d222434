"""Readers are put where queries stand, by a thread that outlives a broker that is away."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.client.administration import Cluster, Share
from weir.client.sync.client import Client
from weir.errors import Disconnected, UnknownTopic
from weir.spark.monitoring.readers import Lag, Readers
from weir.spark.monitoring.standing import Standings
from weir.spark.planning import Cut

ROUND = 0.01


@dataclass
class Broker:
    """What a client of a broker does, and what it was asked."""

    topics_: dict[int, str] = field(default_factory=lambda: {7: "flights"})
    sought: list[tuple[str, str, dict[int, int]]] = field(default_factory=list)
    closed: int = 0
    gone: set[str] = field(default_factory=set)
    away: int = 0
    rounds: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    deleted: bool = False
    breaks: int = 0

    def connect(self) -> Client:
        if self.away:
            self.away -= 1
            self.rounds.release()
            raise Disconnected("no connection to there")
        return cast(Client, self)

    def topics(self) -> list[Any]:
        return [SimpleNamespace(id=id, full_name=name) for id, name in self.topics_.items()]

    def seek_cluster(
        self, topic: str, cluster: str, to: Mapping[int, int], *, create: bool
    ) -> Cluster:
        assert create
        if self.breaks:
            self.breaks -= 1
            raise Disconnected("the connection broke")
        if topic in self.gone:
            raise UnknownTopic(f"there is no topic {topic}")
        self.sought.append((topic, cluster, dict(to)))
        return self._cluster(cluster)

    def clusters(self, topic: str, cluster: str) -> Sequence[Cluster]:
        self.rounds.release()
        return [] if self.deleted else [self._cluster(cluster)]

    def close(self) -> None:
        self.closed += 1

    def _cluster(self, name: str) -> Cluster:
        return Cluster(name, (Share(0, 0, 9, 5, 4, oldest_seconds=2.5), Share(1, 0, 1, 1, 0)))


def reported(standings: Standings, *cuts: Cut, query: str = "q", name: str = "delays") -> None:
    standings.report(
        {
            "id": query, "runId": "r", "name": name, "batchId": len(cuts), "durationMs": {},
            "observedMetrics": {},
            "stateOperators": [],
            "sources": [
                {"endOffset": _json(cut), "latestOffset": None, "numInputRows": 1} for cut in cuts
            ],
        },
        now=1.0,
    )  # fmt: skip


def _json(cut: Cut) -> str:
    return json.dumps(cut.to_json())


def readers(standings: Standings, connect: Callable[[], Client], named: bool = True) -> Readers:
    return Readers(standings, connect, ROUND, named)


def wait(broker: Broker, rounds: int = 2) -> None:
    for _ in range(rounds):
        assert broker.rounds.acquire(timeout=5)


def test_a_reader_stands_where_its_query_does() -> None:
    broker, standings = Broker(), Standings()
    reported(standings, Cut(7, {0: 5, 1: 1}))
    with readers(standings, broker.connect) as telling:
        wait(broker)
        assert telling.told.topics == {7: "flights"}
        assert telling.told.lags == {("spark.delays", 7): Lag(4, 2.5)}
        assert telling.told.failures == 0
        reported(standings, Cut(7, {0: 5, 1: 3}))
        wait(broker)
    # What has not moved is not said again.
    assert broker.sought == [
        ("flights", "spark.delays", {0: 5, 1: 1}),
        ("flights", "spark.delays", {1: 3}),
    ]
    assert broker.closed == 1


def test_the_last_micro_batch_is_told_at_the_end() -> None:
    broker, standings = Broker(), Standings()
    with Readers(standings, broker.connect, 60.0, True):
        reported(standings, Cut(7, {0: 5}))
    assert broker.sought == [("flights", "spark.delays", {0: 5})]


def test_a_broker_that_is_away_is_told_later(caplog: pytest.LogCaptureFixture) -> None:
    broker, standings = Broker(away=2), Standings()
    reported(standings, Cut(7, {0: 5}))
    with caplog.at_level(logging.WARNING), readers(standings, broker.connect) as telling:
        wait(broker, 4)
        assert telling.told.failures == 2
        assert telling.told.lags
    # Each reason is said once, not in every round.
    assert caplog.text.count("no connection to there") == 1


def test_one_topic_that_is_gone_keeps_no_other_query_from_being_told() -> None:
    broker = Broker(topics_={7: "flights", 8: "gone"}, gone={"gone"})
    standings = Standings()
    reported(standings, Cut(8, {0: 1}), query="first", name="first")
    reported(standings, Cut(7, {0: 5}), query="second", name="second")
    with readers(standings, broker.connect) as telling:
        wait(broker)
        assert telling.told.failures > 0
        assert [*telling.told.lags] == [("spark.second", 7)]
    assert broker.closed == 1  # a refusal is an answer: the connection stays


def test_a_topic_that_is_gone_keeps_no_other_of_its_query_from_being_told() -> None:
    broker = Broker(topics_={7: "gone", 8: "flights"}, gone={"gone"})
    standings = Standings()
    reported(standings, Cut(7, {0: 1}), Cut(8, {0: 5}))
    with readers(standings, broker.connect) as telling:
        wait(broker)
        assert [*telling.told.lags] == [("spark.delays", 8)]


def test_a_connection_that_broke_is_made_anew() -> None:
    broker, standings = Broker(breaks=1), Standings()
    reported(standings, Cut(7, {0: 5}))
    with readers(standings, broker.connect) as telling:
        wait(broker)
        assert telling.told.failures == 1
    assert broker.closed == 2
    assert broker.sought == [("flights", "spark.delays", {0: 5})]


def test_a_topic_that_comes_later_is_asked_for() -> None:
    broker, standings = Broker(), Standings()
    reported(standings, Cut(7, {0: 5}))
    with readers(standings, broker.connect) as telling:
        wait(broker)
        broker.topics_[9] = "later"
        reported(standings, Cut(9, {0: 1}), query="q2", name="second")
        wait(broker, 4)
        assert telling.told.topics == {7: "flights", 9: "later"}
    assert ("later", "spark.second", {0: 1}) in broker.sought


def test_without_names_nothing_is_written() -> None:
    broker, standings = Broker(), Standings()
    reported(standings, Cut(7, {0: 5}))
    with readers(standings, broker.connect, named=False) as telling:
        pass
    assert (broker.sought, telling.told.topics, telling.told.lags) == ([], {7: "flights"}, {})


def test_a_reader_that_somebody_deleted_is_made_again_when_the_query_moves() -> None:
    broker, standings = Broker(deleted=True), Standings()
    reported(standings, Cut(7, {0: 5}))
    with readers(standings, broker.connect) as telling:
        wait(broker)
        assert telling.told.lags == {}
        reported(standings, Cut(7, {0: 6}))
        wait(broker)
    assert broker.sought[-1] == ("flights", "spark.delays", {0: 6})
