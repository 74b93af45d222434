"""Worlds in which one clock at a time is wrong: nobody goes by it, and clients wait for nothing."""

from __future__ import annotations

import pytest

from rigs.drawn_mutants import one_in
from weir_lab.sim.mutants.order import ASTRAY
from weir_lab.sim.run import run_seed


@one_in(3)
@pytest.mark.parametrize("seed", range(2))
def test_a_clock_that_is_wrong_spoils_no_stamp(seed: int) -> None:
    assert run_seed(seed, ASTRAY).violations == []
