"""Worlds with users, of which a seed draws one: rights are taken away under faults, while a node is
cut off, or under faults with an audit.
"""

from __future__ import annotations

from weir_lab.sim.outcome import Outcome
from weir_lab.sim.scenarios.audited_changes import play_audited_changes
from weir_lab.sim.scenarios.cut_off_shards import play_cut_off_shards
from weir_lab.sim.scenarios.revocations import play_revocations
from weir_lab.sim.shape import Shape

PLAYS = play_revocations, play_cut_off_shards, play_audited_changes


def play_users(seed: int, shape: Shape) -> Outcome:
    """Play the world that a seed draws; its shape is always the same one."""
    return PLAYS[seed % len(PLAYS)](seed, shape)
