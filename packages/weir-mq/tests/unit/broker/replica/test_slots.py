"""Few groups at a time are sent what lies on disk; the others wait in line, and not for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import weir_raft as raft
from weir.broker.replica.catch_up import SLOTS, Slots

LOAD = raft.Load(1, 11, 21, 1000, member=3)


@dataclass
class Waiting:
    """A group that says when it has a slot."""

    group: int
    went: list[int]

    def read(self, load: raft.Load) -> None:
        self.went.append(self.group)


@pytest.fixture
def went() -> list[int]:
    return []


@pytest.fixture
def slots(time: Any, went: list[int]) -> Slots:
    """All slots are taken, by groups 0 and up; `SLOTS` and the one behind are in line."""
    slots = Slots(time)
    for group in range(SLOTS + 2):
        slots.take(group, Waiting(group, went), LOAD)
    return slots


def test_only_some_go_at_once(slots: Slots, went: list[int]) -> None:
    assert went == [*range(SLOTS)]


def test_who_has_a_slot_goes_on_with_it(slots: Slots, went: list[int]) -> None:
    slots.take(0, Waiting(0, went), LOAD)
    assert went == [*range(SLOTS), 0]


def test_whoever_is_done_makes_room_for_the_next_in_line(slots: Slots, went: list[int]) -> None:
    slots.take(SLOTS, Waiting(SLOTS, went), LOAD)
    slots.done(1)
    assert went == [*range(SLOTS), SLOTS, SLOTS], "all that a group waits for, in one slot"
    slots.done(2)
    assert went[-1] == SLOTS + 1


def test_who_is_gone_leaves_the_line(slots: Slots, went: list[int]) -> None:
    slots.forget(SLOTS)
    slots.forget(0)
    assert went == [*range(SLOTS), SLOTS + 1]


def test_a_slot_is_free_though_nobody_answers(slots: Slots, went: list[int], time: Any) -> None:
    time.pass_ms(1_999)
    slots.free_overdue()
    assert went == [*range(SLOTS)]
    time.pass_ms(1)
    slots.free_overdue()
    assert went == [*range(SLOTS + 2)]
