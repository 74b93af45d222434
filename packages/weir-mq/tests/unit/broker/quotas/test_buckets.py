"""A bucket gives what its rate says, and owes what was taken beyond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weir.broker.quotas.accounts import BURST_MS, Bucket


def test_it_begins_full_and_holds_no_more_than_a_burst() -> None:
    bucket = Bucket(1_000, 0)
    assert bucket.level == BURST_MS
    bucket.refill(60_000)
    assert bucket.level == BURST_MS


def test_what_is_overdrawn_comes_back_with_time() -> None:
    bucket = Bucket(1_000, 0)
    bucket.take(1_200)
    assert bucket.is_short
    assert 1_000 <= bucket.wait_ms <= 1_001
    bucket.refill(999)
    assert bucket.is_short
    bucket.refill(1_000)
    assert (bucket.is_short, bucket.wait_ms) == (False, 0)


def test_another_rate_forgives_nothing_and_gives_nothing() -> None:
    bucket = Bucket(1_000, 0)
    bucket.take(1_200)
    bucket.change(10)
    assert bucket.level == -1_000
    other = Bucket(1_000, 0)
    other.change(10)
    assert other.level == 2


def test_a_clock_that_goes_back_takes_nothing() -> None:
    bucket = Bucket(1_000, 5_000)
    bucket.take(200)
    bucket.refill(4_000)
    assert bucket.level == 0


@given(
    st.floats(1, 1e9),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 1 << 23)), min_size=1, max_size=60),
)
def test_who_takes_only_from_what_is_there_keeps_to_the_rate(
    rate: float, steps: list[tuple[int, int]]
) -> None:
    """The last take alone may go beyond: the rest is what time gave, and a burst."""
    bucket, now, taken, last = Bucket(rate, 0), 0, 0, 0
    for passed, size in steps:
        now += passed
        bucket.refill(now)
        if not bucket.is_short:
            bucket.take(size)
            taken, last = taken + size, size
    assert taken - last <= rate * (now + BURST_MS) / 1_000 * (1 + 1e-9) + 1
