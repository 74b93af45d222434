"""Few groups at a time are sent what lies on disk; the others wait in line, and not for ever."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from weir.broker.replica.turns import TURNS, Turns


@pytest.fixture
def went() -> list[int]:
    return []


@pytest.fixture
def turns(time: Any, went: list[int]) -> Turns:
    """All turns are taken, by groups 0 and up; `TURNS` and the one behind are in line."""
    turns = Turns(time)
    for group in range(TURNS + 2):
        turns.take(group, partial(went.append, group))
    return turns


def test_only_some_go_at_once(turns: Turns, went: list[int]) -> None:
    assert went == [*range(TURNS)]


def test_who_has_a_turn_goes_on_with_it(turns: Turns, went: list[int]) -> None:
    turns.take(0, partial(went.append, 0))
    assert went == [*range(TURNS), 0]


def test_whoever_is_done_makes_room_for_the_next_in_line(turns: Turns, went: list[int]) -> None:
    turns.take(TURNS, partial(went.append, TURNS))
    turns.done(1)
    assert went == [*range(TURNS), TURNS, TURNS], "all that a group waits for, in one turn"
    turns.done(2)
    assert went[-1] == TURNS + 1


def test_who_is_gone_leaves_the_line(turns: Turns, went: list[int]) -> None:
    turns.forget(TURNS)
    turns.forget(0)
    assert went == [*range(TURNS), TURNS + 1]


def test_a_turn_ends_though_nobody_answers(turns: Turns, went: list[int], time: Any) -> None:
    time.pass_ms(1_999)
    turns.tick()
    assert went == [*range(TURNS)]
    time.pass_ms(1)
    turns.tick()
    assert went == [*range(TURNS + 2)]
