"""Consumers of a cluster share its work evenly: a grant is no more than all who wait may have."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from weir.client.core.grants import Prefetch
from weir.model.topic import Mode
from weir.protocol.client import messages as m

LEASE_MS = 30_000


class Desk:
    """A topic, and who publishes to it by batches."""

    def __init__(self, rig: Any, partitions: int = 1) -> None:
        self.rig = rig
        rig.connect(1)
        self.info = rig.topic(1, "t", partitions)
        self.producer = rig.answer(1, m.OpenProducer())
        self.published = [0] * partitions

    def publish(self, count: int, partition: int = 0, keys: int = 0) -> None:
        info, first = self.info, self.published[partition]
        address = [info.addresses[partition]]
        here = m.TopicInfo(info.id, info.namespace, info.name, info.order, address)
        named = {"keys": [b"%d" % (n % keys) for n in range(first, first + count)]} if keys else {}
        batch = self.rig.batch(here, self.producer, first, *[b"x"] * count, **named)
        self.rig.ask(1, batch)
        self.published[partition] += count

    def pull(self, session: int, most: int, partition: int = 0, mode: Mode = Mode.SHARED) -> int:
        address = self.info.addresses[partition]
        number: int = self.rig.ask(
            session, m.Pull(address, "crew", most, 1 << 20, 20_000, LEASE_MS, mode)
        )
        return number

    def granted(self, session: int) -> list[int]:
        """Return the sizes of the grants that came, and forget them."""
        found = [size_of(reply) for _, reply in self.rig.replies[session]]
        self.rig.replies[session].clear()
        return found


def size_of(granted: Any) -> int:
    assert granted.fence > 0
    runs = granted.runs or [(granted.offset, granted.next_offset)]
    return sum(behind - first for first, behind in runs)


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEYED])
def test_all_who_wait_get_as_much(rig: Any, mode: Mode) -> None:
    desk, waiting = Desk(rig), range(2, 12)
    for session in waiting:
        rig.connect(session)
        desk.pull(session, 100, 0, mode)
    desk.publish(53, keys=53)
    rig.settle()
    assert [desk.granted(session) for session in waiting] == [[6]] * 3 + [[5]] * 7


def test_who_waits_alone_gets_what_it_asks_for(rig: Any) -> None:
    desk = Desk(rig)
    for session in (2, 3):
        rig.connect(session)
    desk.publish(90)
    rig.settle()
    desk.pull(2, 40)
    rig.settle()
    desk.pull(3, 100)
    rig.settle()
    assert [desk.granted(2), desk.granted(3)] == [[40], [50]]


def test_who_asks_for_much_is_not_kept_busy_with_little(rig: Any) -> None:
    """It works that off in a moment, and a grant each time costs more than that."""
    desk, waiting = Desk(rig), range(2, 12)
    for session in waiting:
        rig.connect(session)
        desk.pull(session, 1_600)
    desk.publish(60)
    rig.settle()
    assert [desk.granted(session) for session in waiting] == [[25], [25], [10]] + [[]] * 7


class Crowd:
    """Consumers that pull as the client's do, in the rig's time: each partition has one grant at
    work, and one ahead as their pace has it. Replies take `LATENCY_MS`.
    """

    LATENCY_MS = 20

    def __init__(self, desk: Desk, consumers: int, work_ms: Callable[[], int]) -> None:
        self.desk, self.rig, self.work_ms = desk, desk.rig, work_ms
        self.partitions = len(desk.published)
        self.done = [0] * consumers
        self._paces = [Prefetch(10_000, LEASE_MS / 1_000) for _ in range(consumers)]
        self._came: list[list[tuple[int, int]]] = [[] for _ in range(consumers)]
        self._busy = [False] * consumers
        self._asked: dict[tuple[int, int], int] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        for one in range(consumers):
            self.rig.connect(self._session(one))
            for partition in range(self.partitions):
                self._ask(one, partition)

    def _session(self, one: int) -> int:
        return 100 + one

    def at(self, ms: int, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.rig.time.monotonic + ms, self._number, call))

    def run(self, messages: int) -> float:
        """Return after how many seconds so many were done."""
        began = ticked = self.rig.time.monotonic
        while sum(self.done) < messages:
            self._collect()
            when, _, call = heapq.heappop(self._events)
            self.rig.time.pass_ms(when - self.rig.time.monotonic)
            if when >= ticked + 50:
                self.rig.tick(0)
                ticked = when
            call()
        seconds: float = (self.rig.time.monotonic - began) / 1_000
        return seconds

    def _collect(self) -> None:
        self.rig.settle()
        for session, replies in self.rig.replies.items():
            for number, reply in replies if session >= 100 else ():
                partition, one = self._asked.pop((session, number)), session - 100
                self._came[one].append((partition, size_of(reply)))
                self.at(self.LATENCY_MS, partial(self._begin, one))
            replies.clear()

    def _ask(self, one: int, partition: int) -> None:
        number = self.desk.pull(self._session(one), self._paces[one].size, partition)
        self._asked[self._session(one), number] = partition

    def _begin(self, one: int) -> None:
        if self._busy[one] or not self._came[one]:
            return
        self._busy[one] = True
        partition, size = self._came[one].pop(0)
        ahead = self._paces[one].ahead
        if ahead:
            self._ask(one, partition)
        ms = sum(self.work_ms() for _ in range(size))
        self.at(ms, partial(self._end, one, partition, size, ms, ahead))

    def _end(self, one: int, partition: int, size: int, ms: int, ahead: bool) -> None:
        self._busy[one] = False
        self.done[one] += size
        self._paces[one].took(size, ms / 1_000, self.partitions)
        if not ahead:
            self._ask(one, partition)
        self._begin(one)


def test_bursts_are_shared_by_all(rig: Any) -> None:
    """Of 25 consumers on two partitions all work, though few could take all that there is."""
    desk, messages = Desk(rig, 2), 2_000
    crowd = Crowd(desk, 25, lambda: 20)

    def burst() -> None:
        desk.publish(100, sum(desk.published) // 100 % 2)
        if sum(desk.published) < messages:
            crowd.at(100, burst)

    burst()
    assert crowd.run(messages) < 1.2 * messages * 0.020 / 25 + 1, "as if none ever waited, nearly"
    mean = messages / 25
    assert 0.8 * mean <= min(crowd.done) <= max(crowd.done) <= 1.2 * mean


def test_a_few_quick_ones_take_no_backlog_from_the_others(rig: Any) -> None:
    """Every other message takes no time: who has some of these in a row is no quicker for that."""
    desk, dice = Desk(rig, 2), random.Random(1)
    for partition in range(2):
        desk.publish(600, partition)
    crowd = Crowd(desk, 20, lambda: dice.choice((2, 460)))
    assert crowd.run(1_200) < 1.4 * 1_200 * 0.231 / 20, "nobody has nothing to do for long"
    mean = 1_200 / 20
    assert 0.6 * mean <= min(crowd.done) <= max(crowd.done) <= 1.5 * mean
