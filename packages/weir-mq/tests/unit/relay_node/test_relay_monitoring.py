"""What a relay shows of itself: its figures, whether it is ready, and what the doctor says."""

from __future__ import annotations

import asyncio
import errno
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rigs.relay_nodes import OpenSession, fill, make_small, play, started_relay, until_known
from weir.cli.admin.hops import Hop
from weir.cli.doctor.bottleneck import Figures
from weir.cli.doctor.finding import Finding
from weir.cli.doctor.relay import examine_relay, judge_relays
from weir.order.clock import stamp_at
from weir.protocol.client.relays import RelayInfo, RelayTopic
from weir.relay.entries import FilterSet, GapTold, Relayed, StartMoved
from weir.relay.holds import HoldLimits, Holds
from weir.relay.messages import Mark
from weir.relay.partition import RelayPartition
from weir.relay.ports import UpperNode
from weir.relay.rows import Row
from weir.relay.state import RelayState
from weir.relay_node import requests
from weir.relay_node.consumers.clusters import ClusterCounts, PendingAck
from weir.relay_node.host import RelayedTopic, RelayHost, steady_ms, wall_ms
from weir.relay_node.listener import RelayTls
from weir.relay_node.monitoring import RelayMonitor
from weir.relay_node.partitions import ChildLag, Held, Lag, children_of, lag_of, tags_kept
from weir.relay_node.requests import info_of
from weir.relay_node.sessions import ReaderSession
from weir.relay_node.tiers import Tiers
from weir.relay_node.uppers import UpperRelays
from weir.testing.memory_node import Node, node


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture
def core() -> Iterator[Node]:
    with node() as found:
        yield found


