"""A micro-batch is planned in one round trip, exactly, and a query with nothing new waits for it:
on a node in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from weir import sync, testing
from weir.client.connection.system import SYSTEM, System
from weir.errors import UnknownOpcode
from weir.protocol.client import messages as m
from weir.spark import blocking_client, stream
from weir.spark.blocking_client import BlockingClient
from weir.spark.cuts import BarrierCuts, Cuts
from weir.spark.options import Options, Stamped
from weir.spark.planning import Cut
from weir.spark.source import Offset, StreamReader, WeirDataSource

PARTITIONS = 64
ALL = ReadAllAvailable()


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node
        blocking_client.forget(Options.parse({"topic": "t", "url": node.url}).hosts)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Fill up with what is asked: of each round trip, the names of its requests."""
    honest, trips = BlockingClient.requests, list[list[str]]()

    def requests(self: BlockingClient, given: Any, wait: float = 0.0) -> list[m.Reply]:
        trips.append([type(one).__name__ for one in given])
        return honest(self, given, wait)

    monkeypatch.setattr(BlockingClient, "requests", requests)
    return trips


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of the release before."""
    honest = BlockingClient.request

    def request(self: BlockingClient, given: m.Request, wait: float = 0.0) -> m.Reply:
        if isinstance(given, m.ResolveCut):
            raise UnknownOpcode("opcode 42 is not known here", 42)
        return honest(self, given, wait)

    monkeypatch.setattr(BlockingClient, "request", request)


def reader(node: testing.Node, **options: object) -> StreamReader:
    given = {"topic": "t", "url": node.url} | {name: str(v) for name, v in options.items()}
    source = WeirDataSource(given)
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def publish(node: testing.Node, *rounds: int) -> None:
    with sync.connect(node.url) as w:
        for number in rounds:
            for partition in range(PARTITIONS):
                w.publish("t", b"%d" % number, partition=partition)


def stamps_of(node: testing.Node) -> dict[int, list[int]]:
    with sync.connect(node.url) as w:
        found: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
        for message in w.reader("t", order="partition", follow=False):
            found[message.partition].append(message.stamp)
    return found


def positions(offset: Offset) -> dict[int, int]:
    return dict(Cut.from_json(offset).positions)


def below(stamps: dict[int, list[int]], stamp: int) -> dict[int, int]:
    return {p: sum(one <= stamp for one in each) for p, each in stamps.items()}


@pytest.mark.parametrize("order", ["total", "partition"])
def test_a_micro_batch_is_planned_in_one_round_trip(
    node: testing.Node, asked: list[list[str]], order: str
) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, order)
    publish(node, 1, 2)
    made = reader(node, order=order)
    at = made.initialOffset()
    for number in (3, 4):
        publish(node, number)
        asked.clear()
        end = made.latestOffset(at, ALL)
        assert asked == [["ResolveCut"]]
        assert made.reportLatestOffset()["p"] == end["p"]
        tasks = made.partitions(at, end)
        assert asked == [["ResolveCut"]], "nothing more is asked before tasks read"
        assert tasks
        assert set(positions(end).values()) == {number}
        at = end
    # The limit is the broker's to keep; the lag is told beside it.
    publish(node, 5, 6)
    asked.clear()
    end = made.latestOffset(at, ReadMaxRows(PARTITIONS))
    assert asked == [["ResolveCut"]]
    assert set(made.reportLatestOffset()["p"].values()) == {6}
    assert asked == [["ResolveCut"]]
    rows = sum(positions(end).values()) - sum(positions(at).values())
    assert PARTITIONS // 2 <= rows <= PARTITIONS
    assert end.get("s", 0) == Cut.from_json(end).stamp


def test_the_first_cut_takes_as_few_round_trips(node: testing.Node, asked: list[list[str]]) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1, 2)
    stamps = stamps_of(node)
    middle = sorted(one for each in stamps.values() for one in each)[PARTITIONS]
    asked.clear()
    made = reader(node, startingBarrier=middle, order="total")
    begin = made.initialOffset()
    assert positions(begin) == below(stamps, middle)
    assert begin["s"] == middle
    # Hello, a cut at the barrier, and one at the end that the start is compared with.
    assert asked == [["Hello"], ["ResolveCut"], ["ResolveCut"]]


@pytest.mark.usefixtures("older")
def test_a_broker_of_the_release_before_is_asked_as_before(
    node: testing.Node, asked: list[list[str]]
) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1, 2)
    stamps = stamps_of(node)
    made = reader(node)
    at = made.initialOffset()
    end = made.latestOffset(at, ReadMaxRows(PARTITIONS))
    assert positions(end) == below(stamps, end["s"])
    assert 0 < sum(positions(end).values()) <= PARTITIONS
    assert not any("ResolveCut" in trip for trip in asked)
    while (later := made.latestOffset(end, ALL)) is not end:
        end = later
    assert set(positions(end).values()) == {2}


def test_a_query_with_nothing_new_waits_for_it(
    node: testing.Node, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1)
    made = reader(node, maxIdleWaitMs=5_000)
    at = made.latestOffset(made.initialOffset(), ALL)
    waits: list[int] = []
    honest = BlockingClient.resolve_cut

    def resolve_cut(self: BlockingClient, request: m.ResolveCut) -> m.ResolvedCut | None:
        waits.append(request.wait_ms)
        if request.wait_ms:
            with sync.connect(node.url) as w:
                w.publish("t", b"news", partition=7)
        return honest(self, request)

    monkeypatch.setattr(BlockingClient, "resolve_cut", resolve_cut)
    end = made.latestOffset(at, ALL)
    assert waits == [5_000]
    assert positions(end)[7] == 2
    # A reader that is new waits for nothing at first, nor does one that has a pinned end.
    waits.clear()
    fresh = reader(node, maxIdleWaitMs=5_000)
    assert fresh.latestOffset(end, ALL) is end
    pinned = reader(node, maxIdleWaitMs=5_000)
    pinned.prepareForTriggerAvailableNow()
    assert pinned.latestOffset(end, ALL) is end
    assert pinned.latestOffset(end, ALL) is end
    assert set(waits) == {0}


def test_a_query_that_waits_in_vain_has_its_start_back(
    node: testing.Node, asked: list[list[str]]
) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "partition")
    publish(node, 1)
    made = reader(node, maxIdleWaitMs=50)
    at = made.latestOffset(made.initialOffset(), ALL)
    asked.clear()
    assert made.latestOffset(at, ALL) is at
    assert made.reportLatestOffset()["p"] == at["p"]
    assert asked == [["ResolveCut"]]


def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what is slept from now on, in seconds; it takes no time."""
    found: list[float] = []
    system = SYSTEM.get()

    class Sleepless:
        @staticmethod
        def get() -> System:
            return replace(system, sleep=found.append)

    monkeypatch.setattr(stream, "SYSTEM", Sleepless)
    return found


