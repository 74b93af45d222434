"""Whose clock is astray, of those that nodes tell each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weir.broker.replica.node_state import TELL_EVERY_MS, Clocks
from weir.model.ids import voter_of
from weir.model.limits import MAX_AHEAD_MS

START = 1_700_000_000_000


class Time:
    """A time that is set by hand."""

    def __init__(self) -> None:
        self.wall = START
        self.monotonic = 5_000

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic


def group_of(*nodes: int) -> Any:
    voters = tuple(voter_of(node, 0) for node in nodes)
    return SimpleNamespace(node=SimpleNamespace(configuration=SimpleNamespace(voters=voters)))


TRIO = group_of(1, 2, 3)


def clocks_of(**ahead: int) -> tuple[Clocks, Time]:
    """Return the clocks as node 1 knows them: others are ahead by so much."""
    time = Time()
    clocks = Clocks(1, time)
    for name, ms in ahead.items():
        clocks.told(int(name[1:]), time.wall + ms)
    return clocks, time


@pytest.mark.parametrize(
    ("others", "astray"),
    [
        ({}, False),
        ({"n2": 0, "n3": 0}, False),
        ({"n2": MAX_AHEAD_MS, "n3": -MAX_AHEAD_MS}, False),
        ({"n2": 10_000, "n3": -10_000}, False),  # the one in the middle is right
        ({"n2": 10_000, "n3": 10_001}, True),
        ({"n2": -10_000, "n3": -10_001}, True),
        ({"n2": 0, "n3": 10_000}, False),  # that one is
        ({"n2": -10_000}, True),  # of two the one that is ahead does harm that lasts
        ({"n2": 10_000}, False),
    ],
)
def test_who_is_far_from_the_median_is_astray(others: dict[str, int], astray: bool) -> None:
    assert clocks_of(**others)[0].is_astray(TRIO) is astray


def test_only_the_voters_of_the_group_count() -> None:
    clocks, _ = clocks_of(n2=-10_000, n3=-10_000, n4=0, n5=0)
    assert clocks.is_astray(TRIO)
    assert not clocks.is_astray(group_of(1, 4, 5))
    assert not clocks.is_astray(group_of(1))


def test_it_is_given_only_to_who_is_near_the_median() -> None:
    near, far = MAX_AHEAD_MS // 2, MAX_AHEAD_MS // 2 + 1
    clocks, _ = clocks_of(n2=near, n3=far + 1_000, n4=0, n5=0)
    five = group_of(1, 2, 3, 4, 5)
    assert clocks.differ
    assert clocks.is_near(five, voter_of(2, 0))
    assert not clocks.is_near(five, voter_of(3, 0))
    assert clocks.is_near(five, voter_of(9, 0)), "nothing is known against who is not heard"


def test_the_own_clock_is_noticed_when_it_is_set_and_not_gone_by() -> None:
    clocks, time = clocks_of(n2=0, n3=0)
    assert not clocks.differ
    time.wall += 10_000
    assert clocks.wall_ms() == time.wall - 10_000
    assert clocks.own_ms() == time.wall
    assert clocks.is_astray(TRIO)
    time.wall -= 10_000
    clocks.look()
    assert not clocks.differ
    assert clocks.wall_ms() == time.wall


@pytest.mark.parametrize(("ahead", "believed"), [(MAX_AHEAD_MS, True), (MAX_AHEAD_MS + 1, False)])
def test_a_clock_is_gone_by_as_far_as_it_may_be_ahead(ahead: int, believed: bool) -> None:
    for sign in (1, -1):
        clocks, time = clocks_of(n2=0, n3=0)
        time.wall += sign * ahead
        assert clocks.wall_ms() == time.wall - (0 if believed else sign * ahead)


def test_time_that_passes_moves_no_clock() -> None:
    clocks, time = clocks_of(n2=0, n3=0)
    time.wall += 4_000
    time.monotonic += 4_000
    clocks.look()
    assert not clocks.differ


def test_what_came_late_moves_no_clock() -> None:
    clocks, time = clocks_of(n2=0, n3=0)
    told = time.wall
    time.wall += 3_000
    time.monotonic += 3_000
    clocks.told(2, told)
    clocks.told(3, told)
    assert not clocks.differ


def test_a_clock_that_is_set_back_is_believed_after_a_while() -> None:
    clocks, time = clocks_of(n2=0, n3=0)
    said = 0
    while clocks.is_near(TRIO, voter_of(2, 0)):
        time.wall += TELL_EVERY_MS
        time.monotonic += TELL_EVERY_MS
        clocks.told(2, time.wall - 10_000)
        clocks.told(3, time.wall)
        said += 1
        assert said < 10
    assert said > 1
    assert not clocks.is_astray(TRIO)


def test_who_is_silent_is_forgotten() -> None:
    clocks, time = clocks_of(n2=-10_000, n3=-10_000)
    assert clocks.is_astray(TRIO)
    time.wall += 6_000
    time.monotonic += 6_000
    clocks.look()
    assert not clocks.differ
    assert not clocks.is_astray(TRIO)


def test_a_millisecond_that_ends_between_two_looks_makes_no_clock_astray() -> None:
    clocks, time = clocks_of(n2=0, n3=0)
    plain = time.wall_ms

    def later() -> int:
        time.wall, time.monotonic = time.wall + 1, time.monotonic + 1
        return plain()

    time.wall_ms = later
    assert [clocks.astray_ms for _ in range(5)] == [0] * 5
    time.wall += 3 * MAX_AHEAD_MS
    assert clocks.astray_ms >= 2 * MAX_AHEAD_MS
