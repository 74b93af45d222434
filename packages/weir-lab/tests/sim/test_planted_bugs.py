"""Planted bugs are caught in worlds: weir's code draws which bugs, and which worlds.

`power.jsonl` holds how often each is caught, and is made by `weir sim power --kept`. Of those that
few worlds catch none is drawn: a bug may be missed once in a million times, and no more often.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from rigs.drawn_mutants import code_digest
from weir_lab.sim.mutants.planting import Mutant
from weir_lab.sim.mutants.registry import MUTANTS, complaints
from weir_lab.sim.power import Power, estimate, read
from weir_lab.sim.run import run_drawn

KEPT = Path(__file__).with_name("power.jsonl")
#: How many `make test` plants; `weir sim power` measures all.
COUNT = 5
#: Of worlds that are played, the share that catches a bug which may be drawn, at the least.
LEAST = 0.05
#: How long it took to catch one that may be drawn, on average, on a machine that was busy besides.
SECONDS_MOST = 10.0
MISSED_ONCE_IN = 1_000_000
SEEDS_MOST = 1_000_000_000


def least_share(power: Power) -> float:
    """The lower end of the share of all drawn worlds that catch a bug."""
    return estimate(power.caught, power.played, power.caught)[1]


def most_worlds(power: Power) -> int:
    """So many worlds miss a bug once in a million times at most."""
    return math.ceil(math.log(MISSED_ONCE_IN) / -math.log1p(-least_share(power)))


def likely() -> list[tuple[Mutant, Power]]:
    bugs = {bug.name: bug for bug in MUTANTS}
    return [
        (bugs[power.name], power)
        for power in read(KEPT)
        if power.name in bugs
        and power.caught
        and least_share(power) >= LEAST
        and power.seconds / power.caught <= SECONDS_MOST
    ]


@pytest.mark.timeout(900)
def test_drawn_bugs_are_caught() -> None:
    dice = Random(code_digest())
    missed = []
    for bug, power in dice.sample(likely(), COUNT):
        first, most = dice.randrange(SEEDS_MOST), most_worlds(power)
        with bug.planted():
            if not any(complaints(bug, run_drawn(seed)) for seed in range(first, first + most)):
                missed.append(f"{bug.name} in {most} worlds from seed {first} on")
    assert not missed


def test_there_are_more_than_are_drawn() -> None:
    assert len(likely()) > COUNT


@pytest.mark.parametrize(("caught", "played", "most"), [(3, 3, 25), (3, 6, 67), (3, 20, 260)])
def test_the_rarer_a_bug_is_caught_the_more_worlds_are_played(
    caught: int, played: int, most: int
) -> None:
    power = Power("bug", "rule", played, played, caught, 0.0, 0.0, 0.0, 1.0)
    assert most_worlds(power) == pytest.approx(most, rel=0.05)
