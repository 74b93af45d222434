"""What random faults hardly ever bring about: two leaders by turns, rot in a set, and a lost disk
that alone had what was confirmed by it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weir.testing.simulator.world import SECOND, World
from weir_lab.sim import rot
from weir_lab.sim.mutants.replication import DUEL
from weir_lab.sim.programs.publishers.hasty import Hasty
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import UNORDERED, Shape

#: No program but those of which a test speaks.
BARE = replace(
    UNORDERED,
    absent=0.0,
    producers=1,
    hasty=0,
    hubs=0,
    authors=0,
    consumers=0,
    keepers=0,
    receivers=0,
    onlookers=0,
    stewards=0,
    operators=(False,),
    rots=(0,),
    at_least=0,
)


def kept(shape: Shape, seeds: range) -> None:
    for seed in seeds:
        outcome = run_seed(seed, shape)
        assert not outcome.violations, outcome.report()


def test_two_leaders_by_turns_overwrite_nothing_that_was_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fought: list[Any] = []
    honest = World.note

    def note(self: World, *what: Any) -> None:
        honest(self, *what)
        fought.extend(what[:1] if what[0] == "fought" else ())

    monkeypatch.setattr(World, "note", note)
    kept(DUEL, range(5))
    assert len(fought) >= 2


def test_rot_on_one_node_of_three_is_mended_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt: list[rot.Rot] = []
    honest = rot.spoil

    def spoil(*arguments: Any) -> rot.Rot:
        spoilt.append(honest(*arguments))
        return spoilt[-1]

    monkeypatch.setattr(rot, "spoil", spoil)
    kept(replace(BARE, rots=(1, 2), faults_until=4 * SECOND), range(4))
    assert len(spoilt) == 6


def test_who_lost_what_one_disk_had_goes_on_in_its_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counterexample 19: the log ends before the next sequence."""
    begun: list[object] = []
    honest = Hasty.begun

    def note(self: Hasty, producer: int, reply: Any) -> None:
        begun.append(reply)
        honest(self, producer, reply)

    monkeypatch.setattr(Hasty, "begun", note)
    busy = replace(BARE, hasty=4, batches=40, kinds=("part", "depose"), pace=(4, 40))
    kept(replace(busy, faults_until=12 * SECOND), range(4, 7))
    assert begun
