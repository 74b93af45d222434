"""The pace of pulls: what comes now and then at once, and what does not end together."""

from __future__ import annotations

import pytest

from weir.relay.lower import PULL_EVERY, PULLS_AT_ONCE, PullPace


def pulls(pace: PullPace, every: float, count: int, *, catches_up: bool = False) -> list[float]:
    """Return how long pulls are delayed that are made so long after each other."""
    now, delays = 100.0, []
    for _ in range(count):
        delays.append(pace.delay(now, catches_up=catches_up))
        now += max(delays[-1], every)
    return delays


def test_what_comes_now_and_then_is_pulled_at_once() -> None:
    assert not any(pulls(PullPace(), PULL_EVERY * 1.01, 1_000))


def test_a_few_pulls_go_at_once_and_more_wait_for_each_other() -> None:
    delays = pulls(PullPace(), 0.001, 200)
    assert not any(delays[:PULLS_AT_ONCE])
    assert delays[-100:] == pytest.approx([PULL_EVERY] * 100)


def test_a_pause_brings_back_what_may_go_at_once() -> None:
    pace = PullPace()
    pulls(pace, 0.001, 200)
    assert pace.delay(200.0, catches_up=False) == 0.0


def test_what_catches_up_never_waits_and_delays_no_more_than_one_pull_behind_it() -> None:
    pace = PullPace()
    assert not any(pulls(pace, 0.0, 1_000, catches_up=True))
    assert pace.delay(100.0, catches_up=False) == pytest.approx(PULL_EVERY)
