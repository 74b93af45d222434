"""What is wrong with a topology, against simple checks of the same."""

from __future__ import annotations

from itertools import product

import msgspec
from hypothesis import given, settings

from rigs.topologies import COMPANY, TAGS, TOPICS, row, topologies, trees
from weir.topology.checks import check, losses
from weir.topology.file import read
from weir.topology.sets import SetRow, TopicTags, Topology


def is_acyclic(topology: Topology) -> bool:
    """Whether all sets can be taken away, each once none of its uppers is left."""
    left = {one.id: {*one.upper} for one in topology.sets}
    while ready := [id for id, upper in left.items() if not upper & left.keys()]:
        for id in ready:
            del left[id]
    return not left


def holds(one: SetRow, topic: str, tag: str) -> bool:
    """Whether a set holds messages of a topic with a tag; `other` is one that nobody names."""
    rows = one.tags
    if rows is None:
        return True
    return any(r.topic == topic and (r.tags is None or tag in r.tags) for r in rows)


@settings(max_examples=60)
@given(topologies())
def test_what_passes_is_a_tree_whose_uppers_hold_all_that_is_pulled(topology: Topology) -> None:
    sets = {one.id: one for one in topology.sets}
    is_sound = is_acyclic(topology)
    tiers = {one.level for one in topology.sets if one.tier == "tandem"} | {0}
    for one in topology.sets:
        if one.tier == "access":
            is_sound &= one.level <= max(tiers) + 1
        for upper in (sets[id] for id in one.upper):
            is_sound &= upper.tier != "access" and upper.level < one.level
            messages = product((*TOPICS, "default/other"), (*TAGS, "other"))
            is_sound &= all(holds(upper, *m) for m in messages if holds(one, *m))
    assert (check(topology) == []) == is_sound


def test_a_set_of_all_topics_holds_none_of_the_brokers() -> None:
    core, every = row(0), row(1, "tandem", (0,), 1)
    audit = (TopicTags("_weir/audit"), TopicTags("_weirs/a"))
    below = msgspec.structs.replace(row(2, "access", (1,), 2), tags=audit)
    assert [one.tags_of("_weir/audit") is not None for one in (core, every, below)] == [
        True, False, True,
    ]  # fmt: skip
    (problem,) = check(Topology(0, (core, every, below)))
    assert "its upper set1 lacks topic _weir/audit" in problem.text
    named = msgspec.structs.replace(every, tags=audit)
    assert not check(Topology(0, (core, named, below)))


def test_each_upper_holds_what_is_pulled_and_not_the_preferred_one_alone() -> None:
    less = msgspec.structs.replace(row(4, "tandem", (0,), 1), tags=())
    sets = (row(0), row(3, "tandem", (0,), 1), less, row(5, "access", (3, 4), 2))
    (found,) = check(Topology(0, sets))
    assert "its upper set4 lacks topics" in found.text


@settings(max_examples=25)
@given(trees())
def test_what_is_right_passes(topology: Topology) -> None:
    assert check(topology) == []


def reaches(topology: Topology, id: int, lost: int) -> bool:
    one = topology.by_id(id)
    if one is None or id == lost:
        return False
    return one.tier == "core" or any(reaches(topology, above, lost) for above in one.upper)


@settings(max_examples=25)
@given(trees())
def test_losses_that_are_not_survived_are_told(topology: Topology) -> None:
    core = len(topology.core())
    expected = []
    for at, lost in enumerate(topology.sets):
        others = (one.id for one in topology.sets if one.id != lost.id)
        is_cut = not all(reaches(topology, id, lost.id) for id in others)
        if (core < 3 and lost.tier == "core") or is_cut:
            expected.append(at)
    found = losses(topology)
    assert [one.at for one in found] == expected
    assert all(one.is_warning for one in found)


def test_what_lies_below_a_loss_is_lost_as_well() -> None:
    cores = (row(0), row(1), row(2))
    below = (row(3, "tandem", (0,), 1), row(4, "tandem", (3,), 2), row(5, "access", (4,), 3))
    core, first, second = losses(Topology(0, (*cores, *below)))
    assert "it cuts set3, set4, set5 off" in core.text
    assert "it cuts set4, set5 off" in first.text
    assert "it cuts set5 off" in second.text


def test_losses_are_told_in_words() -> None:
    topology = read(COMPANY).topology
    assert topology is not None
    (found,) = losses(topology)
    assert (found.at, found.key) == (3, "upper")
    assert "cuts hangzhou off from the core" in found.text
    alone = Topology(0, (row(0),))
    two = Topology(1, (row(0), row(1)))
    assert "the only core set" in losses(alone)[0].text
    away, home = losses(two)
    assert "no copy elsewhere" in away.text
    assert "all votes are at home" in home.text


def test_a_topology_is_these_bytes() -> None:
    """Level 3: the registry, its checkpoints and the wire have exactly this."""
    topology = read(COMPANY).topology
    stored = (
        "920195"
        "9a01a76265696a696e67a4636f726500a56e6f727468a774656c65636f6d919301a831302e302e302e31cd1a90"
        "c09300ce0001518000" "90"
        "9a02a66d6f62696c65a4636f726500a0a0919302a831302e302e302e32cd1a90c09300ce000151800090"
        "9a03a6756e69636f6da4636f726500a0a0919303a831302e302e302e33cd1a90c09300ce000151800090"
        "9a04a87368616e67686169a674616e64656d01a0a0919304a831302e302e302e34cd1a90"
        "9292ae64656661756c742f6f726465727392a868616e677a686f75a092ab73686f702f707269636573c0"
        "9300ce0001518000920201"
        "9a05a868616e677a686f75a661636365737302a0a0929305a7666430303a3a35cd1a909306a5686f737436cd1a90"
        "9192ae64656661756c742f6f726465727391a868616e677a686f7593cf0000000280000000cd1c20059104"
    )  # fmt: skip
    assert msgspec.msgpack.encode(topology).hex() == stored
    assert msgspec.msgpack.decode(bytes.fromhex(stored), type=Topology) == topology
