"""Worlds in which queries write to a topic by the client as it ships.

WEIR_SINK_WORLDS says how many are played of one node, and of three nodes half as many.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rigs.drawn_mutants import one_in
from weir_lab.sim.checkers.applications import SunkOnce
from weir_lab.sim.history import History
from weir_lab.sim.observations import Sunk
from weir_lab.sim.run import run_seeds
from weir_lab.sim.shape import NODE_READS, SET_READS

pytest.importorskip("pyarrow")

SEEDS = int(os.environ.get("WEIR_SINK_WORLDS", "2"))
NODE = replace(NODE_READS, sunk=(8,), typed=(0,), planners=0, shipped=(True,))
SET = replace(SET_READS, sunk=(8,), typed=(0,), planners=0, shipped=(True,))


@one_in(3)
@pytest.mark.timeout(120 + 10 * SEEDS)
def test_each_batch_is_published_once_and_all_read_it_alike() -> None:
    at_stake = 0
    for shape, seeds in {NODE: SEEDS, SET: SEEDS // 2}.items():
        outcomes = list(run_seeds(0, seeds, shape))
        broken = [one.report() for one in outcomes if one.violations]
        assert not broken, "\n\n".join(broken[:3])
        at_stake += sum("SunkOnce" in one.promises for one in outcomes)
    assert at_stake > SEEDS


def test_batches_are_judged() -> None:
    rows = [(9, 0, 0, b"q/0/0/0"), (9, 1, 0, b"q/0/0/1")]
    batches = {"q/0": [[b"q/0/0/0", b"q/0/0/1"]], "q/1": [[b"q/1/0/0"]]}

    def judged(*readings: list[tuple[int, int, int, bytes]]) -> list[str]:
        found = [({"q/0"}, reading) for reading in readings]
        sunk = Sunk(batches, {"q/0"}, {"q/0": {9}}, found)
        return list(SunkOnce().check(History(sunk=sunk)))

    assert judged(rows, rows) == []
    assert judged(rows, [*rows, (11, 0, 1, b"q/1/0/0")]) == []
    (differ,) = judged(rows, [*reversed(rows)])
    assert differ.startswith("readers differ at message 0")
    assert judged(rows[:1]) == ["batch q/0 has 1 messages of 2"]
    assert len(judged([*rows, (9, 1, 1, b"q/0/0/1")])) == 2
    assert "batch q/0 has 2 stamps" in judged([rows[0], (10, 1, 0, b"q/0/0/1")])
    assert judged([(8, *row[1:]) for row in rows]) == [
        "batch q/0 was confirmed at another stamp than it has"
    ]
    assert judged([(9, 0, 0, b"q/1/0/0")]) == ["batch q/0 was published, and is not there"]
    assert "what was read is not in the order of stamps, partitions and offsets" in judged(
        [*reversed(rows)]
    )
