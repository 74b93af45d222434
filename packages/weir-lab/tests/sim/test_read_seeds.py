"""Worlds in which Spark's source reads, and `weir tail`, `sub` and `work` run, as they ship.

WEIR_READ_SEEDS says how many are played of one node, and of three nodes a quarter as many,
but at least one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from rigs.drawn_mutants import one_in
from weir_lab.sim.run import run_drawn, run_seed, run_seeds
from weir_lab.sim.shape import EVEN_READS, NODE_READS, SET_READS

SEEDS = int(os.environ.get("WEIR_READ_SEEDS", "6"))
_PLAY = """
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import NODE_READS
print([run_seed(seed, NODE_READS).trace_hash for seed in (3, 4)])
"""


@one_in(3)
@pytest.mark.timeout(120 + 15 * SEEDS)
def test_what_is_read_is_whole_and_what_is_taken_is_handed_over() -> None:
    shipped = replace(SET_READS, shipped=(True,))
    at_stake = Counter[str]()
    for shape, seeds in {NODE_READS: SEEDS, shipped: max(SEEDS // 4, 1)}.items():
        outcomes = list(run_seeds(0, seeds, shape))
        broken = [one.report() for one in outcomes if one.violations]
        assert not broken, "\n\n".join(broken[:3])
        at_stake.update(name for one in outcomes for name in one.promises)
    assert all(at_stake[name] for name in ("Streamed", "HandedOver", "WorkDone"))


@one_in(3)
@pytest.mark.timeout(120)
def test_a_seed_with_queries_and_commands_replays_to_the_byte_whatever_hashes_are() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    played = subprocess.run(
        [sys.executable, "-c", _PLAY], env=environment, capture_output=True, check=True
    )
    assert played.stdout.decode().strip() == str(
        [run_seed(seed, NODE_READS).trace_hash for seed in (3, 4)]
    )


@one_in(3)
def test_a_world_is_the_same_behind_another_one_with_spark() -> None:
    """Processes of Spark knew the set of an earlier world, so they waited where they had failed."""
    alone = run_drawn(750250753).trace_hash
    run_drawn(750250741)
    assert run_drawn(750250753).trace_hash == alone


@one_in(3)
@pytest.mark.timeout(60)
def test_devices_on_a_slow_disk_have_time_for_what_is_left() -> None:
    """Two locks acked one message after the other: 20.6 s for flushes of up to 100 ms each."""
    outcome = run_seed(262951801, EVEN_READS)
    assert not outcome.violations, outcome.report()


@one_in(3)
@pytest.mark.timeout(60)
def test_weir_sub_on_a_slow_disk_has_time_for_what_is_left() -> None:
    """Ctrl-C came 0.3 s after each start, while others flushed for up to 100 ms each."""
    outcome = run_drawn(462364429)
    assert not outcome.violations, outcome.report()
