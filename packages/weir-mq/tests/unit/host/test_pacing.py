"""A shard with nothing to do is told rarely that time passes; the first event ends its rest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.logs import FlushSchedule
from weir.host.shard_loop import REST_MS, EventQueue, Pace, ShardLoop
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.messages import CreateTopic, DescribeTopic, Fetch
from weir.protocol.client.order import AskBarriers, SubscribeMarks
from weir.protocol.frame import CLIENT_HEADER, CLIENT_VERSION, ClientFrame
from weir.protocol.trunk import OWN_SESSION, Kind, TrunkFrame

_QUIET = 4


class Nobody:
    def is_gone(self, transport: Any) -> bool:
        return False


class Waiting:
    """A connection that is not looked at."""

    gone = False

    def check_unsent(self, now: float) -> bool:
        return True


class Node:
    """A shard with its host, which ticks by hand."""

    ready = True
    has_deferred = False

    def __init__(self) -> None:
        self.budget = Budget(100)
        self.idle = REST_MS
        self.time = self
        self.now_ms = 1
        self.wakes = 0
        self.later: list[Callable[[], None]] = []
        self.linked: list[int] = []
        self.says: list[ef.Effect] = []
        self.flushes = FlushSchedule((), (), lambda: 0.0)
        self.queue = EventQueue(cast(Shard, self), self.flushes)
        self.connections: Connections[Any] = Connections(
            self.queue, self.budget, ConnectionLimits(), cast(Any, Nobody()), lambda session: None,
            lambda: 0.0, 1, logging.getLogger("test"),
        )  # fmt: skip
        actions: dict[type, Callable[[Any], None]] = {ef.Stopped: self.flushed}
        self.loop = ShardLoop(
            cast(Shard, self), self.queue, self.connections, self.linked, actions, self,
            self.later.append,
        )  # fmt: skip
        self.pace = Pace(cast(Shard, self), self.queue, self.connections, self.loop, self.linked)
        self.loop.start()
        self.loop.run()

    def start(self) -> list[ef.Effect]:
        return []

    def step(self, *events: ev.Event) -> list[ef.Effect]:
        said, self.says = self.says, []
        return said

    def run_deferred(self) -> list[ef.Effect]:
        return []

    def idle_ms(self, most: int) -> int:
        return min(self.idle, most)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def serve(self) -> None:
        pass

    def wake(self) -> None:
        self.wakes += 1

    def broke(self, where: str, error: Exception) -> None:
        raise error

    def read(self, kind: type = Fetch) -> None:
        """A client fetches, or asks something else."""
        self.loop.handle(ev.Received(1, (ClientFrame(0, opcode_of(kind), 1, memoryview(b"")),)))

    def flushed(self, effect: ef.Effect) -> None:
        """What a tick asked for is done, of which the shard hears."""
        self.loop.handle(ev.Closed(1))

    def tick(self) -> int:
        self.pace.ticking()
        self.loop.handle(ev.Ticked())
        self.loop.run()
        return self.pace.rest_ms()

    def rest(self) -> None:
        """Tick until it rests."""
        assert [self.tick() for _ in range(_QUIET + 1)] == [0] * _QUIET + [REST_MS]


def test_a_shard_rests_once_ticks_find_nothing_and_goes_on_resting() -> None:
    node = Node()
    node.rest()
    assert [node.tick() for _ in range(3)] == [REST_MS] * 3
    assert node.wakes == 0


def test_the_first_event_wakes_it_once_and_it_rests_only_after_a_while() -> None:
    node = Node()
    node.rest()
    node.loop.handle(ev.Closed(1))
    node.loop.handle(ev.Closed(2))
    assert node.wakes == 1
    node.rest()


def test_reads_and_flushes_neither_end_a_rest_nor_keep_a_shard_from_it() -> None:
    node = Node()
    for _ in range(_QUIET):
        node.read()
        assert node.tick() == 0
        node.loop.handle(ev.Flushed(0, cast(Any, None)))
    assert node.tick() == REST_MS
    node.now_ms += 400
    node.read()
    assert node.tick() == REST_MS
    assert node.wakes == 0


def test_clients_that_ask_where_a_topic_is_served_do_not_end_a_rest() -> None:
    """Each reader asks that every 10 s: hundreds would keep a node awake that has nothing to do."""
    node = Node()
    node.rest()
    node.read(DescribeTopic)
    assert node.wakes == 0
    assert node.tick() == REST_MS
    node.read(CreateTopic)
    assert node.wakes == 1, "not each request is a read"


def test_marks_of_other_shards_do_not_end_a_rest_and_other_replies_do() -> None:
    """One comes each second while nothing happens, and kept a node awake that has readers."""
    node = Node()
    node.rest()

    def reply(kind: type, session: int = OWN_SESSION, cut: int = 0) -> ev.PassedBack:
        header = CLIENT_HEADER.pack(CLIENT_VERSION, 1, opcode_of(kind), 0, 1)
        return ev.PassedBack(1, [TrunkFrame(Kind.REPLIES, session, memoryview(header)[cut:])])

    node.loop.handle(reply(SubscribeMarks))
    assert node.wakes == 0
    assert node.tick() == REST_MS
    node.idle = 0  # somebody waits for a stamp that not all partitions are at
    node.loop.handle(reply(SubscribeMarks))
    assert node.wakes == 1
    for other in (reply(AskBarriers), reply(SubscribeMarks, 7), reply(SubscribeMarks, cut=1)):
        node = Node()
        node.rest()
        node.loop.handle(other)
        assert node.wakes == 1


def test_a_read_brings_the_next_tick_forward_where_it_waits_for_less_than_the_rest() -> None:
    node = Node()
    node.rest()
    node.now_ms += 400
    node.idle = 601
    node.read()
    assert node.wakes == 0, "the rest ends first"
    node.idle = 599
    node.read()
    node.read()
    assert node.wakes == 1
    node.idle = REST_MS
    assert node.tick() == REST_MS, "nothing has happened but reads"


def test_a_shard_that_has_something_under_way_is_not_quiet() -> None:
    node = Node()
    node.idle = 0
    assert [node.tick() for _ in range(2 * _QUIET)] == [0] * 2 * _QUIET
    node.idle = REST_MS
    node.rest()


def test_a_read_whose_effects_come_behind_the_turn_is_looked_at_behind_them() -> None:
    node = Node()
    node.rest()
    node.idle = 0
    node.flushes.inline[0] = cast(Any, None)  # one is about to run
    node.read()
    assert node.wakes == 0
    (behind,) = node.later
    behind()
    assert node.wakes == 1


def test_an_event_between_ticks_and_what_a_tick_asked_for_keep_it_awake() -> None:
    node = Node()
    for _ in range(3 * _QUIET):
        assert node.tick() == 0
        node.loop.handle(ev.Closed(1))
    for _ in range(3 * _QUIET):
        node.says = [ef.Stopped()]
        assert node.tick() == 0
    assert node.wakes == 0
    node.rest()


def test_it_rests_until_the_nearest_deadline() -> None:
    node = Node()
    node.rest()
    node.idle = 120
    assert node.tick() == 120
    node.idle = ev.TICK_MS  # no sooner than it would tick anyway
    assert node.tick() == 0
    node.idle = 0
    assert node.tick() == 0


@pytest.mark.parametrize("busy", ["linked", "watched", "waiting"])
def test_links_unsent_replies_and_connections_that_wait_need_each_tick(busy: str) -> None:
    node = Node()
    if busy == "linked":
        node.linked.append(1)
    elif busy == "watched":
        node.connections.watched[1] = cast(Any, Waiting())
    else:
        node.connections.accept_queue.let_wait(cast(Any, Waiting()), 5.0)
    assert [node.tick() for _ in range(3 * _QUIET)] == [0] * 3 * _QUIET


def test_a_shard_that_does_not_serve_yet_needs_each_tick() -> None:
    class Starting(Node):
        ready = False

    node = Starting()
    assert [node.tick() for _ in range(3 * _QUIET)] == [0] * 3 * _QUIET
    node.ready = True
    node.rest()