def page(place: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{place}{path}", timeout=5) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def until(place: str, path: str, fits: Callable[[str], bool]) -> str:
    while not fits((found := await asyncio.to_thread(page, place, path))[1]):
        await asyncio.sleep(0.02)
    return found[1]


def test_a_relay_shows_its_figures_and_that_it_is_cut_off(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 12)
        at = ("127.0.0.1", 0)
        async with started_relay(core, tmp_path, metrics=at) as found:
            place = f"127.0.0.1:{found.metrics_port}"
            await until_known(f"weir://127.0.0.1:{found.port}", 12)
            assert await asyncio.to_thread(page, place, "/healthz") == (200, "alive\n")
            assert await asyncio.to_thread(page, place, "/readyz") == (200, "ready\n")
            figures = Figures((await asyncio.to_thread(page, place, "/metrics"))[1])
            assert figures.total("weir_relay_core_up") == 1
            assert figures.total("weir_relay_lag_messages") == 0
            assert figures.total("weir_relay_held_bytes") > 0
            assert len(figures.rows("weir_relay_news_age_seconds")) == 2
            assert {one.state for one in await asyncio.to_thread(examine_relay, place)} == {"ok"}
            await asyncio.to_thread(core.crash)
            words = await until(place, "/readyz", lambda text: "cut off" in text)
            assert words.startswith("ready")
            (cut, *_) = await asyncio.to_thread(examine_relay, place)
            assert (cut.check, cut.state) == ("relay-core", "fail")

    play(work)


def test_pages_are_served_where_that_was_said_alone(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 1)
        async with started_relay(core, tmp_path) as found:
            assert found.metrics_port == 0

    play(work)


GROUP = 3 << 16


def held(*records: Any) -> Held:
    state = RelayState()
    for record in (StartMoved(10), FilterSet(1, None, 10), *records):
        state.apply(record, 1_000)
    upper = SimpleNamespace(holds=Holds(HoldLimits()))
    return Held(cast(RelayPartition, SimpleNamespace(state=state, upper=upper)), 0, 0)


RELAYED = Relayed(0, 10, 20, 1, 5, (Row(1, 10, 5, 900),))


def test_the_lag_of_a_partition() -> None:
    one = held(RELAYED)
    one.heard_ms, one.complete_ms, one.head = 9_000, 4_000, 45
    assert lag_of(one, 10_500) == Lag(25, 2_500, 6.5, 1.5)
    one.head = 20
    one.stored(11_000)
    assert lag_of(one, 11_500) == Lag(0, 0, 0.5, 0.5)
    assert lag_of(held(), 0) == Lag(0, 0, 0.0, 0.0)


def test_how_far_relays_below_are_behind() -> None:
    one, other = held(RELAYED), held(RELAYED)
    one.machine.upper.holds.say((20, 1), 14, None, 1_000)
    other.machine.upper.holds.say((20, 1), 20, None, 4_000)
    other.machine.upper.holds.say((21, 1), 11, None, 3_000)
    found = children_of([one, other], 5_000)
    assert found == {(20, 1): ChildLag(6, 4.0), (21, 1): ChildLag(9, 2.0)}


@pytest.mark.parametrize(("tags", "count"), [(None, -1), (("a", "b"), 2)])
def test_how_many_tags_are_kept(tags: tuple[str, ...] | None, count: int) -> None:
    one = held(FilterSet(2, tags, 10))
    assert tags_kept(one) == count


def test_what_goes_between_relays_is_told() -> None:
    host = Broken()
    host.one.mark = Mark(1, stamp_at(wall_ms() - 7_000), 20)
    host.one.machine.upper.holds.say((20, 1), 15, None, steady_ms())
    figures = Figures(answer(host, "/metrics")[1])
    assert [labels for labels, _ in figures.rows("weir_relay_pulled_bytes_total")] == [
        {"upper": "core"}, {"upper": "relay 2"},
    ]  # fmt: skip
    assert figures.total("weir_relay_pulled_bytes_total") == 970
    assert figures.rows("weir_relay_sent_bytes_total") == [({"set": "20", "node": "1"}, 500)]
    lag = {"topic": "t", "set": "20", "node": "1"}
    assert figures.rows("weir_relay_child_lag_messages") == [(lag, 8)]
    assert [labels for labels, _ in figures.rows("weir_relay_child_silent_seconds")] == [lag]
    assert figures.total("weir_relay_mark_age_seconds") == pytest.approx(7, abs=3)
    assert figures.total("weir_relay_filter_tags") == -1


class Broken:
    """A host where all goes wrong that an operator should hear of."""

    def __init__(self) -> None:
        info = SimpleNamespace(addresses=[SimpleNamespace(group=GROUP)], full_name="t")
        self.founded = SimpleNamespace(brokerset=20, node=1)
        self.topic = RelayedTopic(cast(Any, info), barred="you may not")
        self.topics = {3: self.topic}
        self.has_looked, self.is_reached = True, False
        self.one = held(RELAYED, GapTold(20, 23, "gone"))
        self.one.heard_ms, self.one.complete_ms = steady_ms() - 65_000, steady_ms() - 70_000
        self.one.head, self.one.cut = 123, 4
        links = SimpleNamespace(sent={(20, 1): 500})
        pulled = {UpperNode(0, 1, True): 900, UpperNode(0, 2, False): 70}
        self.partitions = SimpleNamespace(held={GROUP: self.one}, children=links, pulled=pulled)
        uppers = UpperRelays(7, 2)
        self.tiers = Tiers(20, 1, uppers, (), "core")
        troubles = SimpleNamespace(now={"flush": "full"})
        self.disk = SimpleNamespace(troubles=troubles, unsynced=7, is_full=True)


def certified(days: float, problem: str = "") -> RelayTls:
    tls, ends = RelayTls(), time.time() + (days + 0.5) * 86_400
    tls.serve(cast(Any, SimpleNamespace(own=SimpleNamespace(ends=ends))))
    tls.problem = problem
    return tls


def answer(host: Broken, path: str) -> tuple[int, str]:
    async def ask() -> tuple[int, str]:
        monitor = RelayMonitor(cast(RelayHost, host), RelayTls(), lambda: 4, ClusterCounts())
        async with monitor.pages().listening("127.0.0.1", 0) as port:
            return await asyncio.to_thread(page, f"127.0.0.1:{port}", path)

    return asyncio.run(ask())


def examined(tls: RelayTls) -> dict[str, Finding]:
    counts = ClusterCounts()
    session = cast(ReaderSession, OpenSession())
    counts.pending[0] = PendingAck(time.monotonic() - 30, session, GROUP, "crew", 1)

    async def look() -> list[Finding]:
        monitor = RelayMonitor(cast(RelayHost, Broken()), tls, lambda: 4, counts)
        async with monitor.pages().listening("127.0.0.1", 0) as port:
            return await asyncio.to_thread(examine_relay, f"127.0.0.1:{port}")

    return {one.check: one for one in asyncio.run(look())}


def test_each_way_to_fail_has_a_line_of_the_doctor() -> None:
    found = examined(certified(-1))
    assert {one.check: one.state for one in found.values()} == {
        "relay-core": "fail", "relay-access": "fail", "relay-lag": "warn", "relay-disk": "fail",
        "relay-gaps": "warn", "relay-certificate": "warn", "relay-acks": "warn",
        "relay-lineages": "warn",
    }  # fmt: skip
    assert "has ended" in found["relay-certificate"].found
    assert "1 acks of clusters wait for the core, the oldest for 30 s" in found["relay-acks"].found
    assert "came 65 s ago" in found["relay-core"].found
    assert "1 topics" in found["relay-access"].found
    assert "100 messages behind" in found["relay-lag"].found
    assert "t/0 was complete 70 s ago" in found["relay-lag"].found
    assert "nothing is pulled" in found["relay-disk"].found
    assert "3 messages of t/0" in found["relay-gaps"].found
    assert "4 messages of t/0 were cut off" in found["relay-lineages"].found
    assert all(one.advice for one in found.values())


@pytest.mark.parametrize(
    ("days", "problem", "state", "words"),
    [
        (30, "", "ok", "ends in 30 days"),
        (3, "", "warn", "ends in 3 days"),
        (30, "half a file", "warn", "ends in 30 days; newer files are not used"),
    ],
)
def test_the_certificate_of_a_relay_is_looked_at(
    days: float, problem: str, state: str, words: str
) -> None:
    found = examined(certified(days, problem))["relay-certificate"]
    assert (found.state, found.found) == (state, words)


def test_a_relay_is_ready_once_all_has_begun() -> None:
    host = Broken()
    assert answer(host, "/readyz")[0] == 200
    host.is_reached = True
    assert answer(host, "/readyz") == (200, "ready, and pulls nothing new: the disk is full\n")
    host.one.state.begun = False
    assert answer(host, "/readyz") == (503, "starting: received nothing of 1 partitions yet\n")
    host.topics, host.has_looked = {}, False
    assert answer(host, "/readyz")[0] == 503
    assert answer(host, "/nothing")[0] == 404


def test_what_is_no_relay_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(urllib.request, "urlopen", refused)
    (found,) = examine_relay("127.0.0.1:1")
    assert (found.check, found.state) == ("relay", "fail")
    assert "Connection refused" in found.found


def test_a_relay_tells_how_far_it_is_with_each_topic() -> None:
    host = Broken()
    host.one.mark = Mark(1, stamp_at(wall_ms() - 7_000), 20)
    holds = host.one.machine.upper.holds
    holds.say((20, 1), 15, None, steady_ms() - 3_000)
    holds.say((20, 2), 20, None, steady_ms())
    found = info_of(cast(RelayHost, host), "")
    assert (found.brokerset, found.node, found.reached, found.more) == (20, 1, False, False)
    assert found.pulled == [("core", 900), ("relay 2", 70)]
    assert found.sent == [(20, 1, 500)]
    (one,) = found.topics
    assert (one.name, one.barred, one.partitions) == ("t", "you may not", 1)
    assert (one.lag_messages, one.lag_bytes) == (100, lag_of(host.one, 0).bytes)
    assert 70_000 <= one.lag_ms < 80_000
    assert 65_000 <= one.news_ms < 75_000
    assert (one.lost, one.tags) == (3, -1)
    assert one.held_bytes == host.one.state.ranges.total > 0
    assert one.mark_ms == pytest.approx(7_000, abs=3_000)
    assert (one.holds, one.hold_messages) == (2, 8)
    assert 3_000 <= one.hold_ms < 13_000
    after = info_of(cast(RelayHost, host), "t")
    assert (after.pulled, after.sent, after.topics, after.more) == ([], [], [], False)


def test_many_topics_come_in_pages_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Broken()
    (info,) = [topic.info for topic in host.topics.values()]
    for number, name in enumerate("dbca"):
        more = SimpleNamespace(**{**vars(info), "full_name": name})
        host.topics[10 + number] = RelayedTopic(cast(Any, more))

    def pages() -> list[list[str]]:
        after, found = "", list[list[str]]()
        while True:
            page = info_of(cast(RelayHost, host), after)
            found.append([one.name for one in page.topics])
            if not page.more:
                return found
            after = page.topics[-1].name

    assert pages() == [["a", "b", "c", "d", "t"]]
    monkeypatch.setattr(requests, "_PAGE", 2)
    assert pages() == [["a", "b"], ["c", "d"], ["t"]]
    monkeypatch.setattr(requests, "PAGE_PARTITIONS", 1)
    assert pages() == [["a"], ["b"], ["c"], ["d"], ["t"]]


def hop(name: str, lag_ms: int = 0, error: str = "") -> Hop[RelayInfo]:
    topic = RelayTopic("t", "", 1, 0, 0, lag_ms, 0, 0, 0, -1, -1, 0, 0, 0)
    found = None if error else RelayInfo(5, 8, True, [], [], [topic])
    return Hop(name, "weir://relay", found, error)


def test_the_doctor_names_relays_that_are_silent_or_a_minute_behind() -> None:
    assert judge_relays([]).state == judge_relays([hop("a/1", 60_000)]).state == "ok"
    late = judge_relays([hop("a/1"), hop("b/2", 61_000)])
    assert (late.state, late.found) == ("warn", "relays that lag: b/2 by 61 s")
    silent = judge_relays([hop("b/2", 61_000), *(hop(f"c/{n}", error="gone") for n in range(7))])
    assert silent.state == "warn"
    assert "c/0 (gone)" in silent.found
    assert silent.found.endswith("and 2 more")
