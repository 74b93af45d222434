"""Stamps: milliseconds and a counter in one number."""

from __future__ import annotations

from weir.order.clock import LOGIC_BITS, STAMP_MAX, milliseconds_of, stamp_at


def test_a_stamp_is_milliseconds_and_logic() -> None:
    first = stamp_at(1_700_000_000_000)
    last = first + (1 << LOGIC_BITS) - 1
    assert milliseconds_of(first) == milliseconds_of(last) == 1_700_000_000_000


def test_logic_carries_into_the_next_millisecond() -> None:
    assert stamp_at(5) + (1 << LOGIC_BITS) == stamp_at(6)


def test_stamps_last_beyond_the_year_6000() -> None:
    milliseconds = (6000 - 1970) * 366 * 24 * 3600 * 1000
    assert stamp_at(milliseconds) < STAMP_MAX
