"""Simulated clients that scatter: that there is something to judge, and that it is judged."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from weir.broker.partition.partition import Partition
from weir.model.ids import group_of
from weir.order.clock import HighestStamp, stamp_at
from weir.protocol.client import messages as m
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.witness import groups_of
from weir.testing.simulator.world import EPOCH_MS, MS, SECOND, World
from weir_lab.sim.checkers.judge import violations
from weir_lab.sim.checkers.one_order import AllOrNone
from weir_lab.sim.history import Ack, History, Scattering
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.publishers.scatterers import all_decided, highest_given, highest_stamp
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.run import Run, run_seed
from weir_lab.sim.shape import CROWDED, NODE, UNORDERED, machine

SEEDS = int(os.environ.get("WEIR_SCATTER_WORLDS", "2"))
SCATTERED = replace(
    UNORDERED, ordered=(1,), scatterers=(3,), retentions=(0,), rots=(0,), grows=(False,), absent=0.0
)


@pytest.fixture(scope="module")
def played() -> History:
    run = Run(3, SCATTERED)
    run.play()
    return run.history


def test_all_that_is_scattered_is_there_once_and_some_of_it_never_was(played: History) -> None:
    assert violations(played) == []
    confirmed = [one for one in played.scatterings if one.stamp]
    assert len(confirmed) > 10
    there = Counter(
        value
        for records in played.drained.values()
        for record in records
        for value in record.values
    )
    assert all(there[value] == 1 for one in confirmed for _, value in one.parts)
    assert any(played.voids.values()), "nothing was ever aborted"


def test_they_go_to_several_partitions_and_ack_what_made_them_do_so(played: History) -> None:
    confirmed = [one for one in played.scatterings if one.stamp]
    assert any(len({partition for partition, _ in one.parts}) > 1 for one in confirmed)
    assert any(one.acks is not None for one in confirmed)


def test_readers_in_total_order_have_all_of_it_side_by_side(played: History) -> None:
    for reading in played.readings:
        stamps = [row.stamp for row in reading.rows]
        assert stamps == sorted(stamps)
    given = {row.value for reading in played.readings for row in reading.rows}
    one = max((one for one in played.scatterings if one.stamp), key=lambda one: len(one.parts))
    assert {value for _, value in one.parts} <= given


@pytest.mark.parametrize("seed", range(2, 2 + 3 * SEEDS, 3))
def test_scattering_worlds_keep_their_promises(seed: int) -> None:
    outcome = run_seed(seed, CROWDED)
    assert not outcome.violations, outcome.report()


def done_twice() -> History:
    history = History()
    for number in range(2):
        ack = Ack(0, "mill", 7 + number, 4, 5, 10)
        history.scatterings.append(Scattering(((0, b"%d" % number),), acks=ack))
    return history


def test_what_was_done_with_two_scatterings_is_found(played: History) -> None:
    history = done_twice()
    history.drained = {0: played.drained[0][:1]}
    value = history.drained[0][0].values[0]
    history.scatterings[0].parts = ((0, value),)
    assert not [*AllOrNone().check(history)]
    history.scatterings[1].parts = ((0, value),)
    assert len([*AllOrNone().check(history)]) == 1


def test_what_was_refused_or_void_and_is_there_is_found(played: History) -> None:
    history = History(drained={0: played.drained[0][:1]})
    record = history.drained[0][0]
    history.scatterings = [Scattering(((0, record.values[0]),), refused=True)]
    assert len([*AllOrNone().check(history)]) == 1
    history.leave_out(0, [(record.offset, record.offset + 1)])
    assert len([*AllOrNone().check(history)]) == 2


class Beside(Client):
    """Makes a topic of its own."""

    def _create(self) -> None:
        self.ask(m.CreateTopic("beside", 1, "partition"), self._created)


def test_all_is_decided_where_each_partition_is_led_whatever_topic_was_made_first() -> None:
    world = World(1)
    brokers = BrokerSet(world, machine(world, NODE), 1)
    scene = Scene(world, brokers, History(), partitions=2)
    brokers.start()
    assert not all_decided(scene)
    for program in (Beside(scene, "beside"), Client(scene, "client")):
        assert not all_decided(scene)
        program.start()
        world.run(world.now + 5 * SECOND)
    assert all_decided(scene)
    for process in brokers.running:
        assert process.shard is not None
        for writer in process.shard.writers:
            writer.groups.pop(group_of(2, 1), None)
    assert not all_decided(scene)


def clocks_of(run: Run) -> list[HighestStamp]:
    groups = [group for process in run.brokers.running for group in groups_of(process)]
    return [one.machine.context.highest for one in groups if isinstance(one.machine, Partition)]


def test_what_a_clock_gave_or_promised_counts_though_no_message_has_that_stamp() -> None:
    run = Run(4, replace(NODE, operations=0))
    run.brokers.start()
    run.workload.start()
    run.world.run(SECOND)
    far = stamp_at(EPOCH_MS + 9_000)
    assert 0 < highest_stamp(run.scene) <= highest_given(run.scene) < far
    for clock in clocks_of(run):
        clock.promised = far
    assert highest_stamp(run.scene) < far == highest_given(run.scene)
    for clock in clocks_of(run):
        clock.stamp = far + 1
    assert highest_stamp(run.scene) < far < highest_given(run.scene)


@pytest.mark.parametrize("promised", [0, 9 * SECOND])
def test_worlds_wait_until_clocks_come_to_what_a_wrong_one_has_promised(
    promised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(9, replace(NODE, operations=0, ordered=(1,), rots=(0,)))
    produced, since = run.workload.produced, []

    def promise() -> bool:
        if produced() and not since and (clocks := clocks_of(run)):
            since.append(run.world.now)
            wall_ms = run.brokers.one.hardware.time.wall_ms()
            for clock in clocks:
                clock.promised = max(clock.promised, stamp_at(wall_ms + promised // MS))
        return bool(since)

    monkeypatch.setattr(run.workload, "produced", promise)
    run.play()
    assert promised - MS <= run.history.healed - since[0] < promised + SECOND
