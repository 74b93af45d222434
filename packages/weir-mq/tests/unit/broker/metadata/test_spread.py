"""Groups are spread over BrokerSets: none of three can stop one, of two the home set has all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.metadata.placement import (
    REPLICAS_DEFAULT,
    Load,
    Placement,
    check_replicas,
    evened,
    filled,
    moved_off,
    place,
    replicas_of,
    respread,
)
from weir.broker.metadata.spread import Rule, Spread
from weir.errors import BadRequest
from weir.model.ids import node_of, voter_of

#: How many nodes each of the sets 1, 2, ... has.
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)
HOME = 1


def newcomer(group: int, node: int) -> int:
    return voter_of(node)


def sets_of(sizes: Sequence[int]) -> dict[int, int]:
    members = [number for number, size in enumerate(sizes, 1) for _ in range(size)]
    return dict(enumerate(members, 1))


def nodes_of(placement: Placement) -> list[int]:
    return [*map(node_of, placement)]


@dataclass
class System:
    """Nodes of sets, and groups on them, that are placed as the registry's leader does it."""

    sets: dict[int, int]
    draining: set[int] = field(default_factory=set)
    placements: dict[int, Placement] = field(default_factory=dict)
    wanted: dict[int, int] = field(default_factory=dict)
    load: Load = field(default_factory=Load)

    @property
    def active(self) -> list[int]:
        return [node for node in self.sets if node not in self.draining]

    @property
    def spread(self) -> Spread:
        return Spread(self.sets, self.active, HOME)

    def add(self, count: int, replicas: int) -> None:
        first = max(self.placements, default=65535) + 1
        groups = [*range(first, first + count)]
        most = self.spread.limit(replicas_of(replicas, len(self.active)))
        self.placements |= place(groups, most, self.active, self.load, self.spread)
        self.wanted |= dict.fromkeys(groups, replicas or REPLICAS_DEFAULT)

    def settle(self) -> int:
        """Rebalance until nothing changes; return how many replicas were copied."""
        copies = 0
        for _ in range(50):
            before = dict(self.placements)
            for node in self.draining:
                self._take(moved_off(node, *self._all(), self.spread))
            groups, *rest = self._all()
            self._take(respread(groups, self.wanted, *rest, self.spread))
            groups, *rest = self._all()
            self._take(filled(groups, self.wanted, *rest, self.spread))
            self._take(evened(*self._all(), self.spread))
            if self.placements == before:
                return copies
            copies += sum(
                len({*nodes_of(to)} - {*nodes_of(before[group])})
                for group, to in self.placements.items()
            )
        raise AssertionError("it never comes to rest")

    def _all(self):  # type: ignore[no-untyped-def]
        return dict(self.placements), self.active, self.load, newcomer

    def _take(self, found: Mapping[int, Placement]) -> None:
        self.placements |= found

    def check(self) -> None:
        """Raise unless the rule holds for every group, and loads are counted right."""
        held: Counter[int] = Counter()
        for group, placement in self.placements.items():
            nodes = nodes_of(placement)
            held.update(nodes)
            assert nodes, "a group is nowhere"
            assert len({*nodes}) == len(nodes), "a node has a group twice"
            self._check_group(nodes, self.wanted[group])
        assert held == Counter({n: c for n, c in self.load.held.items() if c})

    def _check_group(self, nodes: list[int], wanted: int) -> None:
        active, usable = self.active, {self.sets[node] for node in self.active}
        counts = Counter(self.sets[node] for node in nodes)
        if len({*self.sets.values()}) == 2 and HOME in usable:
            home = [node for node in active if self.sets[node] == HOME]
            assert counts[HOME] >= min(len(home), wanted), "a voter is away, and home has room"
            assert self.sets[nodes[0]] == HOME, "a group is to be led away from home"
        if len(usable) > 2 and len(nodes) >= 3:
            rest = min(len(nodes) - count for count in counts.values())
            assert 2 * rest > len(nodes), f"{nodes} cannot miss a set: {counts}"
        if len(usable) > 2:
            assert len(nodes) >= min(wanted, 3), "three sets hold three replicas"
        else:
            assert len(nodes) == min(wanted, len(active)), "a replica is missing"


@given(sizes=SIZES, topics=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), max_size=4))
def test_new_groups_keep_to_the_rule_and_stay(
    sizes: list[int], topics: list[tuple[int, int]]
) -> None:
    system = System(sets_of(sizes))
    for count, replicas in topics:
        system.add(count, replicas)
    system.check()
    system.load.led.clear()  # who leads may change, who holds does not
    before = {group: {*nodes_of(placement)} for group, placement in system.placements.items()}
    groups = dict(system.placements)
    assert not respread(groups, system.wanted, system.active, system.load, newcomer, system.spread)
    assert not filled(groups, system.wanted, system.active, system.load, newcomer, system.spread)
    assert before == {group: {*nodes_of(to)} for group, to in system.placements.items()}


STEPS = st.lists(
    st.tuples(st.sampled_from(("join", "drain", "remove", "activate")), st.integers(0, 9)),
    max_size=8,
)


