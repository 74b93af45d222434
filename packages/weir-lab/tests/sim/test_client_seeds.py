"""Worlds in which the client as it ships publishes, reads, consumes and scatters.

WEIR_CLIENT_SEEDS says how many are played of one node, and of three nodes half as many, but
at least one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rigs.drawn_mutants import one_in
from weir_lab.sim.run import run_seed, run_seeds
from weir_lab.sim.shape import ENDING, NODE, NODE_SHIPPED, SET

SEEDS = int(os.environ.get("WEIR_CLIENT_SEEDS", "1"))
#: Clients with large values, delays, devices and an operator beside them.
NODE_BESIDE = replace(NODE, shipped=(True,))
SET_SHIPPED = replace(SET, shipped=(True,))
ENDING_SHIPPED = replace(ENDING, shipped=(True,))

_PLAY = """
from dataclasses import replace
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import SET
print(run_seed(2, replace(SET, shipped=(True,))).trace_hash)
"""


@one_in(3)
@pytest.mark.timeout(120 + 10 * SEEDS)
def test_every_promise_is_kept_to_the_client_as_it_ships() -> None:
    shapes = {NODE_SHIPPED: SEEDS, NODE_BESIDE: SEEDS, SET_SHIPPED: max(SEEDS // 2, 1)}
    for shape, seeds in {**shapes, ENDING_SHIPPED: max(SEEDS // 8, 1)}.items():
        broken = [one.report() for one in run_seeds(0, seeds, shape) if one.violations]
        assert not broken, "\n\n".join(broken[:3])


@one_in(3)
@pytest.mark.timeout(240)
def test_a_seed_replays_to_the_byte_whatever_hashes_are() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    played = subprocess.run(
        [sys.executable, "-c", _PLAY], env=environment, capture_output=True, check=True
    )
    assert played.stdout.decode().strip() == run_seed(2, SET_SHIPPED).trace_hash
