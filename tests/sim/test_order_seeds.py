"""Seeds of three brokers whose partitions are read in total order, while partitions join.

WEIR_ORDER_SEEDS says how many, and WEIR_FIRST_ORDER_SEED where to begin.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from weir.sim.run import run_seed, run_seeds
from weir.sim.shape import NODE, ORDERED

SEEDS = int(os.environ.get("WEIR_ORDER_SEEDS", "8"))
FIRST = int(os.environ.get("WEIR_FIRST_ORDER_SEED", "0"))


@pytest.mark.timeout(120 + 10 * SEEDS)
def test_the_one_order_holds_in_every_seed() -> None:
    broken = [one.report() for one in run_seeds(FIRST, SEEDS, ORDERED) if one.violations]
    assert not broken, "\n\n".join(broken[:3])


@pytest.mark.parametrize(
    "seed",
    [
        # Retention looked at a partition that was joining, and the shard ended.
        0,
    ],
)
def test_one_node_whose_topic_grows_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, replace(NODE, ordered=(2,)))
    assert not outcome.violations, outcome.report()


@pytest.mark.parametrize(
    "seed",
    [
        # Leases ended too soon when the node came back: its stamps were ahead of the time.
        62,
        96,
        108,
    ],
)
def test_one_node_where_consumers_take_turns_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, replace(NODE, ordered=(1,), takers=(3,)))
    assert not outcome.violations, outcome.report()


@pytest.mark.parametrize(
    "seed",
    [
        # A client asked where a partition ends, and messages lay behind what was undecided.
        1,
        16,
        # A damaged partition that nobody else has handed out what had been aborted.
        9,
        # What it says of what was aborted: acks that were not whole had barred an attempt.
        134,
    ],
)
def test_one_node_where_clients_scatter_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, replace(NODE, ordered=(1,), takers=(3,), scatterers=(3,)))
    assert not outcome.violations, outcome.report()


@pytest.mark.parametrize(
    "seed",
    [
        # An hour was over in a moment, and a value in chunks with it: its client was not told.
        64,
        # Who published again in a new epoch left out when its messages are due.
        99,
    ],
)
def test_a_set_whose_clocks_jump_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, ORDERED)
    assert not outcome.violations, outcome.report()
