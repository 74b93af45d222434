"""Requests in line: by arrival, by deadline, by peer; and nobody pays for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import TAKE_WAIT, deadlines_of
from weir.broker.api.events import Closed, Stopping
from weir.broker.consumers.grants import Grants
from weir.broker.runtime import outbox
from weir.broker.runtime.outbox import Caller, Wait, Waits
from weir.errors import Overloaded
from weir.protocol.client import messages as m


def line(*rows: tuple[int, int]) -> Waits[str]:
    """A line of requests named by their place, from (session, deadline) each."""
    made: Waits[str] = Waits()
    for at, (session, deadline) in enumerate(rows):
        made.add(Wait(Caller(session, 0, at), f"r{at}", deadline))
    return made


def test_the_line_is_served_by_arrival_and_ends_by_deadline() -> None:
    waiting = line((1, 30), (2, 10), (1, 20))
    assert waiting.first().request == "r0"
    assert [w.request for w in waiting.ended(20)] == ["r1", "r2"]
    assert waiting.ended(29) == []
    assert waiting.pop().request == "r0"
    assert not waiting
    assert waiting.ended(99) == []


def test_who_is_put_back_is_first_and_still_has_a_deadline() -> None:
    waiting = line((1, 30), (2, 40))
    waiter = waiting.pop()
    waiting.add(waiter, front=True)
    assert waiting.first() is waiter
    assert [w.request for w in waiting.ended(30)] == ["r0"]


def test_a_gone_peer_takes_its_own_along() -> None:
    waiting = line((1, 30), (2, 40), (1, 50))
    waiting.closed(1)
    waiting.closed(7)
    assert [w.request for w in waiting.ended(99)] == ["r1"]


def test_deadlines_of_those_who_were_served_are_forgotten() -> None:
    waiting = line((1, 50_000))
    for at in range(2_000):
        waiting.add(Wait(Caller(2, 0, at), "x", 60_000), front=True)
        waiting.pop()
    assert len(deadlines_of(waiting)) <= 2 * 2 + 64
    assert [w.request for w in waiting.ended(60_000)] == ["r0"]


def test_a_line_has_an_end(monkeypatch: Any) -> None:
    monkeypatch.setattr(outbox, "CONNECTIONS_MAX", 2)
    waiting = line((1, 1))
    waiting.check_room()
    waiting.add(Wait(Caller(1, 0, 0), "x", 1))
    with pytest.raises(Overloaded):
        waiting.check_room()


def test_a_tick_or_a_close_looks_at_no_other_poll(rig: Any, monkeypatch: Any) -> None:
    """Long polls of many peers: what ends is counted by how many waits are taken out."""
    address = rig.topic(rig.connect(1)).addresses[0]
    for session in range(2, 42):
        rig.connect(session)
        wait_ms = 1_000 if session % 2 else 60_000
        rig.ask(session, m.Fetch(address, 0, 1_000, wait_ms))
        rig.ask(session, m.Pull(address, "crew", 1, 1_000, wait_ms))
    taken: list[int] = []
    take = getattr(*TAKE_WAIT)
    monkeypatch.setattr(
        *TAKE_WAIT, lambda self, number: (taken.append(number), take(self, number))[1]
    )
    rig.tick(999)
    assert taken == []
    rig.tick(1)
    assert len(taken) == 2 * 20
    assert all(len(rig.replies[session]) == 2 for session in range(3, 42, 2))
    taken.clear()
    rig.handle(Closed(2))
    assert len(taken) == 2
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(rig.topic(1), grant, 0, b"v"))
    assert [len(rig.replies[session]) for session in (4, 6)] == [2, 1], "one message, one grant"


def come_to_rest(rig: Any) -> None:
    """Let the idle mark be written, and all that follows."""
    for _ in range(4):
        rig.tick()
        rig.settle()


def test_a_shard_need_hear_of_no_time_before_the_nearest_fetch_ends(rig: Any) -> None:
    address = rig.topic(rig.connect(1)).addresses[0]
    come_to_rest(rig)
    assert rig.shard.idle_ms(1_000) == 1_000
    for session, wait_ms in ((2, 700), (3, 300)):
        rig.connect(session)
        rig.ask(session, m.Fetch(address, 0, 1_000, wait_ms))
    assert rig.shard.idle_ms(1_000) == 300
    (partition,) = [one for one in rig.shard.topics.partitions() if one.fetches.waiting]
    assert partition.rests_until == rig.time.monotonic_ms() + 300, "nobody looks at all who wait"
    rig.tick(50)
    assert rig.shard.idle_ms(1_000) == 250
    assert rig.shard.idle_ms(100) == 100
    rig.tick(250)
    assert len(rig.replies[3]) == 1
    assert rig.shard.idle_ms(1_000) == 400
    rig.tick(400)
    assert len(rig.replies[2]) == 1


def test_a_shard_hears_of_time_when_the_nearest_pull_ends(rig: Any) -> None:
    address = rig.topic(rig.connect(1)).addresses[0]
    come_to_rest(rig)
    for session, wait_ms in ((2, 700), (3, 300)):
        rig.connect(session)
        rig.ask(session, m.Pull(address, "crew", session % 2, 1_000, wait_ms))
    rig.ask(3, m.Fetch(address, 0, 1_000, 200))
    assert rig.shard.idle_ms(1_000) == 200
    rig.tick(200)
    assert rig.shard.idle_ms(1_000) == 100
    rig.tick(100)
    assert len(rig.replies[3]) == 2
    assert rig.shard.idle_ms(1_000) == 400


def test_a_tick_serves_no_cluster_that_it_brings_nothing(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = rig.topic(rig.connect(1)).addresses[0]
    rig.ask(1, m.Pull(address, "crew", 1, 1_000, 500))
    served: list[int] = []
    serve_all = Grants.serve_all
    monkeypatch.setattr(
        Grants, "serve_all", lambda self: (served.append(rig.time.monotonic_ms()), serve_all(self))
    )
    began = rig.time.monotonic_ms()
    for _ in range(20):
        rig.tick(50)
    assert served == [began + 500], "when its time is up, and at no other tick"
    assert len(rig.replies[1]) == 2, "the topic, and nothing granted"


def test_a_shard_hears_of_each_tick_while_a_cluster_has_messages_to_do(rig: Any) -> None:
    info, grant = rig.topic(rig.connect(1)), rig.answer(1, m.OpenProducer())
    rig.connect(2)
    rig.answer(1, rig.batch(info, grant, 0, b"v"))
    fence = rig.answer(2, m.Pull(info.addresses[0], "crew", 1, 30_000, 0)).fence
    rig.ask(2, m.Pull(info.addresses[0], "crew", 1, 30_000, 60_000))
    come_to_rest(rig)
    assert rig.shard.idle_ms(1_000) == 0, "its lease may end"
    rig.answer(2, m.Ack(info.addresses[0], "crew", [(fence, 0, 1)]))
    come_to_rest(rig)
    assert rig.shard.idle_ms(1_000) == 1_000


def test_a_shard_hears_of_time_when_a_turn_ends_that_others_wait_for(rig: Any) -> None:
    address = rig.topic(rig.connect(1)).addresses[0]
    rig.connect(2)
    assert rig.answer(1, m.TakeTurn(address, "crew", (0,), 900, 0)).fence
    rig.ask(2, m.TakeTurn(address, "crew", (0,), 900, 5_000))
    for _ in range(2):
        rig.tick(50)
        rig.settle()
    left = rig.shard.idle_ms(1_000)
    assert 700 <= left <= 800
    rig.tick(left)
    rig.settle()
    assert rig.replies[2][-1][1].fence


def test_a_shard_looks_at_all_partitions_before_it_rests(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.broker.partition.retention._LOOKS_PER_TICK", 1)
    rig = make_rig(retention_every_ms=1_000)
    rig.topic(rig.connect(1), partitions=3)
    come_to_rest(rig)
    assert rig.shard.idle_ms(1_000) == 1_000
    rig.tick(1_000)
    assert rig.shard.idle_ms(1_000) == 0, "two of three are left"
    rig.tick()
    rig.tick()
    assert rig.shard.idle_ms(1_000) == 1_000


def test_a_shard_with_work_or_on_its_way_out_hears_of_each_tick(rig: Any) -> None:
    info, grant = rig.topic(rig.connect(1)), rig.answer(1, m.OpenProducer())
    come_to_rest(rig)
    assert rig.shard.idle_ms(1_000) == 1_000
    rig.ask(1, rig.batch(info, grant, 0, b"v"))
    assert rig.shard.idle_ms(1_000) == 0, "its flush is in flight"
    come_to_rest(rig)
    assert rig.shard.idle_ms(1_000) == 1_000
    rig.shard.budget.charge(1)
    assert rig.shard.idle_ms(1_000) == 0, "a reply is not taken"
    rig.shard.budget.release(1)
    rig.handle(Stopping())
    assert rig.shard.idle_ms(1_000) == 0
