"""Worlds of two core sets, of which home is lost or cut off, and the other one is promoted."""

from __future__ import annotations

import pytest

from weir_lab.sim.scenarios.promotions import Promotions, play_promotion
from weir_lab.sim.shape import NODE


@pytest.mark.parametrize("seed", [6, 11, 24])
def test_the_other_set_goes_on_and_all_that_is_lost_was_told(seed: int) -> None:
    outcome = play_promotion(seed, NODE)
    assert not outcome.violations, outcome.report()
    assert outcome.operations > 100


def test_worlds_lose_something_by_either_way() -> None:
    """Home goes on while it is cut off; what it had just confirmed is on its way as it is killed"""
    for seed, is_cut_off in ((6, True), (11, False)):
        game = Promotions(seed)
        assert game.is_cut_off is is_cut_off
        assert game.play() == []
        assert game.gone > 0


@pytest.mark.parametrize("seed", [6, 9])
def test_running_readers_are_told_of_what_they_have_read_in_vain(seed: int) -> None:
    """Home is cut off with one of them, which is given what is gone then; the other one goes on."""
    game = Promotions(seed, followed=True)
    assert game.play() == []
    assert [follower.is_told for follower in game.followers] == [True, False]
    assert min(len(follower.given) for follower in game.followers) > 50


def test_worlds_differ() -> None:
    drawn = [Promotions(seed) for seed in range(30)]
    assert {tuple(one.sets) for one in drawn} == {
        (*[1] * home, *[2] * away) for home in (2, 3) for away in (1, 2, 3)
    }
    assert {one.is_cut_off for one in drawn} == {True, False}
