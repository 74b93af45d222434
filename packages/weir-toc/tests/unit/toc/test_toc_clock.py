"""Stamps never lie at or below what was promised; clocks follow a reference and never go back."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_toc.clock import SLEW_PPM, Clock, Stamps

S = 1_000_000_000


def test_a_stamp_lies_above_a_commit_barrier_of_the_same_moment() -> None:
    stamps = Stamps(0)
    assert stamps.commit(100, None) == 100
    assert stamps.stamp(100) == 101


def test_a_stamp_may_have_the_value_of_the_best_effort_barrier() -> None:
    stamps = Stamps(0)
    assert stamps.barrier(100) == 100
    assert stamps.stamp(100) == 100


def test_a_commit_barrier_stays_below_the_oldest_open_stamp() -> None:
    stamps = Stamps(0)
    first = stamps.stamp(100)
    assert stamps.commit(200, first) == first - 1
    assert stamps.commit(200, None) == 200


@given(st.lists(st.tuples(st.sampled_from("sbc"), st.integers(0, 50))), st.integers(0, 60))
def test_no_stamp_breaks_a_promise_whatever_the_clock_does(
    calls: list[tuple[str, int]], floor: int
) -> None:
    stamps = Stamps(floor)
    last, barrier, commit, highest = floor, 0, 0, floor
    for call, now in calls:
        highest = max(highest, now)
        if call == "s":
            stamp = stamps.stamp(now)
            assert stamp > last
            assert stamp >= barrier
            assert stamp > commit
            last = stamp
        elif call == "b":
            assert stamps.barrier(now) >= barrier
            barrier = stamps.barrier(now)
            assert barrier <= max(highest, last)
        else:
            assert stamps.commit(now, None) >= commit
            commit = stamps.commit(now, None)
            assert commit <= max(highest, last)


def test_a_clock_is_set_once_and_then_turned() -> None:
    clock = Clock(0)
    clock.sample(0, 5 * S + 10, 5 * S + 10, 20)
    assert clock.read(20) == 5 * S + 20
    for _ in range(8):  # the reference is a second further than it was
        clock.sample(S, 7 * S + 10, 7 * S + 10, S + 20)
    assert clock.read(S) == 6 * S + 499_999  # half a millisecond in a second, and not a second


def test_the_sample_of_the_least_round_trip_counts() -> None:
    clock = Clock(0)
    clock.sample(0, 100, 100, 200)  # offset 0, round trip 200
    clock.sample(1_000, 1_005, 1_005, 1_010)  # offset 0, round trip 10
    clock.sample(2_000, 9_000, 9_000, 9_100)  # a round trip of 7,100 says little
    assert clock.read(S) == S
    bound = clock.error_bound(1_010)
    assert bound == 5


def test_better_samples_set_a_clock_until_it_is_read() -> None:
    """The first exchange may be one of a busy start. Who is drawn to the time needs minutes."""
    clock = Clock(0)
    clock.read(5)  # before any sample: nobody takes that for the time
    clock.sample(10, S // 5 + 10, S // 5 + 10, S // 5 + 10)  # the way there took 200 ms
    assert clock.error_bound(S // 5 + 10) == S // 10
    at = S // 4
    clock.sample(at, at + 50, at + 50, at + 100)
    assert clock.error_bound(at + 100) == 50
    assert clock.read(at + 100) == at + 100
    clock.sample(at + 200, at + 1_240, at + 1_240, at + 280)  # it has been read: it is only turned
    assert clock.read(at + 280) == at + 280


def test_an_exchange_in_negative_time_is_ignored() -> None:
    clock = Clock(0)
    clock.sample(10, 100, 300, 20)
    assert clock.error_bound(0) is None


@given(st.lists(st.integers(-2 * S, 2 * S), max_size=30))
def test_a_clock_never_goes_back(steps: list[int]) -> None:
    clock, raw, last = Clock(0), 0, 0
    for step in steps:
        raw += step
        now = clock.read(raw)
        assert now >= last
        last = now


def test_the_bound_holds_for_a_clock_that_drifts() -> None:
    clock, offset = Clock(7 * S), 7 * S
    for second in range(1, 60):
        true = second * S
        raw = true + offset + true * 50 // 1_000_000  # 50 ppm fast
        clock.sample(raw, true + 30_000, true + 30_000, raw + 50_000)
        later = true + 500_000_000
        read = raw + 500_000_000 + 25_000
        error = abs(clock.read(read) - later)
        bound = clock.error_bound(read)
        assert bound is not None
        assert error <= bound


def followed(
    drift_ppm: int, jitter: int, seconds: int, step_at: int = 0
) -> tuple[Clock, list[int]]:
    """Follow a reference by exchanges whose ways take 60 µs and a random time more.

    Return the clock, and its error each 5 ms from the third second on. At `step_at` s the raw clock
    jumps ahead by a second. No error is above what the clock states, but for those of a jump that
    no exchange has shown yet.
    """
    dice = Random(7)
    step = 0

    def shown(true: int) -> int:
        return true + S // 4 + true * drift_ppm // 1_000_000 + step

    clock, true, count = Clock(shown(0)), 0, 0
    errors: list[int] = []
    while true < seconds * S:
        there, back = (60_000 + int(dice.expovariate(1 / jitter)) for _ in range(2))
        sent, reached = shown(true), true + there
        true = reached + 20_000 + back
        clock.sample(sent, reached, reached + 20_000, shown(true))
        count += 1
        end = true + (10_000_000 if count < 8 else 400_000_000)
        while true < end:
            error, bound = abs(clock.read(shown(true)) - true), clock.error_bound(shown(true))
            assert bound is not None
            assert error <= bound
            if true > 2 * S:
                errors.append(error)
            true += 5_000_000
        if step_at and not step and true > step_at * S:
            step = S
    return clock, errors


@pytest.mark.parametrize("drift_ppm", [-50, 0, 50])
def test_a_clock_that_drifts_is_followed_within_less_than_its_samples_differ(
    drift_ppm: int,
) -> None:
    errors = sorted(followed(drift_ppm, 60_000, 30)[1])
    assert errors[len(errors) // 2] < 15_000
    assert errors[len(errors) * 99 // 100] < 60_000


def test_samples_of_before_a_jump_say_nothing() -> None:
    _, errors = followed(50, 60_000, 12, step_at=4)
    assert errors[-1] > S // 2  # it is drawn back by 500 parts per million, and never set
    clock = Clock(0)
    for second in range(1, 12):
        clock.sample(second * S, second * S + 50, second * S + 50, second * S + 100)
    assert clock.error_bound(11 * S + 100) == 50
    clock.read(12 * S + 200)
    clock.sample(12 * S, 13 * S + 100, 13 * S + 100, 12 * S + 200)  # says less, and contradicts
    assert clock.error_bound(12 * S + 200) == S + 100
    assert clock.read(13 * S) == 13 * S + (S - 200) * SLEW_PPM // 1_000_000


def test_samples_of_before_the_raw_clock_went_back_say_nothing() -> None:
    clock = Clock(0)
    for second in range(1, 12):
        clock.sample(second * S, second * S + 50, second * S + 50, second * S + 100)
    last = clock.read(11 * S + 100)
    assert clock.read(5 * S) == last
    later = 5 * S + 1_000
    clock.sample(later, last + 1_500, last + 1_500, later + 1_000)
    assert clock.read(6 * S) == last + S
