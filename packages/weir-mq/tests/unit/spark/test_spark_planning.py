"""Cuts, admission and ranges: what a micro-batch holds, without Spark."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CheckpointMismatch, NotLeader, OffsetOutOfRange, RangeLost
from weir.spark import planning
from weir.spark.planning import Cut, Lineages, Range, check_growth, fill, moved, next_cut, ranges

OFFSETS = st.integers(0, 1 << 62)
LAGS = st.dictionaries(st.integers(0, 99), st.integers(0, 10_000), max_size=12)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Cut, Cut]:
    """Two cuts of one topic, the second at or behind the first and perhaps of more partitions."""
    start = draw(st.lists(st.integers(0, 1_000), min_size=1, max_size=6))
    grown = start + [0] * draw(st.integers(0, 3))
    lags = draw(st.lists(st.integers(0, 500), min_size=len(grown), max_size=len(grown)))
    end = [first + lag for first, lag in zip(grown, lags, strict=True)]
    return Cut(7, dict(enumerate(start))), Cut(7, dict(enumerate(end)))


def rows_between(start: Cut, end: Cut) -> int:
    return sum(behind - start.positions.get(p, 0) for p, behind in end.positions.items())


@given(st.dictionaries(st.integers(0, 1_023), OFFSETS), st.randoms(use_true_random=False))
def test_a_cut_has_one_text(positions: dict[int, int], random: object) -> None:
    shuffled = [*positions.items()]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    text = json.dumps(Cut(3, positions).to_json())
    assert json.dumps(Cut(3, dict(shuffled)).to_json()) == text
    found = Cut.from_json(json.loads(text))
    assert found == Cut(3, positions)
    assert [*json.loads(text)["p"]] == sorted(json.loads(text)["p"])
    # Read and written again, as Spark does with what it finds in a checkpoint.
    assert json.dumps(found.to_json()) == text


def test_the_text_of_a_cut_never_changes() -> None:
    # Checkpoints of users hold it.
    text = '{"e": 1, "p": {"00000": 120, "00001": 7}}'
    assert json.dumps(Cut(1, {1: 7, 0: 120}).to_json()) == text


@pytest.mark.parametrize(
    ("text", "lineages"),
    [
        ('{"e": 1, "p": {"00000": 120, "00001": 7}, "l": 0}', {0: 0, 1: 0}),
        ('{"e": 1, "p": {"00000": 120, "00001": 7}, "l": 2, "s": 9}', {0: 2, 1: 2}),
        ('{"e": 1, "p": {"00000": 120, "00001": 7}, "l": {"00000": 1, "00001": 0}}', {0: 1, 1: 0}),
        ('{"e": 1, "p": {"00000": 120, "00001": 7}, "l": {"00001": 1}}', {1: 1}),
        ('{"e": 1, "p": {"00000": 120, "00001": 7}, "s": 9}', {}),
    ],
)
def test_nor_that_of_one_with_lineages(text: str, lineages: dict[int, int]) -> None:
    cut = Cut.from_json(json.loads(text))
    assert (cut.positions, cut.lineages) == ({0: 120, 1: 7}, lineages)
    assert json.dumps(cut.to_json()) == text
    assert Cut.from_json(json.loads(text) | {"l": {}}).lineages == {}


def told(*rows: tuple[int, int, int]) -> Lineages:
    lineages = Lineages()
    lineages.take(rows)
    return lineages


def at(position: int, lineage: int) -> Cut:
    return Cut(1, {3: position}, lineages={3: lineage})


def test_a_cut_gets_the_newest_lineages_that_are_told() -> None:
    lineages = told((1 << 16, 0, 0), (1 << 16, 2, 5), (1 << 16 | 1, 0, 0))
    cut = Cut(1, {0: 9, 1: 9, 2: 9}, {0: 1}, 4, {1: 2}, {2: 7})
    assert lineages.of(cut) == Cut(1, {0: 9, 1: 9, 2: 9}, {0: 1}, 4, {1: 2}, {0: 2, 1: 0})
    assert lineages.of(Cut(0, {1 << 16: 9})).lineages == {1 << 16: 2}


@pytest.mark.parametrize(
    ("position", "lineage", "fork"),
    [(20, 0, None), (21, 0, 20), (20, 1, None), (30, 1, None), (31, 1, 30), (99, 2, None)],
)
def test_the_lowest_fork_counts_that_a_cut_does_not_know(
    position: int, lineage: int, fork: int | None
) -> None:
    lineages = told((1 << 16 | 3, 0, 0), (1 << 16 | 3, 1, 20), (1 << 16 | 3, 2, 30))
    if fork is None:
        lineages.check(at(position, lineage), str)
        return
    with pytest.raises(OffsetOutOfRange) as caught:
        lineages.check(at(position, lineage), lambda p: f"t/{p}")
    assert caught.value.detail == fork
    assert f"t/3 up to {position}, and a later lineage began there at {fork}" in str(caught.value)
    assert f'startingOffsets {{"3": {fork}}}' in str(caught.value)


def test_a_cut_without_lineages_is_not_looked_at() -> None:
    told((1 << 16 | 3, 0, 0), (1 << 16 | 3, 1, 20)).check(Cut(1, {3: 99}), str)


def test_an_error_says_how_to_go_on_by_all_partitions() -> None:
    rows = [(1 << 16 | p, lineage, 20 * lineage) for p in range(40) for lineage in (0, 1)]
    for count, words in (
        (2, 'So it is in 2 partitions. .*startingOffsets {"0": 20, "1": 20}'),
        (33, "33.*with those of the checkpoint for the rest"),
    ):
        cut = Cut(1, dict.fromkeys(range(count), 33), lineages={0: 0, 1: 0})
        with pytest.raises(OffsetOutOfRange, match=words):
            told(*rows).check(cut, str)
    with pytest.raises(OffsetOutOfRange, match="startingTime"):
        told(*rows).check(Cut(0, {1 << 16: 33}, lineages={1 << 16: 0}), str)


@pytest.mark.parametrize("known", ["by the checkpoint", "by another broker"])
def test_a_broker_that_was_left_behind_is_not_listened_to(known: str) -> None:
    lineages = told((1 << 16 | 3, 0, 0))
    if known == "by the checkpoint":
        lineages.expect(at(25, 1))
    else:
        lineages.take([(1 << 16 | 3, 0, 0), (1 << 16 | 3, 1, 20)])
    with pytest.raises(NotLeader, match="lineage 1"):
        lineages.take([(1 << 16 | 3, 0, 0)])
    lineages.take([(1 << 16 | 3, 0, 0), (1 << 16 | 3, 1, 20), (1 << 16 | 4, 0, 0)])
    assert lineages.of(at(25, 0)).lineages == {3: 1}


@pytest.mark.parametrize("offset", [{}, {"e": 1}, {"e": "1", "p": {}}, {"index": 3}])
def test_another_sources_offset_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(CheckpointMismatch, match="checkpointLocation"):
        Cut.from_json(offset)


@given(LAGS, st.integers(1, 50_000))
def test_filling_is_fair_and_leaves_nothing_over(lags: dict[int, int], rows_max: int) -> None:
    shares = fill(lags, rows_max)
    assert shares.keys() == lags.keys()
    assert sum(shares.values()) == min(rows_max, sum(lags.values()))
    assert all(0 <= shares[p] <= lag for p, lag in lags.items())
    # Nobody who was cut short has two less than anybody else got.
    short = [shares[p] for p, lag in lags.items() if shares[p] < lag]
    if short:
        assert max(shares.values()) - min(short) <= 1


def test_short_lags_are_drained_first() -> None:
    assert fill({0: 10, 1: 1_000, 2: 1_000}, 110) == {0: 10, 1: 50, 2: 50}
    assert fill({0: 3, 1: 0}, None) == {0: 3, 1: 0}


@given(cuts(), st.none() | st.integers(0, 2_000))
def test_advancing_ends_at_the_end(pair: tuple[Cut, Cut], rows_max: int | None) -> None:
    start, end = pair
    at = start
    for _ in range(rows_between(start, end)):
        step = next_cut(at, end, rows_max)
        taken = rows_between(at, step)
        # Counterexample 28: a limit may be small, but the cut moves.
        assert 1 <= taken <= (max(rows_max, 1) if rows_max is not None else taken)
        check_growth("t", at, step)
        at = step
        if not moved(at, end):
            break
    assert rows_between(at, end) == 0
    assert moved(start, end) == (rows_between(start, end) > 0)


def test_advancing_past_a_lower_target_stays() -> None:
    # A pinned target may lie behind a start of "latest" that was read a moment later.
    start, target = Cut(1, {0: 10}), Cut(1, {0: 8})
    assert not moved(start, target)
    assert next_cut(start, target, None) == start


@given(cuts(), st.integers(1, 40), st.none() | st.integers(1, 300))
def test_ranges_cover_a_micro_batch_once(
    pair: tuple[Cut, Cut], tasks_min: int, rows_max: int | None
) -> None:
    start, end = pair
    found = ranges(start, end, tasks_min, rows_max)
    total = rows_between(start, end)
    assert sum(map(len, found)) == total
    at = {p: start.positions.get(p, 0) for p in end.positions}
    for part in found:
        assert part.first == at[part.partition]
        assert 0 < len(part) <= (rows_max or total)
        at[part.partition] = part.behind
    assert at == end.positions
    assert len(found) >= min(tasks_min, total)


def test_one_task_a_partition_unless_told_otherwise() -> None:
    start, end = Cut(1, {0: 0, 1: 5}), Cut(1, {0: 100, 1: 5, 2: 50})
    assert ranges(start, end) == [Range(0, 0, 100), Range(2, 0, 50)]
    assert len(ranges(start, end, tasks_min=4)) >= 4
    assert max(map(len, ranges(start, end, rows_max=30))) <= 30


def test_what_does_not_continue_is_refused() -> None:
    start = Cut(1, {0: 5, 1: 7})
    check_growth("t", start, Cut(1, {0: 5, 1: 9, 2: 4}))
    with pytest.raises(CheckpointMismatch, match="deleted and made again"):
        check_growth("t", start, Cut(2, {0: 5, 1: 7}))
    with pytest.raises(CheckpointMismatch, match="no partition 1 any more"):
        check_growth("t", start, Cut(1, {0: 5}))
    with pytest.raises(RangeLost, match="t/1 ends at 6"):
        check_growth("t", start, Cut(1, {0: 5, 1: 6}))


@given(
    st.lists(st.integers(0, 20_000), max_size=30),
    st.integers(1, 12),
    st.none() | st.integers(1, 30_000),
)
def test_small_ranges_share_a_task(
    lengths: list[int], tasks_min: int, rows_max: int | None
) -> None:
    parts = planning.shared(lengths, tasks_min, rows_max)
    assert [one for part in parts for one in lengths[part]] == lengths
    if lengths and max(lengths) <= sum(lengths) // tasks_min:  # as `ranges` cuts them
        assert len(parts) >= tasks_min or not sum(lengths)
    most = min(planning.SHARED_ROWS_MAX, rows_max or planning.SHARED_ROWS_MAX)
    for part in parts:
        assert sum(lengths[part]) <= most or part.stop - part.start == 1
    for one, other in itertools.pairwise(parts):  # no two neighbours would fit together
        together = sum(lengths[one]) + lengths[other][0]
        assert together > min(most, sum(lengths) // tasks_min)


def test_tasks_are_no_fewer_than_asked_for() -> None:
    assert planning.shared([100] * 64) == [slice(0, 64)]
    assert len(planning.shared([100] * 64, tasks_min=4)) == 4
    assert len(planning.shared([100] * 64, rows_max=800)) == 8
    assert planning.shared([9_000, 9_000, 100, 100]) == [slice(0, 1), slice(1, 4)]
    assert planning.shared([]) == []
