"""Worlds in which handlers run as users write them, with an inbox and a database that breaks.

WEIR_HANDLER_SEEDS says how many are played of one node, and of three nodes a quarter as many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rigs.drawn_mutants import one_in
from weir_lab.sim import workload
from weir_lab.sim.run import run_seed, run_seeds
from weir_lab.sim.shape import EVEN_HANDLERS, NODE_HANDLERS, SET_HANDLERS

pytest.importorskip("sqlalchemy")

SEEDS = int(os.environ.get("WEIR_HANDLER_SEEDS", "2"))
_PLAY = """
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import NODE_HANDLERS
print(run_seed(4, NODE_HANDLERS).trace_hash)
"""


@one_in(3)
@pytest.mark.timeout(120 + 10 * SEEDS)
def test_every_effect_happens_once_whatever_befalls() -> None:
    shipped = replace(SET_HANDLERS, shipped=(True,))
    at_stake = 0
    for shape, seeds in {NODE_HANDLERS: SEEDS, shipped: max(SEEDS // 4, 1)}.items():
        outcomes = list(run_seeds(0, seeds, shape))
        broken = [one.report() for one in outcomes if one.violations]
        assert not broken, "\n\n".join(broken[:3])
        at_stake += sum("EffectOnce" in one.promises for one in outcomes)
    assert at_stake > SEEDS // 2


@one_in(3)
@pytest.mark.timeout(240)
def test_a_seed_with_handlers_replays_to_the_byte_whatever_hashes_are() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    played = subprocess.run(
        [sys.executable, "-c", _PLAY], env=environment, capture_output=True, check=True
    )
    assert played.stdout.decode().strip() == run_seed(4, NODE_HANDLERS).trace_hash


def test_without_the_library_of_inboxes_the_others_play_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workload, "find_spec", lambda name: None)
    outcome = run_seed(4, NODE_HANDLERS)
    assert not outcome.violations, outcome.report()
    assert "EffectOnce" not in outcome.promises


@one_in(3)
def test_who_stood_still_in_a_transaction_is_told_that_it_is_lost() -> None:
    """The database of this world said that it had committed; its handlers went on."""
    outcome = run_seed(569283354, EVEN_HANDLERS)
    assert not outcome.violations, outcome.report()
