"""Logs whose synced tail vanishes: what the file named is told, and nothing else ever is."""

from __future__ import annotations

from weir_lab.sim.scenarios.lost_tails import play_tails
from weir_lab.sim.shape import NODE


def test_what_vanishes_is_told_and_nothing_else() -> None:
    outcomes = [play_tails(seed, NODE) for seed in range(40)]
    broken = [one.report() for one in outcomes if one.violations]
    assert not broken, "\n\n".join(broken[:3])
    assert sum(one.faults for one in outcomes) > 500


def test_a_seed_plays_the_same_way_again() -> None:
    assert play_tails(3, NODE).trace_hash == play_tails(3, NODE).trace_hash
    assert play_tails(3, NODE).trace_hash != play_tails(4, NODE).trace_hash
