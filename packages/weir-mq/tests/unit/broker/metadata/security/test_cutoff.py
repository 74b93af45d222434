"""What may still be done without news, by their age and the mode of the set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rigs.broker_rig import FakeTime
from weir.broker.metadata.security.cutoff import Cutoff
from weir.errors import Unavailable


def cutoff(
    mode: str = "closed", heard_ms: int = -1, was_closed: bool = False
) -> tuple[Cutoff, Any, FakeTime]:
    catalog: Any = SimpleNamespace(access=SimpleNamespace(mode=mode))
    news, time = SimpleNamespace(heard_ms=heard_ms), FakeTime()
    return Cutoff(catalog, news, time, 30_000, 600_000, was_closed), news, time


def test_what_was_heard_of_lately_is_not_stale() -> None:
    one, news, time = cutoff(heard_ms=0)
    time.monotonic += 29_999
    one.check()
    assert (one.is_stale, one.is_over) == (False, False)
    time.monotonic += 1
    assert (one.is_stale, one.is_over) == (True, False)
    with pytest.raises(Unavailable, match="no news of the metadata for 30 s"):
        one.check()
    time.monotonic += 569_999
    assert not one.is_over
    time.monotonic += 1
    assert one.is_over
    assert "600 s" in str(one.why_ended())
    news.heard_ms = time.monotonic
    assert (one.is_stale, one.is_over, one.news_age_ms) == (False, False, 0)


def test_a_shard_that_just_started_lets_nobody_in_until_it_has_heard_something() -> None:
    one, news, time = cutoff()
    assert one.is_stale
    assert not one.is_over
    news.heard_ms = time.monotonic
    assert one.why_stale() is None


@pytest.mark.parametrize("mode", ["closed", "watch"])
def test_a_set_that_watches_keeps_to_the_times_of_a_closed_one(mode: str) -> None:
    one, _, time = cutoff(mode, heard_ms=0)
    time.monotonic += 30_000
    assert (one.is_stale, one.is_over) == (True, False)
    time.monotonic += 570_000
    assert one.is_over


def test_in_an_open_set_nothing_is_late() -> None:
    one, _, time = cutoff("open")
    time.monotonic += 10_000_000
    assert (one.is_stale, one.is_over, one.why_stale()) == (False, False, None)


def test_a_set_that_was_closed_is_not_open_before_the_first_news() -> None:
    one, news, time = cutoff("open", was_closed=True)
    assert (one.is_stale, one.is_over) == (True, False)
    with pytest.raises(Unavailable, match="no news of the metadata"):
        one.check()
    time.monotonic += 600_000
    assert one.is_over
    news.heard_ms = time.monotonic
    assert (one.is_stale, one.is_over) == (False, False)
    time.monotonic += 10_000_000  # it was opened while this node was down
    assert (one.is_stale, one.is_over) == (False, False)


def test_a_node_that_was_left_behind_says_so() -> None:
    one, _, _ = cutoff("open")
    assert not one.has_ended
    one.outlive(3)
    assert (one.has_ended, one.is_stale, one.is_over) == (True, True, True)
