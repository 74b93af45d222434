"""Worlds of three core sets, of which a whole one is away: all goes on, in one order."""

from __future__ import annotations

import pytest

from weir_lab.sim.scenarios.lost_sets import LostSets, play_lost_sets
from weir_lab.sim.shape import NODE


@pytest.mark.parametrize("seed", [10, 11])
def test_any_set_may_be_lost(seed: int) -> None:
    outcome = play_lost_sets(seed, NODE)
    assert not outcome.violations, outcome.report()
    assert outcome.operations == 12
    assert outcome.faults >= 3


def test_a_set_with_most_of_the_first_nodes_may_be_lost() -> None:
    """The registry is founded on two nodes of one set, and has to leave one of them."""
    game = LostSets(22, rounds=1)
    assert game.sets == [1, 1, 2, 3]
    assert game.play() == []


def test_worlds_differ() -> None:
    drawn = {tuple(LostSets(seed).sets) for seed in range(40)}
    assert all({*one} == {1, 2, 3} for one in drawn)
    assert {len(one) for one in drawn} == {3, 4, 5, 6}
    assert any(one[:3] == (1, 1, 2) for one in drawn), "two founders of one set"
    assert any(one[:2] == (3, 1) for one in drawn), "in any order"
