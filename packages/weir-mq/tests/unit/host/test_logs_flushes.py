"""Which flushes run inline: small ones in a row, on a disk that has been quick; and rests."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from weir.broker.api import events as ev
from weir.broker.api.effects import StartFlush
from weir.host.logs import (
    LONE_ASKED,
    LONE_BYTES,
    LONE_IN_A_ROW,
    LONE_TOKENS,
    QUICK_SECONDS,
    FlushSchedule,
)
from weir.storage.log import Flush, Run
from weir.storage.segment_files import Spare

QUICK = QUICK_SECONDS / 4
RUN = Run("a", 0, [b"x"])
SMALL = Flush(0, 300, (RUN,), (1,))
LARGEST = Flush(8, 8 + LONE_BYTES, (RUN,), (1,) * LONE_TOKENS)
LOG = 3


class Log:
    """The flushes of one log, which are started and done by turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self.linked: list[int] = []
        self.schedule = FlushSchedule([LOG, 4], self.linked, lambda: self.now)

    def is_inline(self, flush: Flush, asked: int, rest_ms: int = 0) -> bool:
        self.schedule.asked += asked
        inline = self.schedule.start(StartFlush(LOG, flush, rest_ms))
        assert self.schedule.inline == ({LOG: flush} if inline else {})
        self.schedule.inline.clear()
        return inline

    def took(self, seconds: float) -> None:
        assert self.schedule.flushed(LOG, SMALL, seconds) == (ev.Flushed(LOG, SMALL), 0.0)

    def until_inline(self) -> int:
        for count in range(1_000):
            if self.is_inline(SMALL, 1):
                return count
            self.took(QUICK)
        raise AssertionError("a quick disk is never thought quick")


def rehearsed(seconds: float = QUICK, flushes: int = 200) -> Log:
    log = Log()
    for _ in range(flushes):
        log.is_inline(SMALL, 1)
        log.took(seconds)
    return log


def test_a_small_flush_runs_inline_on_a_disk_that_has_been_quick() -> None:
    log = rehearsed()
    assert log.is_inline(SMALL, 1)
    assert log.is_inline(LARGEST, LONE_ASKED)


def test_a_disk_of_which_little_is_known_is_not_trusted() -> None:
    assert 40 < Log().until_inline() < 60


def test_a_disk_that_always_takes_longer_is_left_to_its_thread() -> None:
    assert not rehearsed(QUICK_SECONDS * 1.1, 2_000).is_inline(SMALL, 1)


def test_each_log_is_judged_by_itself() -> None:
    log = rehearsed()
    assert not log.schedule.start(StartFlush(4, SMALL))
    assert log.is_inline(SMALL, 1)


@pytest.mark.parametrize(
    ("crowd", "asked"),
    [
        (replace(LARGEST, end=LARGEST.end + 1), 1),
        (replace(LARGEST, tokens=(1,) * (LONE_TOKENS + 1)), 1),
        (replace(SMALL, runs=(RUN, RUN)), 1),
        (replace(SMALL, runs=(replace(RUN, missing=Spare("b", 1)),)), 1),
        (SMALL, LONE_ASKED + 1),
    ],
)
def test_who_is_not_lone_has_some_flushes_handed_over(crowd: Flush, asked: int) -> None:
    log = rehearsed()
    assert not log.is_inline(crowd, asked)
    assert [log.is_inline(SMALL, 1) for _ in range(LONE_IN_A_ROW + 1)] == (
        [False] * LONE_IN_A_ROW + [True]
    )


def test_a_stall_holds_the_host_up_once() -> None:
    log = rehearsed()
    log.took(30.0)
    assert 200 < log.until_inline() < 300


def test_one_flush_of_some_milliseconds_does_not_make_a_disk_slow_and_several_do() -> None:
    log = rehearsed()
    log.took(0.01)
    assert log.is_inline(SMALL, 1)
    for _ in range(3):
        log.took(0.01)
    assert not log.is_inline(SMALL, 1)


def test_a_shard_that_other_nodes_listen_to_has_none_inline() -> None:
    log = rehearsed()
    log.linked.append(2)
    assert not log.is_inline(SMALL, 1)
    log.linked.clear()
    assert log.is_inline(SMALL, 1)


def test_a_log_rests_behind_a_flush_of_a_crowd_that_was_quick_and_behind_no_other() -> None:
    log = rehearsed()
    assert not log.is_inline(SMALL, 1, rest_ms=5)
    log.now += 0.002
    event, rest = log.schedule.flushed(LOG, SMALL, 0.002)
    assert event == ev.Flushed(LOG, SMALL, rests=True)
    assert rest == pytest.approx(0.003)
    assert log.is_inline(SMALL, 1)
    log.took(QUICK)
    log.is_inline(SMALL, 1, rest_ms=5)
    log.now += 0.006
    log.took(0.006)
