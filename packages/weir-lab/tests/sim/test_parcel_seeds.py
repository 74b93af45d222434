"""Worlds in which the client as it ships sends large values and delayed messages, by clocks that
are set back.

WEIR_PARCEL_SEEDS says how many are played of one node, and of three nodes a quarter as many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rigs.drawn_mutants import one_in
from weir_lab.sim.checkers.applications import Delivered
from weir_lab.sim.history import History
from weir_lab.sim.observations import Parcel, Parcels
from weir_lab.sim.run import run_seed, run_seeds
from weir_lab.sim.shape import EVEN_PARCELS, NODE_PARCELS, SET_PARCELS

SEEDS = int(os.environ.get("WEIR_PARCEL_SEEDS", "2"))
_PLAY = """
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import NODE_PARCELS
print(run_seed(3, NODE_PARCELS).trace_hash)
"""


@one_in(3)
@pytest.mark.timeout(120 + 10 * SEEDS)
def test_what_is_large_comes_whole_and_what_is_delayed_in_time() -> None:
    shipped = replace(SET_PARCELS, shipped=(True,))
    at_stake = 0
    for shape, seeds in {NODE_PARCELS: SEEDS, shipped: max(SEEDS // 4, 1)}.items():
        outcomes = list(run_seeds(0, seeds, shape))
        broken = [one.report() for one in outcomes if one.violations]
        assert not broken, "\n\n".join(broken[:3])
        at_stake += sum("Delivered" in one.promises for one in outcomes)
    assert at_stake > SEEDS // 2


@one_in(3)
@pytest.mark.timeout(240)
def test_a_seed_with_parcels_replays_to_the_byte_whatever_hashes_are() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    played = subprocess.run(
        [sys.executable, "-c", _PLAY], env=environment, capture_output=True, check=True
    )
    assert played.stdout.decode().strip() == run_seed(3, NODE_PARCELS).trace_hash


def _judged(parcel: Parcel, skewed: bool = False) -> list[str]:
    parcels = Parcels({parcel.name: parcel}, drained=True)
    return list(Delivered().check(History(parcels=parcels, skewed=skewed)))


def _parcel(due: int = 0, arrived: int = 50_000) -> Parcel:
    parcel = Parcel("p", b"p|", due, large=False, place=(0, 1), arrived=arrived, told=True)
    parcel.places.update({(0, 1)} if arrived >= 0 else ())
    return parcel


def test_parcels_are_judged() -> None:
    assert not _judged(_parcel())
    assert _judged(_parcel(due=90_000)) == ["p was delivered 40 ms before it was due"]
    assert not _judged(_parcel(due=90_000), skewed=True)
    assert "never delivered" in _judged(_parcel(arrived=-1))[0]
    twice = _parcel()
    twice.places.add((1, 7))
    assert _judged(twice) == ["p is there more than once: [(0, 1), (1, 7)]"]
    wrong = _parcel()
    wrong.wrong = "1 bytes for 2"
    assert "not the value it was" in _judged(wrong)[0]
    silent = _parcel()
    silent.told = False
    assert _judged(silent) == ["p is done, and nobody who got it said so"]


@one_in(3)
def test_a_message_is_not_early_by_the_time_that_an_answer_takes() -> None:
    """A client read its own clock when the broker's answer had come, and went by that."""
    outcome = run_seed(407308473, SET_PARCELS)
    assert not outcome.violations, outcome.report()


@one_in(3)
def test_a_message_is_not_early_by_the_stamps_of_a_new_leader() -> None:
    """A new leader stamps above all that was promised, and went by that for what is due."""
    outcome = run_seed(344039898, EVEN_PARCELS)
    assert not outcome.violations, outcome.report()
