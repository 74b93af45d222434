"""Shards of different nodes keep one stream of marks between them, whatever readers ask, and it
goes on after leaders change, links break and nodes start again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import mark_streams_of, places_without_streams, streams_to, subscriptions_of
from weir.broker.api import events as ev
from weir.broker.barriers.barriers import BarrierAnswers
from weir.broker.forwarding.forwarder import Forwarder
from weir.errors import UnknownOpcode
from weir.model.ids import group_of, place_of
from weir.order.clock import stamp_at
from weir.protocol.client import messages as m

PARTITIONS = 6


@pytest.fixture
def spread(trio: Any) -> tuple[Any, m.TopicInfo]:
    """A topic that all nodes lead some of, and a set that is at rest."""
    info = trio.topic("t", PARTITIONS)
    trio.run(300)
    return trio, info


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What shards ask each other by themselves, by kind."""
    found: Counter[str] = Counter()
    honest = Forwarder.ask_own

    def ask_own(self: Forwarder, shard: int, request: m.Request, correlation: int = 0) -> None:
        found[type(request).__name__] += 1
        honest(self, shard, request, correlation)

    monkeypatch.setattr(Forwarder, "ask_own", ask_own)
    return found


def subscriptions(trio: Any, node: int) -> Any:
    return subscriptions_of(trio[node].shard)


def now(trio: Any) -> int:
    return stamp_at(trio.clock.wall)


def barriers(trio: Any, node: int, info: m.TopicInfo, wait_ms: int = 5_000) -> m.Barriers:
    request = m.AskBarriers(info.id, now(trio), wait_ms)
    reply = trio.answer(trio[node], request)
    assert isinstance(reply, m.Barriers)
    return reply


def publisher(trio: Any, info: m.TopicInfo, produce: Callable[..., Any]) -> Callable[[int], int]:
    grant, sequences = trio.producer(), Counter[int]()

    def publish(partition: int) -> int:
        batch = produce(info, grant, sequences[partition], b"x", partition=partition)
        sequences[partition] += 1
        confirm = trio.told(batch, group_of(info.id, partition))
        assert isinstance(confirm, m.Confirm)
        return int(confirm.stamp)

    return publish


def test_readers_far_from_the_leaders_cost_one_stream_a_node_and_no_question(
    spread: Any, produce: Any, asked: Counter[str]
) -> None:
    trio, info = spread
    publish = publisher(trio, info, produce)
    asked.clear()
    above = dict.fromkeys(range(10, 14), 0)
    for round_ in range(8):
        waits = {s: trio[1].ask(m.AwaitMark(info.id, at, 0, 5_000), s) for s, at in above.items()}
        stamp = publish(round_ % PARTITIONS)
        for session, number in waits.items():
            # A leader elsewhere has accepted it: whoever holds the message waits for its stamp.
            if trio[1].reply_to(number, session) is None:
                request = m.AwaitMark(info.id, above[session], stamp, 5_000)
                mark = trio.answer(trio[1], request, session)
                assert mark.reached
                assert mark.stamp >= stamp
    assert asked["AskBarriers"] == 0
    assert len(subscriptions(trio, 1)) <= 2, "one to each other node"
    assert 0 < asked["SubscribeMarks"] <= 40


def test_a_mark_of_a_stream_leaves_out_what_has_no_messages(spread: Any, produce: Any) -> None:
    trio, info = spread
    publish = publisher(trio, info, produce)
    leads = {p: trio.leader(group_of(info.id, p)).id for p in range(PARTITIONS)}
    far = next(p for p, node in leads.items() if node != 1)
    first = trio.answer(trio[1], m.AwaitMark(info.id, 0, publish(far), 5_000))
    second = trio.answer(trio[1], m.AwaitMark(info.id, first.stamp, publish(far), 5_000))
    assert second.throughs == [(far, 2)], "the others lead elsewhere, and say what they have"


