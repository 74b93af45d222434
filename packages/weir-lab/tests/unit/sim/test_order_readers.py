"""Simulated readers in total order, and a topic that grows under them: that there is something to
judge.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir.order.barrier import Barrier, Merge
from weir.testing.simulator.world import SECOND
from weir_lab.sim.checkers.judge import violations
from weir_lab.sim.history import History
from weir_lab.sim.run import Run, run_seed
from weir_lab.sim.shape import NODE

ORDERED = replace(
    NODE, ordered=(2,), retentions=(0,), rots=(0,), grows=(True,), faults_until=3 * SECOND
)


@pytest.fixture(scope="module")
def played() -> History:
    run = Run(3, ORDERED)
    run.play()
    return run.history


def test_readers_in_total_order_find_all_there_is_in_one_sequence(played: History) -> None:
    assert violations(played) == []
    whole = {row for reading in played.readings for row in reading.rows}
    drained = [len(record.values) for records in played.drained.values() for record in records]
    assert len(whole) == sum(drained) > 50
    assert len(played.readings) > 2, "nobody began anew"


def test_partitions_join_while_they_read(played: History) -> None:
    assert {row.partition for reading in played.readings for row in reading.rows} == {0, 1, 2}
    assert frozenset({0, 1, 2}) in played.complete


def test_barriers_are_told_that_no_message_stands_for(played: History) -> None:
    last = {partition: records[-1] for partition, records in played.drained.items()}
    behind = {p: record.offset + len(record.values) for p, record in last.items()}
    told = [
        partition
        for (partition, through), stamp in played.barriers.items()
        if through == behind[partition] and stamp > last[partition].stamp
    ]
    assert told, "nobody ever promised anything"


def test_what_was_heard_is_told_and_waited_for(played: History) -> None:
    confirmed = [publish for publish in played.publishes if publish.confirms]
    assert any(publish.visible for publish in confirmed)
    seen = {row.stamp for reading in played.readings for row in reading.rows}
    assert any(publish.after in seen for publish in confirmed)


def test_a_reader_that_heeds_no_offsets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def barrier(self: Merge[object], partition: int, barrier: Barrier) -> None:
        self.roster.report(partition, barrier.stamp)

    monkeypatch.setattr(Merge, "barrier", barrier)
    broken = {promise for seed in range(4) for promise, _ in run_seed(seed, ORDERED).violations}
    assert broken & {"BarrierHolds", "OneOrder"}
