"""Old entries make way for live traffic: one piece at a time, then a rest, and never for ever."""

from __future__ import annotations

from typing import Any

import pytest

import weir_raft as raft
from weir.broker.replica.catch_up import GAIN_EVERY_MS, HASTE_MAX, PATIENCE_MS, CatchUpPermits
from weir.broker.runtime.live_traffic import LIVE_MS, REST, REST_MS, LiveTraffic

TOOK_MS = 7


class Desk:
    """A shard's permits in live traffic, and the groups that wait: what is told, in order."""

    def __init__(self, time: Any) -> None:
        self.time = time
        self.traffic = LiveTraffic(time)
        self.permits = CatchUpPermits(time, self.traffic)
        self.lines: list[str] = []
        self.began = time.monotonic_ms()

    def ask(self, group: int, behind: int = 100) -> None:
        self.permits.take(group, Group(group, self), raft.Load(1, 11, 11 + behind, 1000, member=3))

    def later(self, ms: int, is_live: bool = True) -> None:
        """Let time pass, a millisecond a turn."""
        for _ in range(ms):
            self.time.pass_ms(1)
            self.traffic.came = self.traffic.came or is_live
            self.permits.proceed()

    def went(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class Group:
    """One that says when it reads."""

    def __init__(self, number: int, desk: Desk) -> None:
        self.number = number
        self.desk = desk

    def read(self, load: raft.Load) -> None:
        self.desk.lines.append(f"{self.desk.time.monotonic_ms() - self.desk.began}: {self.number}")


@pytest.fixture
def desk(time: Any) -> Desk:
    desk = Desk(time)
    desk.traffic.came = True
    return desk


def test_one_group_at_a_time_reads_and_rests_twice_as_long_as_it_took(desk: Desk) -> None:
    desk.ask(1)
    desk.ask(2)
    desk.later(TOOK_MS)
    desk.permits.done(1)
    desk.ask(1)
    desk.later(REST * TOOK_MS)
    desk.later(TOOK_MS)
    desk.permits.done(2)
    desk.later(REST * TOOK_MS)
    assert desk.went() == ["0: 1", "21: 2", "42: 1"]


def test_a_group_with_a_permit_asks_for_its_next_piece_once_the_last_is_acknowledged(
    desk: Desk,
) -> None:
    desk.ask(1)
    desk.later(1)
    desk.ask(1)
    desk.later(100)
    assert desk.went() == ["0: 1"]
    desk.permits.done(1)
    desk.later(REST_MS)
    assert desk.went() == [f"{101 + REST_MS}: 1"]


def test_what_took_no_time_is_followed_by_a_rest(desk: Desk) -> None:
    desk.ask(1)
    desk.permits.done(1)
    desk.ask(1)
    desk.later(REST)
    assert desk.went() == ["0: 1", f"{REST}: 1"]


def test_a_rest_ends_with_the_live_traffic(desk: Desk) -> None:
    desk.later(1, is_live=True)
    desk.ask(1)
    desk.later(LIVE_MS - 1, is_live=False)
    desk.permits.done(1)
    desk.ask(1)
    assert desk.went() == ["1: 1"]
    desk.later(1, is_live=False)
    assert desk.went() == [f"{LIVE_MS + 1}: 1"], "and not only after the whole rest"
    desk.permits.done(1)
    desk.ask(1)
    desk.ask(1)
    assert len(desk.went()) == 2, "without live traffic a window is under way"


def test_who_never_answers_makes_room_though_there_is_live_traffic(desk: Desk) -> None:
    desk.ask(1)
    desk.ask(2)
    desk.later(PATIENCE_MS)
    assert desk.went() == ["0: 1"]
    desk.permits.free_overdue()
    assert desk.went() == [f"{PATIENCE_MS}: 2"]


def rests(desk: Desk, behind: Any, until_ms: int) -> list[int]:
    """Let one group read, take 10 ms, and ask again until then; return how long each rest was."""
    found, now = list[int](), 0
    desk.went()
    desk.ask(1, behind(0))
    while now < until_ms:
        desk.later(10)
        desk.permits.done(1)
        ended = desk.time.monotonic_ms()
        desk.ask(1, behind(ended - desk.began))
        while len(desk.lines) < len(found) + 2:
            desk.later(1)
        now = desk.time.monotonic_ms()
        found.append(now - ended)
        now -= desk.began
    return found


def test_who_gains_nothing_rests_less_and_less_and_in_the_end_not_at_all(desk: Desk) -> None:
    found = rests(desk, lambda ms: 1_000, (HASTE_MAX + 1) * GAIN_EVERY_MS)
    assert list(dict.fromkeys(found)) == [20, 10, 5, 0]
    desk.ask(2)
    desk.ask(3)
    assert desk.lines[-2:] == [f"{desk.time.monotonic_ms() - desk.began}: {n}" for n in (2, 3)]


def test_who_gains_an_eighth_in_time_makes_way_as_before(desk: Desk) -> None:
    fall = GAIN_EVERY_MS * 7
    found = rests(desk, lambda ms: 1_000 * (fall - ms) // fall, 4 * GAIN_EVERY_MS)
    assert set(found) == {20}


def test_who_lags_anew_makes_way_again(desk: Desk) -> None:
    rests(desk, lambda ms: 1_000, (HASTE_MAX + 1) * GAIN_EVERY_MS)
    desk.permits.done(1)
    for _ in range(GAIN_EVERY_MS // 50 + 1):
        desk.later(50)
        desk.permits.free_overdue()
    assert set(rests(desk, lambda ms: 1_000, 1)) == {20}