def test_what_is_waited_for_is_demanded_of_who_leads_next(spread: Any) -> None:
    trio, info = spread
    barriers(trio, 1, info)
    old = next(n for n in (2, 3) if any(
        trio.leader(group_of(info.id, p)).id == n for p in range(PARTITIONS)))  # fmt: skip
    trio.isolate(old)
    number = trio[1].ask(m.AskBarriers(info.id, now(trio) + (200 << 16), 20_000))
    reply = trio.until(lambda: trio[1].reply_to(number))
    assert reply.reached, "others lead by now, and promise the same stamp"


@pytest.mark.parametrize("restarts", [False, True])
def test_after_a_reconnect_all_of_a_set_is_told_again(
    spread: Any, produce: Any, restarts: bool
) -> None:
    trio, info = spread
    publish = publisher(trio, info, produce)
    for partition in range(PARTITIONS):
        publish(partition)
    before = barriers(trio, 1, info)
    if restarts:
        trio[2].kill()
        trio[2].boot()
    else:
        trio.isolate(2)
        trio.heal()
    after = barriers(trio, 1, info)
    assert after.reached
    for (_, stamp, through), (_, later, behind) in zip(
        before.registers, after.registers, strict=True
    ):
        assert (later, behind) >= (stamp, through), "a register never goes backwards"
        assert behind == 1


def test_a_dead_stream_freezes_its_registers_and_its_partitions_are_asked_elsewhere(
    spread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio, info = spread
    barriers(trio, 1, info)
    mine = subscriptions(trio, 1)
    dead = next(iter(streams_to(mine).values()))
    before = {p: stamp for p, stamp, _ in barriers(trio, 1, info).registers}
    honest = type(mine).take

    def deaf(self: Any, frame: Any) -> Any:
        is_deaf = self is mine and streams_to(mine).get(frame.correlation) == dead
        return None if is_deaf else honest(self, frame)

    monkeypatch.setattr(type(mine), "take", deaf)
    number = trio[1].ask(m.AskBarriers(info.id, now(trio) + (100 << 16), 900))
    trio.run(700)
    assert dead in mine.avoided
    reply = trio.until(lambda: trio[1].reply_to(number))
    assert not reply.reached, "no timer takes a partition out of the order"
    stuck = [p for p, stamp, _ in reply.registers if stamp == before[p]]
    assert stuck
    monkeypatch.undo()
    assert barriers(trio, 1, info, 20_000).reached


def test_a_partition_without_a_leader_holds_the_min_and_not_the_registers_of_others(
    spread: Any,
) -> None:
    trio, info = spread
    away = 3
    away_leads = {p for p in range(PARTITIONS) if trio.leader(group_of(info.id, p)).id == away}
    assert away_leads
    barriers(trio, 1, info)
    trio.isolate(away)
    stamp = now(trio) + (100 << 16)
    number = trio[1].ask(m.AskBarriers(info.id, stamp, 150))
    trio.run(200)
    reply = trio[1].reply_to(number)
    assert not reply.reached
    assert {p for p, at, _ in reply.registers if at < stamp} >= away_leads


def test_where_nobody_reads_no_stream_is_left(spread: Any) -> None:
    trio, info = spread
    barriers(trio, 1, info)
    assert len(subscriptions(trio, 1)) == 2
    trio.run(63_000)
    assert len(subscriptions(trio, 1)) == 0
    assert [mark_streams_of(trio[n].shard).all() for n in (2, 3)] == [[], []]


def test_an_upper_shard_of_an_earlier_release_is_asked_for_barriers(
    make_trio: Any, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(self: BarrierAnswers, session: Any, caller: Any, request: Any) -> None:
        raise UnknownOpcode("opcode 98 is not known here", 98)

    monkeypatch.setattr(BarrierAnswers, "subscribe", unknown)
    trio = make_trio()
    info = trio.topic("t", PARTITIONS)
    assert barriers(trio, 1, info).reached
    assert asked["AskBarriers"] > 0
    assert places_without_streams(subscriptions(trio, 1)) == {place_of(2, 0), place_of(3, 0)}
    trio.cut(2)
    trio[1].handle(ev.TrunkClosed(place_of(2, 0)))
    assert places_without_streams(subscriptions(trio, 1)) == {place_of(3, 0)}
