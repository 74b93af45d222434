"""Readers that merge micro-batches: cut anywhere, in rooms of any size, they give one order."""

from __future__ import annotations

import random

from weir_lab.sim.scenarios.merges import MergingReader, Topic, play_merges
from weir_lab.sim.shape import NODE

_SEEDS = range(250)


def test_all_readers_give_the_one_order_and_none_waits_for_ever() -> None:
    outcomes = [play_merges(seed, NODE) for seed in _SEEDS]
    assert [one.report() for one in outcomes if one.violations] == []


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
