"""A cut under a limit is found in few looks, fits, and always has something before it."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.order.cut_search import CutSearch, portions_of


def searched(stamps: list[int], most: int, rows_max: int, hint: int = 0) -> tuple[int, int]:
    """Search for a cut through messages with these stamps; return its stamp and the looks."""
    search = CutSearch(0, most, portions_of(len(stamps), 0, rows_max, 0), hint)
    looks = 0
    while search.stamp:
        looks += 1
        assert 0 < search.stamp < most
        search.looked(portions_of(bisect_right(stamps, search.stamp), 0, rows_max, 0))
    return search.chosen, looks


@given(st.integers(0, 1 << 32), st.integers(1, 60), st.integers(0, 1 << 40))
def test_a_cut_fits_unless_the_next_one_does_not(seed: int, rows_max: int, hint: int) -> None:
    dice = random.Random(seed)
    stamps = sorted(dice.randrange(1, 10 ** dice.randint(1, 12)) for _ in range(200))
    stamps += [stamps[-1]] * dice.randrange(2 * rows_max)
    chosen, looks = searched(stamps, stamps[-1] + dice.randrange(10), rows_max, hint)
    rows = bisect_right(stamps, chosen)
    assert rows > 0
    if rows > rows_max:  # then no other cut has anything before it
        assert stamps[0] == stamps[rows - 1]
    assert looks <= 2 * 41


def test_a_steady_rate_takes_two_looks() -> None:
    stamps = [*range(1_000_000, 2_000_000, 10)]
    chosen, looks = searched(stamps, 2_000_000, 5_000, hint=999_999)
    assert 2_500 <= bisect_right(stamps, chosen) <= 5_000
    assert looks <= 2


def test_what_fits_is_taken_whole() -> None:
    assert searched([5, 6, 7], 9, 3) == (9, 0)
    assert searched([5, 5, 5], 5, 2)[0] == 5


@pytest.mark.parametrize(
    ("rows", "size", "rows_max", "bytes_max", "portions"),
    [(10, 100, 0, 0, 0), (10, 100, 5, 0, 2), (10, 100, 5, 25, 4), (10, 100, 40, 200, 0.5)],
)
def test_the_limit_that_is_reached_first_counts(
    rows: int, size: int, rows_max: int, bytes_max: int, portions: float
) -> None:
    assert portions_of(rows, size, rows_max, bytes_max) == portions


def test_a_message_of_no_known_size_is_something() -> None:
    assert 0 < portions_of(1, 0, 0, 100) < 1e-6
