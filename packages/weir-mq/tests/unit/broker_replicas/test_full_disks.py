"""A disk that is full keeps its node from leading, as long as another one has room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rigs.shards import be_full, flying_of, forget_short_disks, full_disks
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.metadata.reassignment import STEADY_MS
from weir.errors import Overloaded, Unavailable
from weir.protocol import device as d
from weir.protocol.client import messages as m

VALUE = b"v" * 8_000


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Callable[[], None]]]:
    """Let a node's disk have no room for another file, until what is returned is called."""

    def full(node: Any) -> Callable[[], None]:
        step = node.step

        def stepping() -> None:
            job = node.jobs[0]
            if not isinstance(job, ef.MakeSpare):
                step()
                return
            del node.jobs[0]
            node.handle(ev.SpareMade(job.log, job.spare, made=False))

        monkeypatch.setattr(node, "step", stepping)
        return lambda: monkeypatch.setattr(node, "step", step)

    return full


def leads(trio: Any, group: int) -> list[int]:
    return [node.id for node in trio.live() if node.group(group).machine.leads]


# It refused all publishes to what it led, for as long as its disk was full; the others had room.
def test_who_is_full_lets_others_lead_and_is_given_nothing_back_before_it_has_room(
    trio: Any, produce: Any, fill: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    full = trio.leader(group)
    empty = fill(full)
    told = 0
    while leads(trio, group) in ([], [full.id]):
        reply = trio.told(produce(info, grant, told, VALUE), group)
        told += isinstance(reply, m.Confirm)
        trio.run(100)
        assert told < 30, "it leads on"
    trio.run(3 * STEADY_MS)
    assert full.id not in leads(trio, group)
    assert trio.told(produce(info, grant, told, b"more"), group).offset == told
    empty()
    trio.until(lambda: leads(trio, group) == [full.id], "it is never given back")
    assert trio.told(produce(info, grant, told + 1, b"last"), group).offset == told + 1
    assert len(trio.same_everywhere(group)) == told + 2


def test_where_all_are_full_nobody_hands_over(trio: Any, produce: Any, fill: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    for node in trio.live():
        fill(node)
    told = 0
    while isinstance(trio.told(produce(info, grant, told, VALUE), group), m.Confirm):
        told += 1
    trio.run(2_000)
    (leader,) = leads(trio, group)
    term = trio[leader].group(group).node.term
    trio.run(3 * STEADY_MS)
    assert (leads(trio, group), trio[leader].group(group).node.term) == ([leader], term)
    reply = trio.answer(trio[leader], produce(info, grant, told, VALUE))
    assert isinstance(reply, m.Refusal)
    assert (reply.code, "disk is full" in reply.message) == (Overloaded.code, True)


def test_a_leader_with_room_says_that_its_followers_have_none(
    trio: Any, produce: Any, fill: Any
) -> None:
    """Publishes stood until their timeouts, which looked like a lost majority."""
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    leader = trio.leader(group)
    others = [node for node in trio.live() if node is not leader]
    empties = [fill(node) for node in others]
    told = 0
    while isinstance(reply := trio.told(produce(info, grant, told, VALUE), group), m.Confirm):
        told += 1
        trio.run(500)
        assert told < 100, "nobody is told"
    assert (leads(trio, group), leader.shard.needed_bytes) == ([leader.id], 0)
    first, second = sorted(node.id for node in others)
    assert reply.code == Overloaded.code
    assert reply.message.startswith(f"nodes {first} and {second} have full disks: free space")
    assert leader.shard.short.nodes == (first, second)
    assert leader.shard.short.needed_bytes == max(node.shard.needed_bytes for node in others) > 0
    for node in others:
        assert node.shard.short is None
    trio.run(5_000)
    assert isinstance(trio.told(produce(info, grant, told, VALUE), group), m.Refusal)
    empties[0]()
    trio.until(lambda: leader.shard.short is None, "it refuses on")
    assert trio.told(produce(info, grant, told, b"last"), group).offset == told


@pytest.fixture
def clog(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Callable[[], None]]:
    """Let a node's flushes wait, until what is returned is called."""

    def clogged(node: Any) -> Callable[[], None]:
        step, held = node.step, []

        def stepping() -> None:
            if isinstance(node.jobs[0], ef.StartFlush):
                held.append(node.jobs.pop(0))
            else:
                step()

        def flushed() -> None:
            node.jobs[:0] = held
            monkeypatch.setattr(node, "step", step)

        monkeypatch.setattr(node, "step", stepping)
        return flushed

    return clogged


def test_publishes_under_way_are_told_of_full_disks_and_are_taken_once(
    trio: Any, produce: Any, clog: Any, fill: Any
) -> None:
    """They were told nothing, which looked like a lost majority."""
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    leader = trio.leader(group)
    leader.raw[50] = b""
    leader.handle(ev.Opened(50))

    def device(*frames: bytes) -> list[tuple[int, int]]:
        leader.raw[50] = b""
        leader.handle(ev.Received(50, d.DeviceStream().receive(b"".join(frames))))
        trio.run(500)
        return [(one.sequence, one.code) for one in d.DeviceReplies().receive(leader.raw[50])]

    assert [code for _, code in device(d.hello(7, 1, "t"))] == [0]
    others = [node for node in trio.live() if node is not leader]
    flushes = [clog(node) for node in others]
    empties = [fill(node) for node in others]
    used = leader.shard.budget.used
    #: As many as fill the followers' room, all of which is under way.
    asked = [leader.ask(produce(info, grant, number, VALUE)) for number in range(14)]
    refused = device(d.publish(3, b"first", 0), d.publish(3, b"second", 1), d.publish(4, b"x", 5))
    replies = [leader.reply_to(one) for one in asked]
    assert {(one.code, "have full disks: free space" in one.message) for one in replies} == {
        (Unavailable.code, True)
    }
    assert refused == [(0, Unavailable.code), (1, Unavailable.code), (5, Unavailable.code)]
    assert leader.shard.budget.used > used, "what is under way is held, and counted"
    # What comes again meanwhile is refused, and after that known as a repeat.
    assert device(d.publish(3, b"second", 1)) == [(1, Unavailable.code)]
    again = leader.ask(produce(info, grant, 0, VALUE))
    assert leader.reply_to(again).code == Overloaded.code
    for empty in empties:
        empty()
    trio.until(lambda: leader.shard.short is None, "it refuses on")
    again = leader.ask(produce(info, grant, 0, VALUE))
    assert device(d.publish(3, b"second", 1), d.publish(3, b"third", 2)) == []
    for flush in flushes:
        flush()
    trio.until(lambda: leader.raw[50], "it is not taken")
    assert leader.reply_to(again) == m.Confirm(0, leader.reply_to(again).stamp, True)
    told = [(one.sequence, one.code) for one in d.DeviceReplies().receive(leader.raw[50])]
    assert told == [(1, 0), (2, 0)]
    values = trio.same_everywhere(group)
    assert values == [VALUE] * 14 + [b"first", b"second", b"third"]
    assert leader.shard.budget.used == used


def test_who_takes_no_publishes_any_more_says_so_at_once(trio: Any) -> None:
    """In the second until it is told again, the little room that is left may go."""
    trio.topic()
    teller, *others = trio.live()
    trio.run(1_500)
    be_full(teller.shard, 5, teller.time.monotonic_ms() + 60_000)
    trio.run(150)
    for node in others:
        assert full_disks(node.shard) == {teller.id: 5}


def test_a_leader_takes_publishes_while_one_follower_has_room(
    trio: Any, produce: Any, fill: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    leader = trio.leader(group)
    full = next(node for node in trio.live() if node is not leader)
    fill(full)
    for told in range(30):
        assert trio.told(produce(info, grant, told, VALUE), group).offset == told
        trio.run(500)
    assert full.shard.needed_bytes
    assert leader.shard.short is None


def test_retries_of_devices_cost_nothing_while_disks_are_full(
    trio: Any, produce: Any, clog: Any, fill: Any
) -> None:
    """Each one that was refused was kept until the commit, and those let pass were charged."""
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    leader = trio.leader(group)
    leader.raw[50] = b""
    leader.handle(ev.Opened(50))

    def device(*frames: bytes) -> None:
        leader.handle(ev.Received(50, d.DeviceStream().receive(b"".join(frames))))

    device(d.hello(7, 1, "t"))
    trio.run(300)
    others = [node for node in trio.live() if node is not leader]
    for node in others:
        clog(node)
        fill(node)
    for number in range(14):
        leader.ask(produce(info, grant, number, VALUE))
    device(d.publish(3, VALUE, 0))
    trio.run(500)
    used = leader.shard.budget.used
    batcher = leader.shard.topics.find(group).leading.device_batcher
    for _ in range(20):
        device(d.publish(3, VALUE, 0))
        trio.run(500)
    forget_short_disks(leader.shard)  # as when disks have room for a moment
    device(d.publish(3, VALUE, 0))
    trio.run(500)
    assert not any(gathering.behind for gathering in flying_of(batcher))
    assert leader.shard.budget.used == used
    replies = d.DeviceReplies().receive(leader.raw[50])
    assert len(replies) == 1 + 1 + 21
