"""Time is told to the partitions in which somebody waits, and to no other: whatever waits ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.partition.partition import Partition
from weir.order.clock import stamp_at
from weir.protocol.client import messages as m

WAIT_MS = 500
#: As long as `StablePositions` keeps somebody back.
SETTLING_MS = 10_000
LEASE_MS = 1_000


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The groups that were told that time passes, in order."""
    groups: list[int] = []
    check = Partition.check_deadlines

    def noted(partition: Partition) -> None:
        groups.append(partition.group.id)
        check(partition)

    monkeypatch.setattr(Partition, "check_deadlines", noted)
    return groups


def fetch(rig: Any, info: m.TopicInfo, at: int = 0) -> int:
    return int(rig.ask(1, m.Fetch(info.addresses[at], 0, 100, wait_ms=WAIT_MS)))


def pull(rig: Any, info: m.TopicInfo) -> int:
    return int(rig.ask(1, m.Pull(info.addresses[0], "crew", 1, 100, WAIT_MS, LEASE_MS)))


def watch(rig: Any, info: m.TopicInfo) -> int:
    return int(rig.ask(1, m.Pull(info.addresses[0], "crew", 0, 0, WAIT_MS, LEASE_MS)))


def settling(rig: Any, info: m.TopicInfo) -> int:
    grant = rig.answer(1, m.OpenProducer())
    rig.ask(1, rig.batch(info, grant, 0, b"under way"))
    return int(rig.ask(1, m.Positions(info.addresses[0], stamp_at(rig.time.wall_ms()))))


def is_answered(rig: Any, number: int) -> bool:
    return any(asked == number for asked, _ in rig.replies[1])


@pytest.mark.parametrize(
    ("wait", "wait_ms", "times"),
    [(fetch, WAIT_MS, 1), (pull, WAIT_MS, 1), (watch, WAIT_MS, 1), (settling, SETTLING_MS, 2)],
)
def test_every_wait_ends_in_time_and_is_forgotten(
    rig: Any, told: list[int], wait: Callable[[Any, m.TopicInfo], int], wait_ms: int, times: int
) -> None:
    info = rig.topic(rig.connect(), partitions=3)
    number = wait(rig, info)
    rig.tick(wait_ms - 1)
    assert not is_answered(rig, number)
    rig.tick(1)
    assert is_answered(rig, number)
    assert told == [info.addresses[0].group] * times, "not before time may bring it something"
    rig.tick()
    assert len(told) == times, "nobody waits any more"


def test_a_partition_without_a_wait_is_not_told(rig: Any, told: list[int]) -> None:
    info = rig.topic(rig.connect(), partitions=3)
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"a"))
    rig.answer(1, m.Fetch(info.addresses[0], 0, 100, wait_ms=WAIT_MS))
    rig.tick(WAIT_MS)
    assert told == []


def test_partitions_are_told_in_rising_order_whoever_came_first(rig: Any, told: list[int]) -> None:
    info = rig.topic(rig.connect(), partitions=4)
    for at in (2, 0, 3):
        fetch(rig, info, at)
    rig.tick(WAIT_MS)
    assert told == [info.addresses[at].group for at in (0, 2, 3)]


def test_a_pull_that_is_back_in_line_ends_in_time_though_nobody_waited_meanwhile(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"a"))
    address = info.addresses[0]
    first = rig.answer(1, m.Pull(address, "crew", 1, 100, 0, LEASE_MS))
    rig.tick(LEASE_MS + 1)
    rig.ask(1, m.Ack(address, "crew", [(first.fence, 0, 1)]))
    number = pull(rig, info)  # granted again, and in vain: the ack is committed before
    rig.tick(WAIT_MS - 1)
    rig.settle()
    assert not is_answered(rig, number)
    rig.tick(1)
    assert is_answered(rig, number)


def test_a_wait_outlives_those_that_ended_before(rig: Any) -> None:
    info = rig.topic(rig.connect())
    early = fetch(rig, info)
    rig.tick(WAIT_MS // 2)
    late = fetch(rig, info)
    rig.tick(WAIT_MS // 2)
    assert is_answered(rig, early)
    assert not is_answered(rig, late)
    rig.tick(WAIT_MS // 2)
    assert is_answered(rig, late)


def test_time_is_told_when_the_first_who_waits_has_waited_long_enough(
    rig: Any, told: list[int]
) -> None:
    """A hundred idle partitions with a reader each took more than a percent of a core."""
    info = rig.topic(rig.connect())
    early = fetch(rig, info)
    for _ in range(4):
        rig.tick(50)
    assert told == []
    late = fetch(rig, info)
    rig.tick(50)
    rig.tick(WAIT_MS - 250)
    assert (is_answered(rig, early), is_answered(rig, late)) == (True, False)
    rig.tick(200)
    assert is_answered(rig, late)
    assert len(told) == 2
    fetch(rig, info)
    rig.tick(50)
    number = pull(rig, info)  # all of its cluster is done: nothing comes before a message does
    rig.tick(50)
    rig.tick(50)
    assert len(told) == 2
    rig.tick(WAIT_MS)
    assert is_answered(rig, number)
