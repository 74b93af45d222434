"""Readers that merge micro-batches: cut anywhere, in rooms of any size, they give one order."""

from __future__ import annotations

import random

import pytest

from weir_lab.sim.mutants import order
from weir_lab.sim.mutants.planting import Mutant
from weir_lab.sim.scenarios.merges import MergingReader, Topic, play_merges
from weir_lab.sim.shape import NODE

_SEEDS = range(250)


def test_all_readers_give_the_one_order_and_none_waits_for_ever() -> None:
    outcomes = [play_merges(seed, NODE) for seed in _SEEDS]
    assert [one.report() for one in outcomes if one.violations] == []


@pytest.mark.parametrize(
    "mutant",
    [
        order.the_register_is_raised_at_the_first_batch,
        order.a_full_room_waits_for_its_own_stamp,
        order.a_full_room_waits_for_nobody_in_front,
    ],
    ids=lambda mutant: str(mutant.name),
)
def test_without_a_part_of_the_rule_they_differ_or_wait_for_ever(mutant: Mutant) -> None:
    with mutant.planted():
        broken = {p for seed in range(10) for p, _ in play_merges(seed, NODE).violations}
    assert broken & mutant.breaks


def test_what_could_go_wrong_happens() -> None:
    joined = ended = repeated = cut = anew = 0
    for seed in _SEEDS:
        dice = random.Random(seed)
        topic = Topic(dice)
        reader = MergingReader(topic, dice)
        reader.read()
        assert reader.rows == topic.order
        joined += any(topic.logs[partition] for partition in topic.floors)
        ended += bool(topic.ends)
        repeated += topic.repeats > 1
        cut += reader.cuts > 0
        anew += reader.anew > 0
    assert min(joined, ended, repeated, cut, anew) > 20, (joined, ended, repeated, cut, anew)


def test_the_same_seed_is_the_same_run() -> None:
    assert play_merges(3, NODE).trace_hash == play_merges(3, NODE).trace_hash
    assert play_merges(3, NODE).trace_hash != play_merges(4, NODE).trace_hash
