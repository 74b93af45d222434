"""Seeds of three whole brokers over a network. WEIR_SET_SEEDS=10000 makes a proof, and
WEIR_FIRST_SET_SEED begins elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import weir
from weir.sim.run import run_many, run_seed
from weir.sim.shape import SET

SEEDS = int(os.environ.get("WEIR_SET_SEEDS", "24"))
FIRST = int(os.environ.get("WEIR_FIRST_SET_SEED", "0"))
JOBS = int(os.environ.get("WEIR_SET_JOBS", "1"))
SOURCE = Path(weir.__file__).parents[1]

#: Four nodes, of which three hold each group: groups move when a node is taken out of use.
FOUR = replace(SET, nodes=4)

TRACES = """
from weir.sim.run import run_seeds
from weir.sim.shape import SET
print([outcome.trace_hash for outcome in run_seeds(50, 2, SET)])
"""


@pytest.mark.timeout(120 + 10 * SEEDS)
def test_every_promise_is_kept_by_three_nodes() -> None:
    broken = []
    for outcome in run_many(FIRST, SEEDS, SET, JOBS):
        # A simulation in which nothing happens keeps every promise too.
        assert outcome.operations >= 200
        assert outcome.faults >= 20
        assert outcome.virtual_seconds >= 30
        if outcome.violations:
            broken.append(outcome.report())
    assert not broken, "\n\n".join(broken[:3])


@pytest.mark.timeout(120 + 10 * SEEDS)
def test_every_promise_is_kept_while_groups_move_between_four() -> None:
    outcomes = run_many(FIRST, -(-SEEDS // 8), FOUR, JOBS)
    broken = [outcome.report() for outcome in outcomes if outcome.violations]
    assert not broken, "\n\n".join(broken[:3])


@pytest.mark.parametrize(
    "seed",
    [
        # All nodes died while the set was founded: some copies of the registry held only some of
        # the founders, and told their hosts to let go of the links to the others.
        3032,
    ],
)
def test_a_set_seed_that_once_failed_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, SET)
    assert not outcome.violations, outcome.report()


def test_a_set_replays_to_the_byte_whatever_the_hash_seed_is() -> None:
    traces = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SOURCE)}
        child = subprocess.run(
            [sys.executable, "-c", TRACES],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        traces.add(child.stdout)
    assert len(traces) == 1
    assert run_seed(50, SET).trace_hash in traces.pop()
