"""Groups are spread evenly, and moved no more than it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.metadata.placement import (
    Load,
    Placement,
    check_replicas,
    evened,
    filled,
    moved_off,
    place,
    replicas_of,
)
from weir.errors import BadRequest
from weir.model.ids import node_of, voter_of

NODES = st.integers(1, 6).map(lambda count: [*range(1, count + 1)])


def newcomer(group: int, node: int) -> int:
    return voter_of(node)


def loads(placements: Mapping[int, Placement]) -> tuple[Counter[int], Counter[int]]:
    held: Counter[int] = Counter()
    led: Counter[int] = Counter()
    for placement in placements.values():
        held.update(map(node_of, placement))
        led[node_of(placement[0])] += 1
    return held, led


def spread(counts: Counter[int], nodes: list[int]) -> int:
    return max(counts[node] for node in nodes) - min(counts[node] for node in nodes)


@given(nodes=NODES, topics=st.lists(st.integers(1, 40), max_size=6), replicas=st.integers(1, 5))
def test_leaders_and_replicas_are_spread_evenly(
    nodes: list[int], topics: list[int], replicas: int
) -> None:
    load, placements = Load(), {}
    for topic, partitions in enumerate(topics, 1):
        groups = [topic << 16 | p for p in range(partitions)]
        placements |= place(groups, replicas_of(replicas, len(nodes)), nodes, load)
    held, led = loads(placements)
    assert (held, led) == (Counter(load.held), Counter(load.led))
    for placement in placements.values():
        assert len(set(map(node_of, placement))) == min(replicas, len(nodes))
    assert spread(led, nodes) <= 1
    assert spread(held, nodes) <= 2


def test_three_partitions_on_three_nodes_are_led_by_one_each() -> None:
    found = place([65536, 65537, 65538], 3, [1, 2, 3], Load())
    assert sorted(node_of(placement[0]) for placement in found.values()) == [1, 2, 3]


@given(nodes=NODES.filter(lambda nodes: len(nodes) > 1), count=st.integers(1, 60), data=st.data())
def test_a_node_loses_all_it_has_and_others_take_it(
    nodes: list[int], count: int, data: st.DataObject
) -> None:
    load = Load()
    placements = place([65536 + n for n in range(count)], replicas_of(0, len(nodes)), nodes, load)
    gone = data.draw(st.sampled_from(nodes))
    left = [node for node in nodes if node != gone]
    moved = moved_off(gone, placements, left, load, newcomer)
    after = {**placements, **moved}
    held, led = loads(after)
    assert (held[gone], led[gone]) == (0, 0)
    assert held == Counter({n: c for n, c in load.held.items() if c})
    assert all(len(set(p)) == min(3, len(left)) for p in after.values())
    untouched = [g for g, p in placements.items() if gone not in map(node_of, p)]
    assert not set(untouched) & moved.keys()


def test_a_group_that_is_nowhere_else_stays() -> None:
    load = Load()
    placements = place([65536], 1, [1], load)
    assert moved_off(1, placements, [], load, newcomer) == {}


@given(before=NODES, more=st.integers(1, 3), count=st.integers(1, 60))
def test_new_nodes_get_their_share(before: list[int], more: int, count: int) -> None:
    load = Load()
    placements = place([65536 + n for n in range(count)], replicas_of(0, len(before)), before, load)
    nodes = [*before, *range(before[-1] + 1, before[-1] + 1 + more)]
    after = {**placements, **filled(placements, {}, nodes, load, newcomer)}
    assert all(len(p) == min(3, len(nodes)) for p in after.values())
    rounds = 0
    while changes := evened(after, nodes, load, newcomer):
        after |= changes
        rounds += 1
        assert rounds < 20
    held, led = loads(after)
    assert held == Counter({n: c for n, c in load.held.items() if c})
    assert spread(led, nodes) <= 2
    assert spread(held, nodes) <= 2


def test_what_is_even_is_left_alone() -> None:
    load = Load()
    placements = place([65536 + n for n in range(30)], 3, [1, 2, 3, 4], load)
    assert evened(placements, [1, 2, 3, 4], load, newcomer) == {}
    assert filled(placements, {}, [1, 2, 3, 4], load, newcomer) == {}


def test_who_comes_back_to_a_group_is_another_voter() -> None:
    load = Load()
    placements = place([65536], 1, [1], load)
    moved = filled(placements, {65536: 2}, [1, 2], load, lambda _, node: voter_of(node, 7))
    assert moved == {65536: (voter_of(1), voter_of(2, 7))}


@pytest.mark.parametrize(("asked", "nodes"), [(4, 3), (6, 9)])
def test_more_replicas_than_nodes_are_refused(asked: int, nodes: int) -> None:
    with pytest.raises(BadRequest, match=f"{asked} replicas"):
        check_replicas(asked, nodes)
    check_replicas(0, nodes)
    check_replicas(3, nodes)
