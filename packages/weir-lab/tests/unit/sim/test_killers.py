"""Killed handlers: no message loses an attempt that it never had, and each killer has its last."""

from __future__ import annotations

from weir_lab.sim.scenarios.killers import play_killers
from weir_lab.sim.shape import NODE


def test_no_attempt_is_lost_and_none_is_forgotten() -> None:
    outcomes = [play_killers(seed, NODE) for seed in range(5)]
    broken = [one.report() for one in outcomes if one.violations]
    assert not broken, "\n\n".join(broken[:3])
    assert sum(one.faults for one in outcomes) == 150


def test_a_seed_plays_the_same_way_again() -> None:
    assert play_killers(3, NODE).trace_hash == play_killers(3, NODE).trace_hash
    assert play_killers(3, NODE).trace_hash != play_killers(4, NODE).trace_hash
