"""Simulated queries that stage and publish: that there is something to judge, and it is judged."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from weir_lab.sim.checkers.judge import RisingStamps, violations
from weir_lab.sim.history import STAGED, History, Record
from weir_lab.sim.run import Run
from weir_lab.sim.shape import NODE_SINKS

SUNK = replace(NODE_SINKS, retentions=(0,), rots=(0,), takers=(0,))


@pytest.fixture(scope="module")
def played() -> History:
    run = Run(10, SUNK)
    run.play()
    return run.history


def test_all_that_is_published_is_there_at_one_stamp_in_many_batches(played: History) -> None:
    assert violations(played) == []
    confirmed = [one for one in played.scatterings if one.stamp]
    assert len(confirmed) >= 8
    for one in confirmed:
        there = {
            (partition, value)
            for partition, records in played.drained.items()
            for record in records
            for value in record.values
            if record.stamp == one.stamp
        }
        assert set(one.parts) <= there
    repeats = [
        before.stamp
        for records in played.drained.values()
        for before, after in pairwise(records)
        if before.stamp == after.stamp
    ]
    assert len(repeats) > 20


def test_no_message_gets_a_stamp_that_an_attempt_was_barred_at() -> None:
    """A clock behind a barred attempt gave its stamp once more, below a barrier that was told."""
    run = Run(7, SUNK)
    run.play()
    assert violations(run.history) == []


def test_of_attempts_at_one_batch_one_is_published(played: History) -> None:
    there = {v for records in played.drained.values() for r in records for v in r.values}
    tries: dict[tuple[str, int], list[bool]] = {}
    for one in played.scatterings:
        assert one.acks is not None
        key = one.acks.cluster, one.acks.first
        tries.setdefault(key, []).append(one.parts[0][1] in there)
    assert all(sum(made) <= 1 for made in tries.values())
    assert any(len(made) > 1 and sum(made) == 1 for made in tries.values()), "no driver came back"


def test_readers_in_total_order_begin_and_give_it_all_within_stamps(played: History) -> None:
    ends = [reading.rows[-1] for reading in played.readings if reading.rows]
    assert len(ends) > 2, "nobody began anew"
    stamps = [row.stamp for reading in played.readings for row in reading.rows]
    assert len(set(stamps)) < len(stamps) / 2


def test_only_what_was_staged_may_have_the_stamp_of_what_lies_before_it() -> None:
    def found(*records: Record) -> list[str]:
        return list(RisingStamps().check(History(drained={0: list(records)})))

    def staged(offset: int, stamp: int) -> Record:
        return Record(offset, (b"%d" % offset,), stamp, ((STAGED, 0xFFFFFFFF),))

    def produced(offset: int, stamp: int) -> Record:
        return Record(offset, (b"%d" % offset,), stamp, ((("producer", 1, 0), 0),))

    assert found(staged(0, 5), staged(1, 5), produced(2, 6)) == []
    fault = "partition 0: the stamp falls at offset 1"
    assert found(staged(0, 5), staged(1, 4)) == [fault]
    assert found(staged(0, 5), produced(1, 5)) == [fault]
    assert found(produced(0, 5), staged(1, 5)) == [fault]