@given(sizes=SIZES, steps=STEPS, replicas=st.integers(0, 5))
def test_whatever_joins_and_leaves_the_rule_is_kept(
    sizes: list[int], steps: list[tuple[str, int]], replicas: int
) -> None:
    system = System(sets_of(sizes))
    system.add(3, replicas)
    for verb, drawn in steps:
        nodes = sorted(system.sets)
        node = nodes[drawn % len(nodes)]
        if verb == "join":
            system.sets[nodes[-1] + 1] = drawn % 5 + 1
        elif verb == "activate":
            system.draining.discard(node)
        elif verb == "drain" and system.active != [node]:
            system.draining.add(node)
        elif verb == "remove" and node in system.draining and not system.load.held.get(node):
            del system.sets[node]
            system.draining.discard(node)
        system.settle()
        system.check()
        for gone in system.draining:
            assert not system.load.held.get(gone), "a node could not be drained"


@given(nodes=st.integers(3, 6), count=st.integers(1, 20), more=st.integers(1, 3))
def test_a_third_set_moves_no_more_than_it_takes(nodes: int, count: int, more: int) -> None:
    """Of three replicas in one set two move: one to each of the sets that come."""
    system = System(dict.fromkeys(range(1, nodes + 1), 1))
    system.add(count, 0)
    system.settle()
    system.sets[nodes + 1] = 2
    assert system.settle() == 0, "a second set is away from home, and gets nothing"
    system.sets |= dict.fromkeys(range(nodes + 2, nodes + 2 + more), 3)
    moved = respread(
        dict(system.placements), system.wanted, system.active, system.load, newcomer, system.spread
    )
    assert moved.keys() == system.placements.keys()
    for group, to in moved.items():
        assert len({*nodes_of(to)} & {*nodes_of(system.placements[group])}) == 1
    system.placements |= moved
    system.settle()
    system.check()


def test_loads_are_evened_only_as_far_as_sets_allow() -> None:
    """The only nodes of two sets hold every group, and the four of the third a quarter each."""
    system = System(sets_of([1, 1, 4]))
    system.add(12, 0)
    system.settle()
    system.check()
    assert {node: system.load.held[node] for node in system.sets} == {
        1: 12, 2: 12, 3: 3, 4: 3, 5: 3, 6: 3
    }  # fmt: skip


def test_the_home_set_leads_though_others_vote() -> None:
    system = System({1: HOME, 2: HOME, 3: 2, 4: 2})
    system.add(9, 3)
    system.settle()
    system.check()
    assert {node_of(to[0]) for to in system.placements.values()} == {1, 2}


def test_a_set_that_is_drained_for_a_while_costs_no_replica() -> None:
    """Two of three sets cannot keep the rule: so groups keep their replicas, and come back."""
    system = System({1: 1, 2: 1, 3: 2, 4: 2, 5: 3})
    system.add(8, 3)
    system.draining.add(5)
    system.settle()
    assert {len(to) for to in system.placements.values()} == {3}
    system.draining.clear()
    system.settle()
    system.check()
    assert all({system.sets[n] for n in nodes_of(to)} == {1, 2, 3}
               for to in system.placements.values())  # fmt: skip


def test_few_replicas_are_left_where_more_could_not_miss_a_set() -> None:
    spread = Spread(sets := sets_of([4, 1, 1]), sets)
    assert [spread.limit(asked) for asked in range(1, 6)] == [1, 2, 3, 3, 3]
    with pytest.raises(BadRequest, match="Ask for 3, or add nodes to other sets"):
        check_replicas(5, 6, spread)
    check_replicas(3, 6, spread)
    check_replicas(0, 6, spread)
    spread = Spread(sets := sets_of([2, 2, 1]), sets)
    assert [spread.limit(asked) for asked in range(1, 6)] == [1, 2, 3, 3, 5]
    spread = Spread(sets := sets_of([1, 1, 1, 1]), sets)
    assert spread.limit(4) == 4
    for sizes in ([6], [3, 3]):
        sets = sets_of(sizes)
        assert Spread(sets, sets).limit(5) == 5


def test_replicas_go_that_no_set_can_take() -> None:
    """Five voters of one set, beside which two sets come with a node each: three are left."""
    system = System(dict.fromkeys(range(1, 6), 1))
    system.add(1, 5)
    system.sets |= {6: 2, 7: 3}
    assert system.settle() == 2
    (placement,) = system.placements.values()
    assert sorted(system.sets[node] for node in nodes_of(placement)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("sets", "active", "home", "rule"),
    [
        ({}, [], None, Rule.NONE),
        ({1: 7, 2: 7}, [1, 2], 7, Rule.NONE),
        ({1: 7, 2: 8}, [1, 2], 8, Rule.HOME),
        ({1: 7, 2: 8}, [2], 7, Rule.NONE),
        ({1: 7, 2: 8, 3: 9}, [1, 2, 3], 7, Rule.APART),
        ({1: 7, 2: 8, 3: 9}, [1, 2], 7, Rule.APART),
        ({1: 7, 2: 8, 3: 9}, [1], 7, Rule.NONE),
    ],
)
def test_how_many_sets_there_are_decides(
    sets: dict[int, int], active: list[int], home: int | None, rule: Rule
) -> None:
    assert Spread(sets, active, home).rule is rule


@pytest.mark.parametrize("home", [None, 99])
def test_without_a_home_the_set_of_the_lowest_node_is_home(home: int | None) -> None:
    spread = Spread({2: 5, 1: 6, 3: 5}, [1, 2, 3], home)
    assert [spread.rank(node, ()) for node in (1, 2, 3)] == [0, 1, 1]
    assert [*spread.leading([3, 2, 1])] == [1]
    assert [*spread.leading([3, 2])] == [3, 2]
