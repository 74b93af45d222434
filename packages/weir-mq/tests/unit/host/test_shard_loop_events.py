"""When a shard takes events, and when it does what is deferred: the same for every host."""

from __future__ import annotations

from typing import Any, cast

import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.host.logs import FlushSchedule
from weir.host.shard_loop import EventQueue
from weir.protocol.client import messages as m
from weir.protocol.client.declaration import opcode_of
from weir.protocol.device import DeviceHello, DevicePing, DevicePublishes
from weir.protocol.frame import ClientFrame
from weir.protocol.trunk import Arrival
from weir.storage.log import Flush

FLUSHED = ev.Flushed(1, Flush(0, 0, (), ()))
SETTLED: list[ef.Effect] = [ef.HoldReads(True)]


class Noting:
    """A shard that notes what it takes and does, and has an effect for either."""

    def __init__(self) -> None:
        self.budget = Budget(100)
        self.has_deferred = False
        self.heard: list[Any] = []

    def step(self, *events: ev.Event) -> list[ef.Effect]:
        self.heard.append(events)
        return [ef.Stopped()]

    def run_deferred(self) -> list[ef.Effect]:
        self.heard.append("settled")
        return SETTLED


def fed(*events: ev.Event, lone: tuple[int, ...] = ()) -> tuple[Noting, EventQueue]:
    shard, flushes = Noting(), FlushSchedule((), (), lambda: 0.0)
    flushes.inline.update(dict.fromkeys(lone, FLUSHED.flush))
    queue = EventQueue(cast(Shard, shard), flushes)
    for event in events:
        queue.put(event)
    return shard, queue


def said(session: int) -> tuple[DeviceHello, DevicePublishes]:
    return DeviceHello(0, session, 1, 0, "t"), DevicePublishes([1], [0], [b"value"], [0])


PUBLISHES = ev.Received(1, said(1))
PINGS = ev.Received(1, [DevicePing(1)])
CLIENTS_PUBLISH, CLIENT_ASKS = (
    ev.Received(2, [ClientFrame(0, opcode_of(kind), 1, memoryview(b""))])
    for kind in (m.Produce, m.Pull)
)
BOTH = ev.Received(2, [*CLIENTS_PUBLISH.frames, *CLIENT_ASKS.frames])


@pytest.mark.parametrize(
    ("event", "used", "lone", "follows"),
    [
        (PINGS, 0, (), "at once"),
        (ev.Ticked(), 0, (), "at once"),
        (PUBLISHES, 0, (), "not at all"),
        (CLIENTS_PUBLISH, 0, (), "not at all"),
        (CLIENT_ASKS, 0, (), "at once"),
        (BOTH, 0, (), "at once"),
        (ev.Opened(1), 0, (), "not at all"),
        (ev.Arrived([]), 0, (), "not at all"),
        (FLUSHED, 0, (), "behind the turn"),
        (FLUSHED, 90, (), "behind the turn"),
        # What a flush confirms that is about to run inline goes out before.
        (PINGS, 0, (3,), "behind the turn"),
        (PUBLISHES, 0, (3,), "behind the turn"),
        (CLIENTS_PUBLISH, 0, (3,), "behind the turn"),
        # Others would be read from meanwhile.
        (PINGS, 90, (3,), "at once"),
        (CLIENTS_PUBLISH, 90, (3,), "at once"),
    ],
)
def test_the_shard_settles_at_once_behind_the_turn_or_not_at_all(
    event: ev.Event, used: int, lone: tuple[int, ...], follows: str
) -> None:
    shard, queue = fed(event, lone=lone)
    shard.budget.take(used)
    assert queue.take() == [ef.Stopped()]
    behind = queue.follow()
    assert shard.heard == [(event,)] + ["settled"] * (follows == "at once")
    expected = {"at once": SETTLED, "behind the turn": None, "not at all": []}
    assert behind == expected[follows]


