"""How long a link may be silent follows from the gaps between its heartbeats."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.host.lanes import (
    SILENT_LEAST_MS,
    SILENT_MOST_MS,
    LinkTimeout,
    silent_after_ms,
)

GAPS = st.lists(st.integers(0, 5_000), max_size=700)


@pytest.mark.parametrize(
    ("gaps", "limit"),
    [
        ([], SILENT_MOST_MS),
        ([100] * 19, SILENT_MOST_MS),
        ([100] * 20, 600),
        ([50] * 600, 600),
        ([150] * 600, 900),
        ([100] * 594 + [300] * 6, 600),
        ([100] * 593 + [300] * 7, 1_800),
        ([100] * 500 + [1_000] * 100, SILENT_MOST_MS),
    ],
)
def test_the_limit_is_six_times_the_99th_percentile_within_bounds(
    gaps: list[int], limit: int
) -> None:
    assert silent_after_ms(gaps) == limit


@given(GAPS)
def test_the_limit_lies_within_its_bounds_and_above_most_gaps(gaps: list[int]) -> None:
    limit = silent_after_ms(gaps)
    assert SILENT_LEAST_MS <= limit <= SILENT_MOST_MS
    if limit < SILENT_MOST_MS:
        above = sum(6 * gap > limit for gap in gaps)
        assert above <= len(gaps) - math.ceil(0.99 * len(gaps))


@given(GAPS, st.integers(0, 5_000))
def test_a_longer_gap_never_lowers_the_limit(gaps: list[int], more: int) -> None:
    if len(gaps) >= 20:
        assert silent_after_ms([*gaps[:-1], gaps[-1] + more]) >= silent_after_ms(gaps)


def heard(silence: LinkTimeout, since: int, *gaps: int) -> int:
    for gap in gaps:
        since += gap
        silence.heard(since)
    return since


def test_a_link_of_which_nothing_is_known_has_the_most_time() -> None:
    silence = LinkTimeout()
    heard(silence, 0, *[100] * 15)
    assert silence.limit_ms == SILENT_MOST_MS


def test_late_heartbeats_count_for_a_minute() -> None:
    silence = LinkTimeout()
    now = heard(silence, 0, *[100] * 100)
    assert silence.limit_ms == SILENT_LEAST_MS
    now = heard(silence, now, *[250] * 10)
    assert silence.limit_ms == 1_500, "a longer gap counts at once"
    now = heard(silence, now, *[100] * 580)
    assert silence.limit_ms == 1_500
    heard(silence, now, *[100] * 40)
    assert silence.limit_ms == SILENT_LEAST_MS
