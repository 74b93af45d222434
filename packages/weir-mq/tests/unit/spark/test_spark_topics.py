"""Several topics in one query, on a node in memory: one cut for all, whatever comes and goes."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

import weir
from rigs.promotions import set_lineages
from weir import sync, testing
from weir.broker import listing
from weir.broker.barriers import cuts
from weir.client.connection.system import SYSTEM
from weir.errors import (
    BadOption,
    CheckpointMismatch,
    OffsetOutOfRange,
    Unauthorized,
    UnknownTopic,
)
from weir.model.ids import group_of
from weir.protocol.client import messages as m
from weir.spark import blocking_client, topics
from weir.spark.blocking_client import BlockingClient
from weir.spark.cuts import BarrierCuts
from weir.spark.options import Options
from weir.spark.planning import Cut
from weir.spark.source import BatchReader, Offset, StreamReader, WeirDataSource
from weir.spark.topics import joined, split

ALL = ReadAllAvailable()
#: (topic, partition, offset, stamp, value)
Row = tuple[str, int, int, int, bytes]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[testing.Node]:
    monkeypatch.setattr(topics, "LIST_EVERY", 0.0)
    with testing.node() as node:
        yield node
        blocking_client.forget(Options.parse({"topic": "t", "url": node.url}).hosts)


@pytest.fixture
def w(node: testing.Node) -> Iterator[sync.Client]:
    with sync.connect(node.url) as w:
        yield w


def reader(node: testing.Node, *names: str, **options: object) -> StreamReader:
    given = {"topics": json.dumps(names), "url": node.url}
    source = WeirDataSource(given | {name: str(value) for name, value in options.items()})
    made = source.streamReader(source.schema())
    copy: StreamReader = pickle.loads(pickle.dumps(made))
    return copy


def table(node: testing.Node, *names: str, **options: object) -> list[Row]:
    given = {"topics": json.dumps(names), "url": node.url}
    source = WeirDataSource(given | {name: str(value) for name, value in options.items()})
    made = source.reader(source.schema())
    assert isinstance(made, BatchReader)
    return rows(made, made.partitions())


def rows(made: Any, tasks: Any) -> list[Row]:
    found: list[Row] = []
    for task in tasks:
        for batch in made.read(task):
            names = ("topic", "partition", "offset", "stamp", "value")
            columns = (batch.column(name).to_pylist() for name in names)
            found += zip(*columns, strict=True)
    return sorted(found, key=lambda row: (row[3], row[:3]))


def step(made: StreamReader, at: Offset, limit: ReadLimit = ALL) -> tuple[Offset, list[Row]]:
    """Return where the next micro-batch ends, as a checkpoint has it, and its rows."""
    end = json.loads(json.dumps(made.latestOffset(at, limit)))
    return end, rows(made, made.partitions(at, end)) if end != at else []


def values(found: list[Row]) -> list[bytes]:
    return [row[4] for row in found]


def scatter(node: testing.Node, *places: tuple[str, int], value: bytes) -> None:
    async def work() -> None:
        async with weir.connect(node.url) as w, w.scatter() as s:
            for topic, partition in places:
                s.publish(topic, value, partition=partition)

    asyncio.run(work())


def test_all_topics_are_cut_at_one_stamp(node: testing.Node, w: sync.Client) -> None:
    """Whatever their order is, and however much a micro-batch may take."""
    names = ("locks.a", "locks.b", "doors")
    for name, order in zip(names, ("total", "partition", "partition"), strict=True):
        w.create_topic(name, 2, order, scatter_with=[one for one in names if one != name])
    dice = random.Random(5)
    for number in range(40):
        w.publish(dice.choice(names), b"%d" % number, partition=dice.randrange(2))
        if number % 8 == 0:
            scatter(node, ("locks.a", 0), ("locks.b", 1), ("doors", 0), value=b"s%d" % number)
    whole = table(node, "locks.*", "doors")
    assert len(whole) == 55
    for limit in (ALL, ReadMaxRows(1), ReadMaxRows(9)):
        made = reader(node, "locks.*", "doors")
        at, read = made.initialOffset(), []
        while True:
            end, found = step(made, at, limit)
            if end == at:
                break
            assert all(row[3] <= end["s"] for row in found)
            assert [row for row in whole if at.get("s", 0) < row[3] <= end["s"]] == found
            again = reader(node, "locks.*", "doors")
            assert rows(again, again.partitions(at, end)) == found, "a replay has the same"
            if isinstance(limit, ReadMaxRows) and limit.max_rows == 9:
                assert len(found) <= 9
            at, read = end, read + found
        assert read == whole
        assert list(at["t"]) == ["doors", "locks.a", "locks.b"]


def test_a_scattering_is_never_torn_by_a_topic_that_is_new(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is made while the barrier is asked for is in the cut, with its part."""
    w.create_topic("locks.a", scatter_with=["locks.b"])
    w.publish("locks.a", b"first")
    made = reader(node, "locks.*")
    at, found = step(made, made.initialOffset())
    assert values(found) == [b"first"]
    w.publish("locks.a", b"second")
    monkeypatch.setattr(BlockingClient, "resolve_cut", lambda *_: None)  # of the release before
    asked = topics.OneTopic.reached

    def reached(topic: topics.OneTopic, stamp: int) -> int:
        if stamp == 0:
            monkeypatch.setattr(topics.OneTopic, "reached", asked)
            w.create_topic("locks.b", scatter_with=["locks.a"])
            scatter(node, ("locks.a", 0), ("locks.b", 0), value=b"both")
        return asked(topic, stamp)

    monkeypatch.setattr(topics.OneTopic, "reached", reached)
    at, found = step(made, at)
    assert values(found) == [b"second", b"both", b"both"]


