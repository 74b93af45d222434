"""What counts when sides have several turns."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from weir.errors import WeirError
from weir_lab.bench.comparison.round import Row, Rule, play
from weir_lab.bench.sides.contender import Contender, Ran

BY_TIME = Rule(lower_wins=True, another_go=True, turns=3)
BY_RATE = Rule(lower_wins=False, another_go=True, turns=3)


def side(
    label: str, figures: Sequence[float | None], order: list[str], lossy: int | None = None
) -> Contender:
    """Return one with these figures: `None` fails, and run number `lossy` loses something."""
    left = list(enumerate(figures))

    def run(_: int) -> Ran:
        order.append(label)
        number, figure = left.pop(0)
        if figure is None:
            raise WeirError(f"{label} broke")
        lost = int(number == lossy)
        return Ran("1", "", SimpleNamespace(clean=not lost, lost=lost, number=number), figure)

    return Contender(label, "", True, run, own=label.startswith("weir"))


def test_sides_take_turns_and_the_run_in_the_middle_counts() -> None:
    order: list[str] = []
    sides = [side("weir", [3, 1, 2], order), side("peer", [1.5, 1, 7], order)]
    one = play(sides, BY_RATE, 4, lambda _: None)
    assert order == ["weir", "peer"] * 3
    assert [row.figure for row in one.rows] == [2, 1.5]
    assert [row.result.number for row in one.rows] == [2, 0]
    assert [row.turns for row in one.rows] == [[3, 1, 2], [1.5, 1, 7]]
    assert one.times_best == pytest.approx(2 / 1.5)


@pytest.mark.parametrize(
    ("rule", "far", "near"), [(BY_TIME, 2.1, 1.9), (BY_TIME, 3, 0.1), (BY_RATE, 0.4, 0.6)]
)
def test_who_is_far_behind_at_first_has_no_other_turn(rule: Rule, far: float, near: float) -> None:
    order: list[str] = []
    sides = [
        side("weir", [1] * 3, order),
        side("far", [far], order),
        side("near", [near] * 3, order),
    ]
    one = play(sides, rule, 4, lambda _: None)
    assert [order.count(label) for label in ("weir", "far", "near")] == [3, 1, 3]
    assert one.best == "near"


def test_a_peer_that_lost_something_in_any_turn_and_again_is_not_clean() -> None:
    order: list[str] = []
    sides = [side("weir", [1, 1, 1], order), side("peer", [1, None, None, 1], order)]
    one = play(sides, BY_TIME, 4, lambda _: None)
    assert one.rows[1].error == "peer broke"
    assert one.best is None


def test_a_peer_that_fails_in_one_turn_has_another_go_at_that() -> None:
    order: list[str] = []
    sides = [side("weir", [1, 1, 1], order), side("peer", [1, None, 3, 2], order)]
    one = play(sides, BY_TIME, 4, lambda _: None)
    assert one.rows[1].turns == [1, 3, 2]
    assert one.rows[1].clean


@pytest.mark.parametrize("lossy", [0, 1, 2])
def test_what_weir_lost_in_any_turn_is_what_counts(lossy: int) -> None:
    order: list[str] = []
    sides = [side("weir", [1, 2, 3], order, lossy), side("peer", [1, 1, 1], order)]
    one = play(sides, BY_TIME, 4, lambda _: None)
    assert not one.rows[0].clean
    assert one.rows[0].result.number == lossy


def test_weirs_own_failure_ends_it() -> None:
    order: list[str] = []
    sides = [side("weir", [1, None], order), side("peer", [1, 1, 1], order)]
    with pytest.raises(WeirError, match="weir broke"):
        play(sides, BY_TIME, 4, lambda _: None)


def test_nobody_is_compared_with_another_way_of_weir() -> None:
    order: list[str] = []
    sides = [side(label, [figure], order) for label, figure in
             (("weir", 4), ("weir:messages", 3), ("peer", 2))]  # fmt: skip
    one = play(sides, BY_RATE._replace(turns=1), 4, lambda _: None)
    assert [row.figure for row in one.rows] == [4, 3, 2]
    assert (one.best, one.times_best, one.times_best_synced) == ("peer", 2, 2)


def test_another_way_of_weir_has_no_other_go() -> None:
    sides = [side("weir", [1], []), side("weir:messages", [None, 1], [])]
    with pytest.raises(WeirError, match="weir:messages broke"):
        play(sides, BY_RATE._replace(turns=1), 4, lambda _: None)


def beside(
    foreign: Sequence[float | None], reruns: int, lossy: Sequence[int] = (), label: str = "weir"
) -> tuple[Row, list[str]]:
    """Return what counts of runs beside which others used so many cores, and what was said; each
    of them is run.
    """
    left, said = list(enumerate(foreign)), list[str]()

    def run(_: int) -> Ran:
        number, cores = left.pop(0)
        found = SimpleNamespace(clean=number not in lossy, lost=1, foreign_cores=cores)
        return Ran("1", "", found, 1.0)

    rule = Rule(True, another_go=True, turns=1, foreign_cores_max=0.2, reruns=reruns)
    other = Contender(label, "", True, run, own=label == "weir")
    one = play([other], rule, 4, said.append)
    assert not left
    return one.rows[0], said


@pytest.mark.parametrize(
    ("foreign", "reruns", "counts"),
    [
        ((0.1,), 3, 0.1),
        ((0.2,), 3, 0.2),
        ((0.9, 0.1), 3, 0.1),
        ((0.5, 0.9), 1, 0.5),
        ((0.9, 0.5, 0.7), 2, 0.5),
        ((0.9, 0.5, 0.1), 3, 0.1),
        ((0.9,), 0, 0.9),
        ((None,), 3, None),
    ],
)
def test_a_run_beside_which_others_used_much_is_run_again_so_often(
    foreign: Sequence[float | None], reruns: int, counts: float | None
) -> None:
    row, said = beside(foreign, reruns)
    assert len(said) == len(foreign)
    assert row.foreign_cores == counts
    assert row.reruns == len(foreign) - 1
    assert ["once more, for others used" in line for line in said] == [False] + [True] * row.reruns


def test_what_weir_loses_when_it_is_run_again_counts() -> None:
    row, _ = beside((0.9, 1.5), 3, lossy=(1,))
    assert not row.clean
    row, _ = beside((0.9, 0.1), 3, lossy=(1,), label="peer")
    assert row.clean
