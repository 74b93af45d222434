"""Worlds in which a node that hears no other goes on: what was taken away ends by the time that the
answer names.
"""

from __future__ import annotations

from weir_lab.sim.scenarios.cut_off_shards import CutOffRealm, play_cut_off_shards
from weir_lab.sim.shape import NODE


def test_losses_that_a_node_does_not_hear_of_end_by_the_cut_off() -> None:
    realm = CutOffRealm(3)
    assert realm.play() == []
    assert realm.history.bounded > 1, "the answers name a time"


def test_a_set_that_was_closed_after_all_watched_ends_by_the_cut_off() -> None:
    outcome = play_cut_off_shards(6, NODE)
    assert not outcome.violations, outcome.report()
    assert outcome.operations > 500
