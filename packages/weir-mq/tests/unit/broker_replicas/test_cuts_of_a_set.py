"""A cut through partitions that different nodes lead, whoever is asked and whoever leads next."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.runtime.session import SHARD
from weir.errors import Unavailable
from weir.model.ids import group_of, place_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, encode_request
from weir.protocol.client.messages import TopicPositions

PARTITIONS = 6


@pytest.fixture
def spread(trio: Any, produce: Any) -> tuple[Any, m.TopicInfo, dict[int, int]]:
    """A topic that all nodes lead some of, and the stamp of the one message in each partition."""
    info, grant = trio.topic("t", PARTITIONS), trio.producer()
    trio.run(300)
    groups = [group_of(info.id, p) for p in range(PARTITIONS)]
    trio.until(lambda: {trio.leader(group).id for group in groups} == {1, 2, 3})
    stamps = {}
    for partition in range(PARTITIONS):
        batch = produce(info, grant, 0, b"x", partition=partition)
        stamps[partition] = trio.told(batch, group_of(info.id, partition)).stamp
        trio.run(50)
    return trio, info, stamps


def resolved(trio: Any, node: int, **fields: Any) -> m.TopicCut:
    reply = trio.answer(trio[node], m.ResolveCut(["t"], **fields))
    assert isinstance(reply, m.ResolvedCut), reply
    (topic,) = reply.topics
    return topic


@pytest.mark.parametrize("node", [1, 2, 3])
def test_any_node_resolves_it_exactly(spread: Any, node: int) -> None:
    trio, info, stamps = spread
    assert resolved(trio, node).ends == [1] * PARTITIONS
    assert resolved(trio, node, by_partition=True).ends == [1] * PARTITIONS
    for stamp in stamps.values():
        ends = resolved(trio, node, stamp_max=stamp).ends
        assert ends == [int(stamps[p] <= stamp) for p in range(PARTITIONS)]
    assert [address.group for address in resolved(trio, node).info.addresses] == [
        group_of(info.id, p) for p in range(PARTITIONS)
    ]


@pytest.mark.parametrize("node", [1, 2, 3])
def test_limits_hold_for_all_nodes_together(spread: Any, node: int) -> None:
    trio, info, stamps = spread
    at, stamp = [0] * PARTITIONS, 0
    for _ in range(PARTITIONS):
        after = [TopicPositions(info.id, list(enumerate(at)))]
        reply = trio.answer(trio[node], m.ResolveCut(["t"], after, stamp, rows_max=2))
        at, stamp = reply.topics[0].ends, reply.stamp
        assert at == [int(stamps[p] <= stamp) for p in range(PARTITIONS)]
        if sum(at) == PARTITIONS:
            break
    assert sum(at) == PARTITIONS


@pytest.mark.parametrize("node", [1, 2, 3])
def test_news_of_any_node_are_told_at_once(spread: Any, produce: Any, node: int) -> None:
    trio, info, _ = spread
    after = [TopicPositions(info.id, [(p, 1) for p in range(PARTITIONS)])]
    grant = trio.producer()
    for partition in range(PARTITIONS):
        asked = trio[node].ask(m.ResolveCut(["t"], after, wait_ms=10_000))
        trio.run(300)
        assert trio[node].reply_to(asked) is None
        batch = produce(info, grant, 0, b"y", partition=partition)
        confirm = trio.told(batch, group_of(info.id, partition))
        began = trio.clock.monotonic
        reply = trio.until(lambda asked=asked: trio[node].reply_to(asked))
        assert trio.clock.monotonic - began <= 200
        ends = reply.topics[0].ends
        assert (ends[partition], reply.stamp >= confirm.stamp) == (2, True)
        after = [TopicPositions(info.id, list(enumerate(ends)))]


@pytest.mark.parametrize("node", [1, 2, 3])
def test_no_news_is_told_in_time_if_all_leaders_say_so(spread: Any, node: int) -> None:
    trio, info, _ = spread
    after = [TopicPositions(info.id, [(p, 1) for p in range(PARTITIONS)])]
    began = trio.clock.monotonic
    reply = trio.answer(trio[node], m.ResolveCut(["t"], after, wait_ms=500))
    assert reply == m.ResolvedCut(0, [])
    assert 500 <= trio.clock.monotonic - began <= 650


@pytest.mark.parametrize("read_up_to", [0, 1])
def test_what_is_confirmed_while_the_leader_is_away_is_no_lack_of_news(
    trio: Any, produce: Any, read_up_to: int
) -> None:
    """Who waits for news on a node that knows of no leader is not told that there is nothing."""
    info, grant = trio.topic("t"), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"x"), group)
    trio.run(300)
    old = trio.leader(group)
    other = next(node for node in trio.live() if node is not old)
    trio.isolate(other.id)
    trio.run(3_000)  # it hears of no leader any more
    if read_up_to:
        trio.told(produce(info, grant, 1, b"y"), group)
    after = [TopicPositions(info.id, [(0, read_up_to)])]
    asked = other.ask(m.ResolveCut(["t"], after, wait_ms=200))
    reply = trio.until(lambda: other.reply_to(asked))
    assert isinstance(reply, m.Refusal) or reply.topics, reply
    trio.heal()
    ends = 1 + read_up_to

    def told() -> bool:
        reply = trio.answer(other, m.ResolveCut(["t"], after, wait_ms=200))
        return isinstance(reply, m.ResolvedCut) and reply.topics[0].ends == [ends]

    trio.until(told)


@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_partition_that_joins_during_a_wait_has_news_too(
    trio: Any, produce: Any, node: int
) -> None:
    info, grant = trio.topic("t"), trio.producer()
    trio.told(produce(info, grant, 0, b"x"), info.addresses[0].group)
    trio.run(300)
    after = [TopicPositions(info.id, [(0, 1)])]
    asked = trio[node].ask(m.ResolveCut(["t"], after, wait_ms=3_000))
    trio.run(50)
    info = trio.told(a.AlterTopic("t", partitions=2), 0)
    trio.told(produce(info, grant, 0, b"new", partition=1), group_of(info.id, 1))
    (topic,) = trio.until(lambda: trio[node].reply_to(asked)).topics
    assert topic.ends == [1, 1]


def test_who_waits_is_told_of_a_partition_that_nobody_leads(trio: Any) -> None:
    info = trio.topic("t", replicas=1)
    gone = trio.leader(info.addresses[0].group)
    trio.run(300)
    node = next(one for one in trio.live() if one is not gone)
    gone.kill()
    trio.leader()
    reply = trio.answer(node, m.ResolveCut(["t"], wait_ms=200))
    assert isinstance(reply, m.Refusal), reply
    assert (reply.code, "partition 0 of t" in reply.message) == (Unavailable.code, True)


def test_who_leads_next_cuts_at_what_was_promised_before(spread: Any) -> None:
    trio, info, stamps = spread
    old = trio.leader(group_of(info.id, 0))
    other = next(node for node in trio.live() if node is not old)
    asked = other.ask(m.ResolveCut(["t"], stamp_max=stamps[0]))
    old.kill()
    reply = trio.until(lambda: other.reply_to(asked))
    while isinstance(reply, m.Refusal):
        assert reply.code == Unavailable.code
        trio.run(500)
        reply = trio.answer(other, m.ResolveCut(["t"], stamp_max=stamps[0]))
    assert reply.topics[0].ends == [1, *[0] * (PARTITIONS - 1)]


def test_a_partition_that_nobody_leads_is_named_in_time(trio: Any) -> None:
    info = trio.topic("t", replicas=1)
    gone = trio.leader(info.addresses[0].group)
    gone.kill()
    trio.leader()
    node = trio.live()[0]
    began = trio.clock.monotonic
    reply = trio.answer(node, m.ResolveCut(["t"]))
    assert isinstance(reply, m.Refusal)
    assert (reply.code, "partition 0 of t" in reply.message) == (Unavailable.code, True)
    assert 5_000 <= trio.clock.monotonic - began <= 5_200


def test_a_replica_that_lags_says_nothing(spread: Any) -> None:
    """A cut at what it has would leave out what others have acknowledged."""
    trio, info, _ = spread
    group = group_of(info.id, 0)
    leader = trio.leader(group)
    state = leader.group(group).machine.state
    asked = [(group, 0, state.next_offset + 1)]
    request = m.LocateOffsets(asked, stamp=1 << 60, wait_ms=100)
    answer = shard_told(trio, leader, request)
    assert answer == m.LocatedOffsets([])
    known = [(group, 0, state.next_offset)]
    answer = shard_told(trio, leader, m.LocateOffsets(known, stamp=1 << 60, wait_ms=100))
    assert [row[:3] for row in answer.found] == [(group, 0, 1)]


def shard_told(trio: Any, node: Any, request: m.LocateOffsets) -> m.LocatedOffsets:
    """Ask as a shard of another node does."""
    session = 77
    other = 1 + node.id % 3
    node.replies[session] = []
    node.handle(ev.Opened(session, f"{SHARD}{other}.0", place_of(other, 0)))
    asked = node.ask(request, session)
    reply = trio.until(lambda: node.reply_to(asked, session))
    node.handle(ev.Closed(session))
    assert isinstance(reply, m.LocatedOffsets), reply
    return reply


def test_a_node_that_another_asks_asks_nobody_else(spread: Any) -> None:
    trio, info, _ = spread
    group = group_of(info.id, 0)
    node = next(one for one in trio.live() if one is not trio.leader(group))
    session, other = 77, 1 + node.id % 3
    node.replies[session] = []
    node.handle(ev.Opened(session, f"{SHARD}{other}.0", place_of(other, 0)))
    frame = b"".join(encode_request(m.LocateOffsets([(group, 0, 0)], wait_ms=1_000), 1))
    received = ev.Received(session, ClientStream().receive(frame))
    assert not [one for one in node.shard.handle(received) if isinstance(one, ef.Pass)]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_cut_lies_at_the_least_barrier_of_all_topics(trio: Any, produce: Any, ahead: int) -> None:
    """One partition is ahead of the others, as a client has seen a stamp of a fast clock."""
    names = ["a", "b"]
    infos = [trio.topic(name) for name in names]
    grant = trio.producer()
    trio.run(300)
    fast = infos[ahead].addresses[0].group
    leaders = {trio.leader(info.addresses[0].group).id for info in infos}
    node = next(node for node in trio.live() if node is not trio.leader(fast))
    assert len(leaders) == 2
    seen = (trio.clock.wall + 900) << 16
    batch = structs.replace(produce(infos[ahead], grant, 0, b"x"), seen=seen)
    confirm = trio.told(batch, fast)
    assert confirm.stamp > seen
    reply = trio.answer(node, m.ResolveCut(names))
    assert reply.stamp < seen
    assert [topic.ends for topic in reply.topics] == [[0], [0]]
    assert [topic.committed[0] for topic in reply.topics] == [1 - ahead, ahead]
    # What was confirmed is in the latest.
    reply = trio.answer(node, m.ResolveCut(names, latest=True))
    assert reply.stamp >= confirm.stamp
    assert [topic.ends[0] for topic in reply.topics] == [1 - ahead, ahead]
    other = produce(infos[1 - ahead], grant, 0, b"y")
    later = trio.told(other, infos[1 - ahead].addresses[0].group)
    assert later.stamp > reply.stamp


@pytest.mark.parametrize("by_partition", [False, True])
def test_a_question_that_is_lost_is_asked_again(
    spread: Any, monkeypatch: pytest.MonkeyPatch, by_partition: bool
) -> None:
    trio, _, _ = spread
    honest, lost = Forwarder.ask_own, list[m.Request]()

    def ask_own(self: Forwarder, shard: int, request: m.Request, number: int = 0) -> None:
        if isinstance(request, m.LocateOffsets) and len(lost) < 2:
            lost.append(request)
        else:
            honest(self, shard, request, number)

    monkeypatch.setattr(Forwarder, "ask_own", ask_own)
    began = trio.clock.monotonic
    assert resolved(trio, 1, by_partition=by_partition).ends == [1] * PARTITIONS
    assert len(lost) == 2
    assert 200 <= trio.clock.monotonic - began <= 600


def test_who_may_lead_no_more_tells_no_end(trio: Any, produce: Any) -> None:
    info, grant = trio.topic("t"), trio.producer()
    (address,) = info.addresses
    trio.told(produce(info, grant, 0, b"x"), address.group)
    old = trio.leader(address.group)
    trio.run(300)
    trio.isolate(old.id)
    asked = old.ask(m.ResolveCut(["t"], by_partition=True))
    trio.until(lambda: trio.leader(address.group) is not old)
    trio.told(produce(info, grant, 1, b"y"), address.group)
    reply = trio.until(lambda: old.reply_to(asked))
    assert isinstance(reply, m.Refusal), "others have confirmed more since"
    assert reply.code == Unavailable.code
    trio.heal()
    assert resolved(trio, old.id, by_partition=True).ends == [2]


def test_who_may_lead_no_more_tells_of_no_message(trio: Any, produce: Any) -> None:
    info, grant = trio.topic("t"), trio.producer()
    (address,) = info.addresses
    trio.told(produce(info, grant, 0, b"x"), address.group)
    old = trio.leader(address.group)
    trio.run(300)
    trio.isolate(old.id)
    asked = old.ask(a.TraceMessage(address, 1))
    trio.until(lambda: trio.leader(address.group) is not old)
    trio.told(produce(info, grant, 1, b"y"), address.group)
    trio.run(300)
    assert not isinstance(old.reply_to(asked), a.TracedMessage), "others have that message by now"


def test_a_client_may_not_ask_where_offsets_are(spread: Any) -> None:
    trio, info, _ = spread
    reply = trio.answer(trio[1], m.LocateOffsets([(group_of(info.id, 0), 0, 0)]))
    assert isinstance(reply, m.Refusal)


@pytest.mark.parametrize("node", [1, 2, 3])
def test_any_node_tells_the_lineages_that_others_lead(spread: Any, node: int) -> None:
    trio, info, _ = spread
    groups = [group_of(info.id, p) for p in range(PARTITIONS)]
    for one in trio.live():
        one.shard.topics.find(groups[1]).state.begin_lineage(1)
    cut = trio.answer(trio[node], m.ResolveCut(["t"], by_partition=True))
    rows = [(group, 0, 0) for group in groups]
    assert cut.lineages == sorted([*rows, (groups[1], 1, 1)])