def test_no_scattering_that_comes_meanwhile_is_torn(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        w.create_topic(name, scatter_with=[other])
    scatter(node, ("a", 0), ("b", 0), value=b"before")
    made = reader(node, "a", "b")
    at = made.initialOffset()
    monkeypatch.setattr(BlockingClient, "resolve_cut", lambda *_: None)  # of the release before
    asked = BarrierCuts.reached

    def reached(cuts: BarrierCuts, stamp: int) -> Any:
        if stamp:
            scatter(node, ("a", 0), ("b", 0), value=b"meanwhile")
        return asked(cuts, stamp)

    monkeypatch.setattr(BarrierCuts, "reached", reached)
    for _ in range(3):
        at, found = step(made, at)
        assert [row[0] for row in found] == ["a", "b"] * (len(found) // 2)
        assert found[::2] == [("a", *row[1:]) for row in found[1::2]]
    assert len(found) >= 4


@pytest.mark.parametrize("given", [{"topic": "a"}, {"topics": '["a", "b"]'}])
def test_what_no_barrier_covers_yet_is_news(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """An idle partition holds the least barrier back until its leader is asked."""
    for name in "ab":
        w.create_topic(name, 2, "total")
        w.publish(name, b"first", partition=0)
    source = WeirDataSource(given | {"url": node.url})
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    at, _ = step(made, made.initialOffset())
    honest = BlockingClient.resolve_cut

    def resolve_cut(client: BlockingClient, request: m.ResolveCut) -> m.ResolvedCut | None:
        found = honest(client, request)
        if found is None or request.latest or not request.after:
            return found
        read = {one.topic: [offset for _, offset in one.offsets] for one in request.after}
        held = [structs.replace(one, ends=read[one.info.id]) for one in found.topics]
        return m.ResolvedCut(request.stamp, held)

    monkeypatch.setattr(BlockingClient, "resolve_cut", resolve_cut)
    w.publish("a", b"second", partition=0)
    at, found = step(made, at)
    assert values(found) == [b"second"]
    assert step(made, at) == (at, [])


def test_gaps_are_told_of_each_topic(node: testing.Node, w: sync.Client) -> None:
    for name in ("a", "b", "c"):
        w.create_topic(name, retention="1h")
        w.publish(name, b"read")
    made = reader(node, "a", "b", "c", onDataLoss="earliest")
    at, found = step(made, made.initialOffset())
    assert len(found) == 3
    for name in "bbc":
        w.publish(name, b"gone")
    node.advance(7_200)
    w.publish("b", b"there")
    w.publish("a", b"there")
    for _ in range(100):
        node.advance(60)
        if [w.parts(name)[0].start for name in "abc"] == [1, 3, 2]:
            break
    end = json.loads(json.dumps(made.latestOffset(at, ALL)))
    assert {name: part.get("g") for name, part in end["t"].items()} == {
        "a": None, "b": {"00000": 1}, "c": {"00000": 1},
    }  # fmt: skip
    again = reader(node, "a", "b", "c", onDataLoss="earliest")
    lost = []
    for task in again.partitions(at, end):
        for batch in again.read(task):
            lost += zip(*(batch.column(name).to_pylist() for name in
                          ("topic", "offset", "lost", "value")), strict=True)  # fmt: skip
    assert sorted(lost) == [
        ("a", 1, None, b"there"), ("b", 1, 2, None), ("b", 3, None, b"there"), ("c", 1, 1, None),
    ]  # fmt: skip


def test_nor_where_the_broker_resolves_the_cut(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.create_topic("locks.a", scatter_with=["locks.b"])
    w.publish("locks.a", b"first")
    made = reader(node, "locks.*")
    at, found = step(made, made.initialOffset())
    assert values(found) == [b"first"]
    w.publish("locks.a", b"second")
    honest = BlockingClient.resolve_cut

    def resolve_cut(client: BlockingClient, request: m.ResolveCut) -> m.ResolvedCut | None:
        monkeypatch.setattr(BlockingClient, "resolve_cut", honest)
        w.create_topic("locks.b", scatter_with=["locks.a"])
        scatter(node, ("locks.a", 0), ("locks.b", 0), value=b"both")
        return honest(client, request)

    monkeypatch.setattr(BlockingClient, "resolve_cut", resolve_cut)
    at, found = step(made, at)
    assert values(found) == [b"second", b"both", b"both"]


@pytest.mark.parametrize(
    ("room", "name"), [(topics, "CUT_TOPICS_MAX"), (cuts, "CUT_PARTITIONS_MAX")]
)
def test_more_than_one_cut_goes_through_is_asked_for_bit_by_bit(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch, room: Any, name: str
) -> None:
    for topic in ("a", "b"):
        w.create_topic(topic)
        w.publish(topic, b"v")
    monkeypatch.setattr(room, name, 1)
    made = reader(node, "a", "b")
    at, found = step(made, made.initialOffset())
    assert values(found) == [b"v", b"v"]
    assert step(made, at) == (at, [])


def test_a_topic_that_goes_between_two_looks_is_named(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("locks.a", "locks.b"):
        w.create_topic(name)
        w.publish(name, b"v")
    monkeypatch.setattr(topics, "LIST_EVERY", 60.0)
    made = reader(node, "locks.*")
    at, _ = step(made, made.initialOffset())
    w.delete_topic("locks.b")
    with pytest.raises(CheckpointMismatch, match=r"'locks\.b'.*it was deleted"):
        made.latestOffset(at, ALL)


def test_several_topics_are_planned_in_one_round_trip(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        w.create_topic(name, 8)
    made = reader(node, "a", "b", maxIdleWaitMs=20)
    at, _ = step(made, made.initialOffset())
    honest, trips = BlockingClient.requests, list[str]()

    def requests(client: BlockingClient, asked: list[m.Request], wait: float = 0) -> list[m.Reply]:
        trips.append(type(asked[0]).__name__)
        return honest(client, asked, wait)

    monkeypatch.setattr(topics, "LIST_EVERY", 60.0)
    monkeypatch.setattr(BlockingClient, "requests", requests)
    for number in range(3):
        for name in ("a", "b"):
            w.publish(name, b"%d" % number)
        trips.clear()
        end = made.latestOffset(at, ALL)
        assert made.partitions(at, end)
        assert made.reportLatestOffset()["t"]["a"]["p"] == end["t"]["a"]["p"]
        assert trips == ["ResolveCut"]
        at = end
    trips.clear()
    assert made.latestOffset(at, ALL) is at
    assert made.reportLatestOffset()["t"] == at["t"]
    assert trips == ["ResolveCut"]


def test_a_topic_that_begins_to_match_enters_with_its_first_message(
    node: testing.Node, w: sync.Client
) -> None:
    w.create_topic("locks.a", 2)
    w.create_topic("lock", 1)
    w.publish("locks.a", b"old", partition=0)
    made = reader(node, "locks.*", startingOffsets="latest")
    at = made.initialOffset()
    assert step(made, at) == (at, [])
    w.create_topic("locks.b")
    assert step(made, at) == (at, []), "an empty topic is no news"
    w.publish("locks.b", b"new", partition=0)
    w.publish("lock", b"other", partition=0)
    at, found = step(made, at)
    assert values(found) == [b"new"]
    assert set(at["t"]) == {"locks.a", "locks.b"}
    w.publish("locks.a", b"more", partition=1)
    assert values(step(made, at)[1]) == [b"more"]


def test_a_topic_that_is_gone_is_named(node: testing.Node, w: sync.Client) -> None:
    for name in ("locks.a", "locks.b"):
        w.create_topic(name)
        w.publish(name, b"v")
    made = reader(node, "locks.*")
    at, found = step(made, made.initialOffset())
    assert len(found) == 2
    named = reader(node, "locks.a", "locks.b")
    fewer = reader(node, "locks.a")
    with pytest.raises(CheckpointMismatch, match=r"'locks\.b' .*the option topics leaves it out"):
        fewer.latestOffset(at, ALL)
    pinned = reader(node, "locks.*")
    pinned.prepareForTriggerAvailableNow()
    assert step(pinned, at) == (at, [])
    w.delete_topic("locks.b")
    for call in (lambda one: one.latestOffset(at, ALL), lambda one: one.partitions(at, at)):
        with pytest.raises((CheckpointMismatch, UnknownTopic), match=r"'locks\.b'"):
            call(made)
    with pytest.raises(UnknownTopic, match=r"has no topic 'locks\.b'"):
        named.latestOffset(at, ALL)
    pinned.prepareForTriggerAvailableNow()
    with pytest.raises(CheckpointMismatch, match=r"'locks\.b' .*it was deleted"):
        pinned.latestOffset(at, ALL)
    w.create_topic("locks.b")
    with pytest.raises(CheckpointMismatch, match=r"'locks\.b' .*deleted and made again"):
        made.latestOffset(at, ALL)
    with pytest.raises(CheckpointMismatch, match="deleted and made again"):
        reader(node, "locks.*").partitions(at, at)


def test_a_topic_that_is_refused_is_named(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("locks.a", "locks.b"):
        w.create_topic(name)
        w.publish(name, b"v")
    made = reader(node, "locks.*")
    at = made.initialOffset()
    monkeypatch.setattr(BlockingClient, "resolve_cut", lambda *_: None)  # of the release before
    asked = topics.OneTopic.moved

    def moved(topic: topics.OneTopic, since: Cut, *_: object) -> bool:
        if topic.options.topic == "locks.b":
            raise Unauthorized("you may not read it")
        return asked(topic, since) and False

    monkeypatch.setattr(topics.OneTopic, "moved", moved)
    with pytest.raises(Unauthorized) as caught:
        made.latestOffset(at, ALL)
    assert caught.value.__notes__ == ["the query asked for the topic 'locks.b'"]


def test_nothing_that_matches_is_an_error(node: testing.Node, w: sync.Client) -> None:
    w.create_topic("locks.a")
    with pytest.raises(UnknownTopic, match=r"no topic begins with doors\.\* or locsk\.\*"):
        reader(node, "locsk.*", "doors.*").initialOffset()
    with pytest.raises(UnknownTopic, match="has no topic 'doors'"):
        reader(node, "locks.*", "doors").initialOffset()


def test_a_checkpoint_is_of_one_topic_or_of_several(node: testing.Node, w: sync.Client) -> None:
    w.create_topic("locks.a")
    w.publish("locks.a", b"v")
    several = reader(node, "locks.a")
    at, _ = step(several, several.initialOffset())
    source = WeirDataSource({"topic": "locks.a", "url": node.url})
    one = source.streamReader(source.schema())
    assert isinstance(one, StreamReader)
    with pytest.raises(CheckpointMismatch, match="written by a query of several topics"):
        one.latestOffset(at, ALL)
    with pytest.raises(CheckpointMismatch, match="no offset of a query of several topics"):
        several.latestOffset(one.latestOffset(one.initialOffset(), ALL), ALL)


@pytest.mark.parametrize("namespace", ["", "shop/"])
def test_topics_are_listed_page_by_page(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    monkeypatch.setattr(listing, "_PAGE_BYTES", 100)
    names = [f"{namespace}t{number:02}" for number in range(25)]
    for name in (*names, f"{namespace}s", f"{namespace}u", "other/t1", "a", "z"):
        w.create_topic(name)
    w.publish(names[-1], b"last")
    for prefix, expected in (("t*", names), ("t1*", names[10:20]), ("t2*", names[20:])):
        assert list(reader(node, namespace + prefix).initialOffset()["t"]) == expected
    made = reader(node, f"{namespace}*")
    listed = list(made.initialOffset()["t"])
    there = {"a", "z"} if not namespace else set()
    assert {*listed} == {*names, f"{namespace}s", f"{namespace}u"} | there
    _, found = step(made, made.initialOffset())
    assert [(row[0], row[4]) for row in found] == [(names[-1], b"last")]


def test_each_topic_by_itself(node: testing.Node, w: sync.Client) -> None:
    """In partition order nobody is asked for barriers, and any offset may be a cut."""
    for name in ("a", "b"):
        w.create_topic(name)
        for number in range(5):
            w.publish(name, b"%d" % number)
    made = reader(node, "a", "b", order="partition", maxRowsPerBatch=4)
    at, found = step(made, made.initialOffset(), ReadMaxRows(4))
    assert [row[0] for row in found] == ["a", "b", "a", "b"] or len(found) == 4
    assert "s" not in at
    assert {name: part["p"] for name, part in at["t"].items()} == {
        "a": {"00000": 2}, "b": {"00000": 2},
    }  # fmt: skip
    assert made.reportLatestOffset()["t"]["b"]["p"] == {"00000": 5}


def test_bounds_tile(node: testing.Node, w: sync.Client) -> None:
    for name in ("a", "b"):
        w.create_topic(name)
    for number in range(20):
        w.publish("ab"[number % 2], b"%d" % number)
    whole = table(node, "a", "b")
    assert values(whole) == [b"%d" % number for number in range(20)]
    middle = whole[7][3]
    assert table(node, "a", "b", endingBarrier=middle) == whole[:8]
    assert table(node, "a", "b", startingBarrier=middle) == whole[8:]
    made = reader(node, "a", "b", startingBarrier=whole[3][3], endingBarrier=middle)
    at, found = step(made, made.initialOffset())
    assert found == whole[4:8]
    assert at["s"] == middle
    assert step(made, at) == (at, [])
    made = reader(node, "a", "b", minRowsPerBatch=50)
    made.prepareForTriggerAvailableNow()
    w.publish("a", b"late")
    assert step(made, made.initialOffset())[1] == whole


def test_limits_hold_over_all_topics(node: testing.Node, w: sync.Client) -> None:
    for name in ("a", "b"):
        w.create_topic(name)
    for number in range(20):
        w.publish("ab"[number % 2], b"%01000d" % number)
    made = reader(node, "a", "b", maxBytesPerBatch=6_000)
    _, found = step(made, made.initialOffset(), made.getDefaultReadLimit())
    assert 2 <= len(found) <= 6


def test_nobody_is_asked_too_often_which_topics_there_are(
    node: testing.Node, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query looks about ninety times a second whether there is something new."""
    now = 0.0
    monkeypatch.setattr(topics, "LIST_EVERY", 1.0)
    before = SYSTEM.set(replace(SYSTEM.get(), monotonic=lambda: now))
    try:
        for order in ("total", "partition"):
            w.create_topic(f"{order}.a")
            made = reader(node, f"{order}.*", order=order)
            at = made.initialOffset()
            w.create_topic(f"{order}.b")
            w.publish(f"{order}.b", b"v")
            assert step(made, at) == (at, []), order
            now += 1.0
            assert values(step(made, at)[1]) == [b"v"], order
    finally:
        SYSTEM.reset(before)


def test_cuts_of_topics_are_joined_and_split_again() -> None:
    parts = {
        3: Cut(3, {0: 5, 1: 7}, {1: 2}, 99, {1: 1}),
        1 << 20: Cut(1 << 20, {0: 1}, {}, 99),
    }
    whole = joined(parts.values(), 99)
    assert split(whole) == parts
    assert len(whole.positions) == 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topics": '["a"]', "topic": "a"}, "either topic or topics"),
        ({"topics": "a,b"}, "JSON list of names"),
        ({"topics": "[]"}, "JSON list of names"),
        ({"topics": "[1]"}, "JSON list of names"),
        ({"topics": '["a*b"]'}, r"option topics: .*a \* at the end"),
        ({"topics": '["a/b/*"]'}, "option topics"),
        ({"topics": '["a"]', "partitions": "[0]"}, "is for one topic"),
        ({"topics": '["a"]', "startingOffsets": '{"0": 1}'}, "startingTime or startingBarrier"),
        ({"topics": '["a"]', "endingOffsets": '{"0": 1}'}, "endingTime or endingBarrier"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        Options.parse(given)


def test_names_are_full_and_each_counts_once() -> None:
    given = '["locks.*", "default/doors", "doors", "*", "shop/x*", "default/locks.*"]'
    assert Options.parse({"topics": given}).topics == ("*", "doors", "locks.*", "shop/x*")


@pytest.mark.parametrize("order", ["total", "partition"])
def test_a_lineage_that_begins_below_what_was_read_is_told_with_the_topic(
    node: testing.Node, w: sync.Client, order: str
) -> None:
    for name in "ab":
        w.create_topic(name, 2)
        for number in range(4):
            w.publish(name, b"%d" % number, partition=1)
    made = reader(node, "a", "b", order=order)
    at, found = step(made, made.initialOffset())
    assert len(found) == 8
    assert {name: part["l"] for name, part in at["t"].items()} == {"a": 0, "b": 0}
    group = group_of(at["t"]["b"]["e"], 1)
    set_lineages(node, group, (1, 4))
    w.publish("a", b"more", partition=0)
    at, found = step(reader(node, "a", "b", order=order), at)
    assert values(found) == [b"more"]
    assert {name: part["l"] for name, part in at["t"].items()} == {
        "a": 0, "b": {"00000": 0, "00001": 1},
    }  # fmt: skip
    set_lineages(node, group, (1, 4), (2, 3))
    with pytest.raises(OffsetOutOfRange, match=r"has read \S*b/1 up to 4, .* began there at 3"):
        step(reader(node, "a", "b", order=order), at)