def test_publishes_that_left_something_to_do_are_followed_by_it() -> None:
    for event in (PUBLISHES, CLIENTS_PUBLISH):
        shard, queue = fed(event)
        shard.has_deferred = True
        queue.take()
        assert queue.follow() == SETTLED


def test_a_hold_that_is_known_is_no_news() -> None:
    shard, queue = fed(PUBLISHES, lone=(3,))
    shard.budget.take(90)
    queue.held = True
    queue.take()
    assert queue.follow() is None
    shard.budget.release(50)  # it ends
    queue.put(PUBLISHES)
    queue.take()
    assert queue.follow() == SETTLED


def test_one_settling_behind_a_turn_is_enough() -> None:
    shard, queue = fed()
    found: list[Any] = []
    for _ in range(3):
        queue.put(FLUSHED)
        queue.take()
        found.append(queue.follow())
    assert found == [None, [], []]
    assert queue.run_deferred() == SETTLED
    queue.put(FLUSHED)
    queue.take()
    assert queue.follow() is None
    assert shard.heard == [(FLUSHED,)] * 3 + ["settled", (FLUSHED,)]


def test_events_that_come_while_effects_are_done_wait_for_their_end() -> None:
    shard, queue = fed(PINGS)
    queue.take()
    queue.put(FLUSHED)
    assert queue.waits
    queue.follow()
    assert not queue.waits
    queue.take()
    assert shard.heard == [(PINGS,), "settled", (FLUSHED,)]


def test_what_is_gathered_is_taken_as_one() -> None:
    shard, queue = fed()
    queue.gather()
    queue.put(PINGS)
    queue.gather()  # one inside of another loses nothing
    queue.put(PUBLISHES)
    assert queue.waits
    queue.release()
    assert not queue.waits
    queue.take()
    assert queue.follow() == SETTLED, "one of them is no publish"
    assert shard.heard == [(PINGS, PUBLISHES), "settled"]


def test_devices_that_say_hello_and_publish_as_they_come_are_one_event() -> None:
    _, queue = fed()

    def comes(session: int, principal: str = "", place: int = 0) -> None:
        queue.put(ev.Opened(session, principal, place))
        queue.receive(session, said(session))

    def one(session: int) -> Arrival:
        return Arrival(session, *said(session))

    queue.gather()
    comes(1)
    comes(2)
    queue.put(ev.Opened(3))
    queue.put(ev.Opened(4))
    queue.receive(3, said(3))  # who comes between is no part of it
    comes(6, "ada", 1)
    comes(7, "ada", 1)
    comes(8, "ada", 2)
    queue.put(ev.Opened(9))
    queue.receive(9, said(9)[:1])
    queue.release()
    assert queue.events == [
        ev.Arrived([one(1), one(2)]),
        ev.Opened(3),
        ev.Opened(4),
        ev.Received(3, said(3)),
        ev.Arrived([one(6), one(7)], "ada", 1),
        ev.Arrived([one(8)], "ada", 2),
        ev.Opened(9),
        ev.Received(9, said(9)[:1]),
    ]


def test_a_closed_feed_takes_nothing_any_more() -> None:
    shard, queue = fed(FLUSHED)
    queue.take()
    assert queue.follow() is None
    queue.put(PINGS)
    queue.close()
    queue.put(PINGS)
    queue.receive(1, said(1))
    queue.gather()
    queue.release()
    assert queue.waits
    assert not queue.events
    assert queue.run_deferred() == []
    assert shard.heard == [(FLUSHED,)]


def test_what_peers_ask_for_is_counted() -> None:
    flushes = FlushSchedule((), (), lambda: 0.0)
    queue = EventQueue(cast(Shard, Noting()), flushes)
    queue.put(ev.Opened(1))
    queue.receive(1, said(1))
    queue.receive(2, PINGS.frames)
    queue.arrive(ev.Arrived([Arrival(3, *said(3)), Arrival(4, *said(4))], "ada", 1))
    assert flushes.asked == 2 + 1 + 4