def test_who_has_read_up_to_its_end_does_not_ask_without_a_pause(
    node: testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1)
    ends = {str(p): 1 for p in range(PARTITIONS)}
    made = reader(node, endingOffsets=json.dumps(ends), maxIdleWaitMs=70)
    at = made.latestOffset(made.initialOffset(), ALL)
    publish(node, 2)
    slept = naps(monkeypatch)
    assert made.latestOffset(at, ALL) is at
    assert slept == [0.07]


def test_what_there_is_counts_for_the_least_that_a_micro_batch_holds(
    node: testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1)
    made = reader(node, minRowsPerBatch=100, maxRowsPerBatch=100, maxIdleWaitMs=70)
    at = made.latestOffset(made.initialOffset(), ALL)
    publish(node, 2)
    slept = naps(monkeypatch)
    assert made.latestOffset(at, ReadMaxRows(100)) is at, "64 are too few"
    assert slept == [0.07], "it would be told at once that there is something"
    publish(node, 3)
    # A cut within the limit may have less than the least: there is more behind it.
    end = made.latestOffset(at, ReadMaxRows(100))
    assert 50 <= sum(positions(end).values()) - PARTITIONS <= 100


@pytest.mark.parametrize("option", ["topic", "topics"])
def test_what_is_committed_above_the_barrier_is_waited_for(
    node: testing.Node, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Else `processAllAvailable` would leave out what was confirmed, where a clock is ahead."""
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1)
    given = {"url": node.url, option: "t" if option == "topic" else '["t"]'}
    source = WeirDataSource(given)
    made: Any = source.streamReader(source.schema())
    at = made.latestOffset(made.initialOffset(), ALL)
    publish(node, 2)
    honest, latest = BlockingClient.resolve_cut, list[bool]()

    def resolve_cut(self: BlockingClient, request: m.ResolveCut) -> m.ResolvedCut | None:
        found = honest(self, request)
        latest.append(request.latest)
        assert found is not None
        if request.latest:
            return found
        (topic,) = found.topics
        behind = m.TopicCut(topic.info, topic.starts, [1] * PARTITIONS, topic.committed)
        return m.ResolvedCut(found.stamp, [behind])

    monkeypatch.setattr(BlockingClient, "resolve_cut", resolve_cut)
    end = made.latestOffset(at, ALL)
    assert latest == [False, True]
    part = end if option == "topic" else end["t"]["t"]
    assert set(part["p"].values()) == {2}


def test_bytes_are_the_brokers_to_count(node: testing.Node, asked: list[list[str]]) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1)
    made = reader(node, maxBytesPerBatch=4_000)
    at = made.initialOffset()
    asked.clear()
    end = made.latestOffset(at, made.getDefaultReadLimit())
    assert asked == [["ResolveCut"]]
    assert 0 < sum(positions(end).values()) < PARTITIONS


def test_a_start_ahead_of_the_clock_is_the_end_as_of_now(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1)
    ahead = max(max(each) for each in stamps_of(node).values()) + (3_600_000 << 16)
    begin = Cuts(Options.parse({"topic": "t", "url": node.url}))
    cut = BarrierCuts(begin).resolve("startingBarrier", Stamped(ahead + 1))
    assert cut.stamp == ahead
    assert set(cut.positions.values()) == {1}


def test_a_node_that_has_not_heard_of_a_partition_is_asked_again(
    node: testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, "total")
    publish(node, 1)
    honest, late = BlockingClient.resolve_cut, [1]

    def resolve_cut(self: BlockingClient, request: m.ResolveCut) -> m.ResolvedCut | None:
        found = honest(self, request)
        assert found is not None
        (topic,) = found.topics
        if late and late.pop():
            info = structs.replace(topic.info, addresses=topic.info.addresses[:-1])
            topic = m.TopicCut(info, topic.starts[:-1], topic.ends[:-1], topic.committed[:-1])
        return m.ResolvedCut(found.stamp, [topic])

    monkeypatch.setattr(BlockingClient, "resolve_cut", resolve_cut)
    cuts = Cuts(Options.parse({"topic": "t", "url": node.url}))
    cuts.expect([PARTITIONS - 1])
    assert len(BarrierCuts(cuts).end().positions) == PARTITIONS
    # Nor is what was told of fewer partitions believed.
    cuts.take(m.TopicInfo(1, "default", "t", "total", []))
    assert len(cuts.describe().addresses) == PARTITIONS
