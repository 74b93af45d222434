"""Plots against barriers harm nobody: without one rule each, they do (`sim.mutants.order`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir_lab.sim.mutants.order import EVICTED, JOINED, PLOTTED
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import Shape

UNSETTLED = replace(PLOTTED, plot="unsettled")
FORGETFUL = replace(PLOTTED, plot="forgetful")
TRIES = 8


@pytest.mark.parametrize(
    ("seed", "shape"),
    [
        (0, UNSETTLED),
        (0, FORGETFUL),
        # A replica that a snapshot had reached, and the messages below it had not, told a reader
        # that these were lost.
        (14, EVICTED),
        (4, JOINED),
    ],
    ids=lambda value: value.plot if isinstance(value, Shape) else str(value),
)
def test_an_execution_that_broke_an_earlier_rule_breaks_nothing(seed: int, shape: Shape) -> None:
    # A seed is another run with every change of the code: in some, the plot comes to nothing.
    for one in range(seed, seed + TRIES):
        outcome = run_seed(one, shape)
        assert not outcome.violations, outcome.report()
        if outcome.faults > 2:
            return
    pytest.fail(f"it came to nothing in {TRIES} worlds")
