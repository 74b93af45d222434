"""Worlds in which devices of a fleet are replaced, and both have a secret at once for a while.

WEIR_REPLACED_SEEDS says how many are played of one node, and of three nodes half as many.
"""

from __future__ import annotations

import os

import pytest

from rigs.drawn_mutants import one_in
from weir.model.columns import epoch_of
from weir_lab.sim.checkers.judge import Fenced
from weir_lab.sim.history import History, Record
from weir_lab.sim.run import run_seed, run_seeds
from weir_lab.sim.shape import NODE_REPLACED, SET_REPLACED

SEEDS = int(os.environ.get("WEIR_REPLACED_SEEDS", "2"))


@pytest.mark.timeout(120 + 10 * SEEDS)
def test_nothing_of_a_device_is_taken_behind_the_one_that_replaced_it() -> None:
    at_stake = 0
    for shape, seeds in {NODE_REPLACED: SEEDS, SET_REPLACED: SEEDS // 2}.items():
        outcomes = list(run_seeds(0, seeds, shape))
        broken = [one.report() for one in outcomes if one.violations]
        assert not broken, "\n\n".join(broken[:3])
        at_stake += sum("Fenced" in one.promises for one in outcomes)
    assert at_stake > SEEDS // 4


@one_in(3)
def test_a_shard_that_lost_its_copy_refuses_no_device_for_good() -> None:
    """The shard where a new device's hello went on to had no fleets after its process was killed,
    and refused the proof as if the device had been replaced.
    """
    outcome = run_seed(7, NODE_REPLACED)
    assert not outcome.violations, outcome.report()


@one_in(3)
def test_a_leader_that_may_not_know_all_fleets_refuses_no_change_for_good() -> None:
    """A node that had not applied all that was written before said that a hub belongs to no fleet:
    its fleet was confirmed by the leader before it.
    """
    outcome = run_seed(25, SET_REPLACED)
    assert not outcome.violations, outcome.report()


def test_generations_are_judged() -> None:
    def record(offset: int, generation: int) -> Record:
        rows = ((("device", 7, 1, epoch_of(generation, 9 - generation)), 0),)
        return Record(offset, (b"v",), 100 + offset, rows, 200)

    history = History()
    history.drained[0] = [record(0, 0), record(1, 1), record(2, 0)]
    history.drained[1] = [record(0, 0), record(1, 0), record(2, 1)]
    (said,) = Fenced().check(history)
    assert said == f"generation 1 of 7 wrote, then [7, 1, {9}] at 2"
