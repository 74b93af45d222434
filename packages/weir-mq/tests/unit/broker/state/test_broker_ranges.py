"""Ranges against a plain set of numbers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.shards import range_bytes
from weir.broker.records.snapshots import pack, unpack
from weir.broker.state import ranges as room
from weir.broker.state.ranges import Ranges
from weir.errors import UnknownVersion

#: How many holes the large set has; a proof takes 10,000,000.
HOLES = int(os.environ.get("WEIR_HOLES", "20000"))

LIMIT = 40
runs = st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT))
steps = st.lists(st.tuples(st.booleans(), runs), max_size=60)


def numbers(ranges: Ranges) -> set[int]:
    return {n for first, behind in ranges for n in range(first, behind)}


def copied(ranges: Ranges) -> Ranges:
    return Ranges.decode(*unpack(pack(ranges.encode())))


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


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks of few runs, of all widths."""
    monkeypatch.setattr(room, "_BLOCK_MAX", 8)
    monkeypatch.setattr(room, "_BLOCK_MIN", 3)
    monkeypatch.setattr(room, "_BEYOND", {"H": 30, "I": 100, "Q": 1 << 64})


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(30))
def test_ranges_of_many_blocks_agree_with_a_set(seed: int) -> None:
    dice = random.Random(seed)
    limit = dice.choice((60, 300, 1_000))
    ranges, twin = Ranges(), set[int]()
    for _ in range(400):
        first = dice.randrange(limit)
        behind = min(first + dice.choice((1, 2, 5, 40, limit // 2)), limit)
        if dice.random() < dice.choice((0.3, 0.7)):
            ranges.add(first, behind)
            twin.update(range(first, behind))
        else:
            ranges.discard(first, behind)
            twin.difference_update(range(first, behind))
        kept = list(ranges)
        assert numbers(ranges) == twin
        assert all(b < c for (_, b), (c, _) in pairwise(kept))
        assert (ranges.count, len(ranges), bool(ranges)) == (len(twin), len(kept), bool(twin))
        assert ranges.first_run() == (kept[0] if kept else None)
        probe, end = sorted((dice.randrange(limit), dice.randrange(limit)))
        assert ranges.covers(probe, end) == twin.issuperset(range(probe, end))
        assert numbers(Ranges(ranges.within(probe, end))) == twin & set(range(probe, end))
        missing = next((n for n in range(probe, end) if n not in twin), None)
        gap = ranges.gap_from(probe, end)
        if missing is None:
            assert gap[0] >= gap[1]
        else:
            assert gap[0] == missing
            assert gap[1] == next((n for n in range(missing, end) if n in twin), end)
    assert list(copied(ranges)) == list(ranges)


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 2**40)), max_size=20))
def test_a_set_comes_back_from_its_bytes(spans: list[tuple[int, int]]) -> None:
    ranges = Ranges([(first, first + length) for first, length in spans])
    again = copied(ranges)
    assert again == ranges
    assert again.count == ranges.count
    again.add(5, 9)
    ranges.add(5, 9)
    assert list(again) == list(ranges)


def test_a_width_that_is_not_known_is_refused() -> None:
    count, (part,) = unpack(pack(Ranges([(1, 2)]).encode()))
    wrong = bytearray(part)
    wrong[12] = 3
    with pytest.raises(UnknownVersion, match="3 bytes"):
        Ranges.decode(count, [wrong])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(10))
def test_a_snapshot_is_as_of_when_it_was_taken(seed: int) -> None:
    """It is packed later, while the set goes on."""
    dice = random.Random(seed)
    ranges, taken = Ranges(), []
    for n in range(300):
        if n % 20 == 0:
            taken.append((list(ranges), ranges.encode()))
        first = dice.randrange(400)
        change = ranges.add if dice.random() < 0.6 else ranges.discard
        change(first, first + dice.choice((1, 3, 30)))
    for before, snapshot in taken:
        assert list(Ranges.decode(*unpack(pack(snapshot)))) == before


def test_millions_of_holes_take_a_few_bytes_each(tell: Callable[..., None]) -> None:
    """Every second message is done, then the others, in another order: never flat bits, and no
    object per hole.
    """
    ranges = Ranges()
    for hole in range(HOLES):
        ranges.add(2 * hole, 2 * hole + 1)
    memory = range_bytes(ranges)
    snapshot = ranges.encode()
    encoded = pack(snapshot)
    again = Ranges.decode(*unpack(encoded))
    assert (len(ranges), ranges.count) == (HOLES, HOLES)
    assert (len(again), again.count) == (HOLES, HOLES)
    assert memory < 5 * HOLES + 64_000
    assert len(encoded) < 5 * HOLES + 64_000
    dice, probes = random.Random(1), 10_000
    places = dice.sample(range(HOLES), probes)
    for place in places:
        assert again.gap_from(2 * place, 2 * HOLES) == (2 * place + 1, 2 * place + 2)
        again.add(2 * place + 1, 2 * place + 2)
    assert again.count == HOLES + probes
    again.add(0, 2 * HOLES)
    assert list(again) == [(0, 2 * HOLES)]
    tell(holes=HOLES, memory_bytes=memory / HOLES, encoded_bytes=len(encoded) / HOLES)


def test_one_message_held_back_for_a_month_is_one_run() -> None:
    """At 10,000 messages a second (counterexample 21)."""
    ranges, behind = Ranges([(1, 2)]), 2
    for _ in range(2_592):
        ranges.add(behind, behind + 10_000_000)
        behind += 10_000_000
    assert len(ranges) == 1
    assert ranges.count == 1 + 25_920_000_000
    assert len(pack(ranges.encode())) < 64
