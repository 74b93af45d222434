"""Which flushes the loop may run: small ones in a row, on a disk that has been quick."""

from __future__ import annotations

from msgspec.structs import replace

from weir.log.flush import Flush, Run
from weir.log.reserve import Spare
from weir.server.lone import LONE_ASKED, LONE_BYTES, LONE_IN_A_ROW, LONE_TOKENS, QUICK_SECONDS, Lone

QUICK = QUICK_SECONDS / 4
RUN = Run("a", 0, [b"x"])
SMALL = Flush(0, 300, (RUN,), (1,))
LARGEST = Flush(8, 8 + LONE_BYTES, (RUN,), (1,) * LONE_TOKENS)


def rehearsed(lone: Lone, seconds: float = QUICK, flushes: int = 200) -> Lone:
    for _ in range(flushes):
        lone.takes(SMALL, 1)
        lone.took(seconds)
    return lone


def until_taken(lone: Lone) -> int:
    for count in range(1_000):
        if lone.takes(SMALL, 1):
            return count
        lone.took(QUICK)
    raise AssertionError("a quick disk is never thought quick")


def test_a_small_flush_is_taken_on_a_disk_that_has_been_quick() -> None:
    lone = rehearsed(Lone())
    assert lone.takes(SMALL, 1)
    assert lone.takes(LARGEST, LONE_ASKED)


def test_a_disk_of_which_little_is_known_is_not_trusted() -> None:
    assert 40 < until_taken(Lone()) < 60


def test_a_disk_that_always_takes_longer_is_left_to_its_thread() -> None:
    assert not rehearsed(Lone(), QUICK_SECONDS * 1.1, 2_000).takes(SMALL, 1)


def test_who_is_not_lone_sends_some_flushes_to_the_thread() -> None:
    crowds = (
        replace(LARGEST, end=LARGEST.end + 1),
        replace(LARGEST, tokens=(1,) * (LONE_TOKENS + 1)),
        replace(SMALL, runs=(RUN, RUN)),
        replace(SMALL, runs=(replace(RUN, missing=Spare("b", 1)),)),
    )
    for crowd, asked in [*((flush, 1) for flush in crowds), (SMALL, LONE_ASKED + 1)]:
        lone = rehearsed(Lone())
        assert not lone.takes(crowd, asked)
        assert [lone.takes(SMALL, 1) for _ in range(LONE_IN_A_ROW + 1)] == (
            [False] * LONE_IN_A_ROW + [True]
        )


def test_a_stall_holds_the_loop_up_once() -> None:
    lone = rehearsed(Lone())
    lone.took(30.0)
    assert 200 < until_taken(lone) < 300


def test_one_flush_of_some_milliseconds_does_not_make_a_disk_slow_and_several_do() -> None:
    lone = rehearsed(Lone())
    lone.took(0.01)
    assert lone.takes(SMALL, 1)
    for _ in range(3):
        lone.took(0.01)
    assert not lone.takes(SMALL, 1)
