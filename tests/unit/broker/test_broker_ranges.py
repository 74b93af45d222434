"""Ranges against a plain set of numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.ranges import Ranges

LIMIT = 40
runs = st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT))
steps = st.lists(st.tuples(st.booleans(), runs), max_size=60)


def numbers(ranges: Ranges) -> set[int]:
    return {n for first, behind in ranges for n in range(first, behind)}


@given(steps, runs)
def test_ranges_agree_with_a_set(
    changes: list[tuple[bool, tuple[int, int]]], probe: object
) -> None:
    ranges, twin = Ranges(), set[int]()
    for adds, (first, behind) in changes:
        if adds:
            ranges.add(first, behind)
            twin |= set(range(first, behind))
        else:
            ranges.discard(first, behind)
            twin -= set(range(first, behind))
        kept = list(ranges)
        assert numbers(ranges) == twin
        # Sorted, disjoint and joined: as few runs as there can be.
        assert all(a < b for a, b in kept)
        assert all(b < c for (_, b), (c, _) in pairwise(kept))
        assert len(ranges) == len(kept)
        assert ranges.first_run() == (kept[0] if kept else None)
    assert isinstance(probe, tuple)
    first, behind = probe
    assert ranges.covers(first, behind) == (set(range(first, behind)) <= twin)
    gap = ranges.gap_from(first, LIMIT)
    missing = [n for n in range(first, LIMIT) if n not in twin]
    if missing:
        assert gap[0] == missing[0]
        assert set(range(*gap)) & twin == set()
        assert gap[1] == LIMIT or gap[1] in twin
    else:
        assert gap[0] >= gap[1]


def test_equality_is_of_members() -> None:
    assert Ranges([(1, 3), (3, 5)]) == Ranges([(1, 5)])
    assert Ranges([(1, 3)]) != Ranges([(1, 4)])
    assert Ranges() != []
    with pytest.raises(TypeError):
        hash(Ranges())


@given(steps, runs)
def test_the_part_within_agrees_with_a_set(
    changes: list[tuple[bool, tuple[int, int]]], span: tuple[int, int]
) -> None:
    ranges = Ranges([run for _, run in changes])
    found = ranges.within(*span)
    assert all(first < behind for first, behind in found)
    assert numbers(Ranges(found)) == numbers(ranges) & set(range(*span))
