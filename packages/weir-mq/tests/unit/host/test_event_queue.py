"""When a shard takes events, and when it settles: the same for every host."""

from __future__ import annotations

from typing import Any, cast

import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.host.event_queue import Feed
from weir.host.flush_schedule import FlushSchedule
from weir.protocol.device.codec import DeviceHello, DevicePing, DevicePublishes
from weir.protocol.trunk import Arrival
from weir.storage.segments.flush import Flush

FLUSHED = ev.Flushed(1, Flush(0, 0, (), ()))
SETTLED: list[ef.Effect] = [ef.HoldReads(True)]


class Noting:
    """A shard that notes what it takes and when it settles, and has an effect for either."""

    def __init__(self) -> None:
        self.budget = Budget(100)
        self.heard: list[Any] = []

    def take(self, *events: ev.Event) -> list[ef.Effect]:
        self.heard.append(events)
        return [ef.Stopped()]

    def settle(self) -> list[ef.Effect]:
        self.heard.append("settled")
        return SETTLED


def fed(*events: ev.Event, lone: tuple[int, ...] = ()) -> tuple[Noting, Feed]:
    shard, flushes = Noting(), FlushSchedule((), (), lambda: 0.0)
    flushes.inline.update(dict.fromkeys(lone, FLUSHED.flush))
    feed = Feed(cast(Shard, shard), flushes)
    for event in events:
        feed.put(event)
    return shard, feed


def said(session: int) -> tuple[DeviceHello, DevicePublishes]:
    return DeviceHello(0, session, 1, 0, "t"), DevicePublishes([1], [0], [b"value"], [0])


PUBLISHES = ev.Received(1, said(1))
PINGS = ev.Received(1, [DevicePing(1)])


@pytest.mark.parametrize(
    ("event", "used", "lone", "follows"),
    [
        (PINGS, 0, (), "at once"),
        (ev.Ticked(), 0, (), "at once"),
        (PUBLISHES, 0, (), "not at all"),
        (ev.Opened(1), 0, (), "not at all"),
        (ev.Arrived([]), 0, (), "not at all"),
        (FLUSHED, 0, (), "behind the turn"),
        (FLUSHED, 90, (), "behind the turn"),
        # What a flush confirms that is about to run inline goes out before.
        (PINGS, 0, (3,), "behind the turn"),
        (PUBLISHES, 0, (3,), "behind the turn"),
        # Others would be read from meanwhile.
        (PINGS, 90, (3,), "at once"),
        (PUBLISHES, 90, (), "at once"),
    ],
)
def test_the_shard_settles_at_once_behind_the_turn_or_not_at_all(
    event: ev.Event, used: int, lone: tuple[int, ...], follows: str
) -> None:
    shard, feed = fed(event, lone=lone)
    shard.budget.take(used)
    assert feed.take() == [ef.Stopped()]
    behind = feed.follow()
    assert shard.heard == [(event,)] + ["settled"] * (follows == "at once")
    expected = {"at once": SETTLED, "behind the turn": None, "not at all": []}
    assert behind == expected[follows]


def test_a_hold_that_is_known_is_no_news() -> None:
    shard, feed = fed(PUBLISHES)
    shard.budget.take(90)
    feed.held = True
    feed.take()
    assert feed.follow() == []
    shard.budget.release(50)  # it ends
    feed.put(PUBLISHES)
    feed.take()
    assert feed.follow() == SETTLED


def test_one_settling_behind_a_turn_is_enough() -> None:
    shard, feed = fed()
    found: list[Any] = []
    for _ in range(3):
        feed.put(FLUSHED)
        feed.take()
        found.append(feed.follow())
    assert found == [None, [], []]
    assert feed.settle() == SETTLED
    feed.put(FLUSHED)
    feed.take()
    assert feed.follow() is None
    assert shard.heard == [(FLUSHED,)] * 3 + ["settled", (FLUSHED,)]


def test_events_that_come_while_effects_are_done_wait_for_their_end() -> None:
    shard, feed = fed(PINGS)
    feed.take()
    feed.put(FLUSHED)
    assert feed.waits
    feed.follow()
    assert not feed.waits
    feed.take()
    assert shard.heard == [(PINGS,), "settled", (FLUSHED,)]


def test_what_is_gathered_is_taken_as_one() -> None:
    shard, feed = fed()
    feed.gather()
    feed.put(PINGS)
    feed.gather()  # one inside of another loses nothing
    feed.put(PUBLISHES)
    assert feed.waits
    feed.release()
    assert not feed.waits
    feed.take()
    assert feed.follow() == SETTLED, "one of them is no publish"
    assert shard.heard == [(PINGS, PUBLISHES), "settled"]


def test_devices_that_say_hello_and_publish_as_they_come_are_one_event() -> None:
    _, feed = fed()

    def comes(session: int, principal: str = "", place: int = 0) -> None:
        feed.put(ev.Opened(session, principal, place))
        feed.receive(session, said(session))

    def one(session: int) -> Arrival:
        return Arrival(session, *said(session))

    feed.gather()
    comes(1)
    comes(2)
    feed.put(ev.Opened(3))
    feed.put(ev.Opened(4))
    feed.receive(3, said(3))  # who comes between is no part of it
    comes(6, "ada", 1)
    comes(7, "ada", 1)
    comes(8, "ada", 2)
    feed.put(ev.Opened(9))
    feed.receive(9, said(9)[:1])
    feed.release()
    assert feed.events == [
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
    shard, feed = fed(FLUSHED)
    feed.take()
    assert feed.follow() is None
    feed.put(PINGS)
    feed.close()
    feed.put(PINGS)
    feed.receive(1, said(1))
    feed.gather()
    feed.release()
    assert feed.waits
    assert not feed.events
    assert feed.settle() == []
    assert shard.heard == [(FLUSHED,)]


def test_what_peers_ask_for_is_counted() -> None:
    flushes = FlushSchedule((), (), lambda: 0.0)
    feed = Feed(cast(Shard, Noting()), flushes)
    feed.put(ev.Opened(1))
    feed.receive(1, said(1))
    feed.receive(2, PINGS.frames)
    feed.arrive(ev.Arrived([Arrival(3, *said(3)), Arrival(4, *said(4))], "ada", 1))
    assert flushes.asked == 2 + 1 + 4
