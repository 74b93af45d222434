"""Worlds of tiers: seeds that hold, and planted bugs that seeds show.

WEIR_RELAY_SEEDS sets how many seeds are played.
"""

from __future__ import annotations

import os

import pytest

from weir_lab.relays.mutants import MUTANTS, Mutant
from weir_lab.relays.scenario import drawn, play

SEEDS = int(os.environ.get("WEIR_RELAY_SEEDS", "40"))


@pytest.mark.timeout(60 + SEEDS)
@pytest.mark.parametrize("part", range(4))
def test_every_tier_sees_the_order_of_the_core(part: int) -> None:
    broken = {}
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        outcome = play(seed)
        if outcome.violations:
            broken[seed] = outcome.violations
    assert not broken


def test_a_seed_of_tiers_is_played_the_same_way_again() -> None:
    assert play(11) == play(11)
    assert play(11).stored != play(12).stored


def test_seeds_of_tiers_draw_what_can_go_wrong() -> None:
    shapes = [drawn(seed) for seed in range(100)]
    assert {shape.partitions for shape in shapes} == {1, 2, 3}
    assert any(shape.promotes for shape in shapes)
    assert any((20, 1) in shape.tree for shape in shapes), "two tiers of tandem sets"
    assert any((30, 2) in shape.tree for shape in shapes), "two owners of one partition"
    assert {shape.loss for shape in shapes} == {0.0, 0.01, 0.1}
    assert any(shape.damage for shape in shapes)
    assert any(not shape.faults for shape in shapes)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_seed_of_a_planted_bug_of_tiers_shows_it(mutant: Mutant) -> None:
    assert mutant.is_caught(mutant.seed)


def test_a_planted_bug_of_tiers_is_taken_back() -> None:
    with MUTANTS[0].planted():
        pass
    assert not play(MUTANTS[0].seed).violations
