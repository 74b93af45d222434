"""Few groups at a time are sent what lies on disk; the others wait in line, and not for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import weir_raft as raft
from weir.broker.replica.catch_up import PERMITS, CatchUpPermits
from weir.broker.runtime.live_traffic import LiveTraffic

LOAD = raft.Load(1, 11, 21, 1000, member=3)


@dataclass
class Waiting:
    """A group that says when it has a permit."""

    group: int
    went: list[int]

    def read(self, load: raft.Load) -> None:
        self.went.append(self.group)


@pytest.fixture
def went() -> list[int]:
    return []


@pytest.fixture
def permits(time: Any, went: list[int]) -> CatchUpPermits:
    """All permits are taken, by groups 0 and up; `PERMITS` and the one behind are in line."""
    permits = CatchUpPermits(time, LiveTraffic(time))
    for group in range(PERMITS + 2):
        permits.take(group, Waiting(group, went), LOAD)
    return permits


def test_only_some_go_at_once(permits: CatchUpPermits, went: list[int]) -> None:
    assert went == [*range(PERMITS)]


def test_who_has_a_slot_goes_on_with_it(permits: CatchUpPermits, went: list[int]) -> None:
    permits.take(0, Waiting(0, went), LOAD)
    assert went == [*range(PERMITS), 0]


def test_whoever_is_done_makes_room_for_the_next_in_line(
    permits: CatchUpPermits, went: list[int]
) -> None:
    permits.take(PERMITS, Waiting(PERMITS, went), LOAD)
    permits.done(1)
    assert went == [*range(PERMITS), PERMITS, PERMITS], "all that a group waits for, in one permit"
    permits.done(2)
    assert went[-1] == PERMITS + 1


def test_who_is_gone_leaves_the_line(permits: CatchUpPermits, went: list[int]) -> None:
    permits.forget(PERMITS)
    permits.forget(0)
    assert went == [*range(PERMITS), PERMITS + 1]


def test_a_slot_is_free_though_nobody_answers(
    permits: CatchUpPermits, went: list[int], time: Any
) -> None:
    time.pass_ms(1_999)
    permits.free_overdue()
    assert went == [*range(PERMITS)]
    time.pass_ms(1)
    permits.free_overdue()
    assert went == [*range(PERMITS + 2)]
