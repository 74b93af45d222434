"""Which nodes hold a group: decisions alone, the same on every replica for the same state.

A group's *placement* is its voters, preferred leader first. Both leaders and replicas are spread
evenly: the node with the fewest comes first, and where several have as few, they take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.errors import BadRequest
from weir.model.ids import node_of, voter_of

REPLICAS_DEFAULT = 3
#: Any more would make every commit slower, and lose no less.
REPLICAS_MAX = 5

Placement = tuple[int, ...]
#: The id by which a group is to know a node that comes to it: of a group and a node.
Newcomer = Callable[[int, int], int]


@dataclass(slots=True)
class Load:
    """How many groups each node holds, and how many it is to lead."""

    held: dict[int, int] = field(default_factory=dict)
    led: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Load:
        """Return one to reckon with."""
        return Load(dict(self.held), dict(self.led))

    def add(self, placement: Placement, by: int = 1) -> None:
        """Count a placement, or with -1 count it no more."""
        for at, voter in enumerate(placement):
            node = node_of(voter)
            self.held[node] = self.held.get(node, 0) + by
            if not at:
                self.led[node] = self.led.get(node, 0) + by


def replicas_of(asked: int, nodes: int) -> int:
    """Return how many replicas a group gets of so many nodes that may hold it (asked 0: as a
    rule).
    """
    return max(min(asked or REPLICAS_DEFAULT, nodes), 1)


def check_replicas(asked: int, nodes: int) -> None:
    """Raise `BadRequest` unless so many nodes can hold as many replicas as were asked for."""
    if asked > REPLICAS_MAX:
        raise BadRequest(f"{asked} replicas: give {REPLICAS_MAX} at most", REPLICAS_MAX)
    if nodes and asked > nodes:  # none is known for a moment when a set is founded
        raise BadRequest(
            f"{asked} replicas, and only {nodes} of the nodes can hold one: ask for fewer, or add "
            "a node",
            nodes,
        )


def place(
    groups: Sequence[int],
    replicas: int,
    nodes: Sequence[int],
    load: Load,
) -> dict[int, Placement]:
    """Return placements of new `groups`, and count them in `load`; `nodes` are those to use."""
    found: dict[int, Placement] = {}
    order = sorted(nodes)
    for turn, group in enumerate(groups):
        at = (group + turn) % len(order)
        turned = order[at:] + order[:at]
        leader = min(turned, key=lambda node: load.led.get(node, 0))
        others = [node for node in turned if node != leader]
        others.sort(key=lambda node: load.held.get(node, 0))
        chosen = [leader, *others[: replicas - 1]]
        placement = tuple(voter_of(node) for node in chosen)
        load.add(placement)
        found[group] = placement
    return found


def moved_off(
    node: int,
    placements: Mapping[int, Placement],
    nodes: Sequence[int],
    load: Load,
    newcomer: Newcomer,
) -> dict[int, Placement]:
    """Return new placements of the groups on `node`, none of which holds it.

    Another of `nodes` takes its place, where there is one that does not hold the group yet; else
    the group has a replica less. A group that is nowhere else stays.
    """
    found: dict[int, Placement] = {}
    for group, placement in placements.items():
        if node not in map(node_of, placement):
            continue
        kept = [voter for voter in placement if node_of(voter) != node]
        holders = set(map(node_of, placement))
        free = [other for other in sorted(nodes) if other not in holders]
        if free:
            kept.append(newcomer(group, min(free, key=lambda other: load.held.get(other, 0))))
        if not kept:
            continue
        found[group] = _change(load, placement, _led_evenly(kept, load))
    return found


def filled(
    placements: Mapping[int, Placement],
    wanted: Mapping[int, int],
    nodes: Sequence[int],
    load: Load,
    newcomer: Newcomer,
) -> dict[int, Placement]:
    """Return placements of the groups that have fewer replicas than are `wanted`, with more of
    `nodes` in them, as far as there are any.
    """
    found: dict[int, Placement] = {}
    for group, placement in placements.items():
        holders = set(map(node_of, placement))
        free = [node for node in sorted(nodes) if node not in holders]
        missing = min(wanted.get(group, REPLICAS_DEFAULT) - len(holders), len(free))
        if missing <= 0:
            continue
        free.sort(key=lambda node: load.held.get(node, 0))
        more = tuple(newcomer(group, node) for node in free[:missing])
        found[group] = _change(load, placement, placement + more)
    return found


def evened(
    placements: Mapping[int, Placement], nodes: Sequence[int], load: Load, newcomer: Newcomer
) -> dict[int, Placement]:
    """Return changes after which no node holds, or is to lead, two groups more than another.

    Each move costs a copy of a group, so there are no more of them than it takes.
    """
    found = _replicas_evened(placements, nodes, load, newcomer)
    found |= _leaders_evened({**placements, **found}, nodes, load)
    return found


def _replicas_evened(
    placements: Mapping[int, Placement], nodes: Sequence[int], load: Load, newcomer: Newcomer
) -> dict[int, Placement]:
    found: dict[int, Placement] = {}
    for group, placement in placements.items():
        holders = [node_of(voter) for voter in placement]
        most = max(holders, key=lambda node: load.held.get(node, 0))
        free = [node for node in sorted(nodes) if node not in holders]
        if not free:
            continue
        least = min(free, key=lambda node: load.held.get(node, 0))
        if load.held.get(most, 0) - load.held.get(least, 0) < 2:
            continue
        new = newcomer(group, least)
        changed = tuple(new if node_of(v) == most else v for v in placement)
        found[group] = _change(load, placement, changed)
    return found


def _leaders_evened(
    placements: Mapping[int, Placement], nodes: Iterable[int], load: Load
) -> dict[int, Placement]:
    found: dict[int, Placement] = {}
    usable = set(nodes)
    for group, placement in placements.items():
        leader = node_of(placement[0])
        others = [voter for voter in placement if node_of(voter) in usable]
        if not others:
            continue
        better = min(others, key=lambda voter: load.led.get(node_of(voter), 0))
        if load.led.get(leader, 0) - load.led.get(node_of(better), 0) < 2:
            continue
        changed = (better, *(voter for voter in placement if voter != better))
        found[group] = _change(load, placement, changed)
    return found


def _led_evenly(voters: list[int], load: Load) -> Placement:
    """Return voters with the one first that is to lead: the first of them, unless it is new."""
    leader = min(voters, key=lambda voter: load.led.get(node_of(voter), 0))
    return (leader, *(voter for voter in voters if voter != leader))


def _change(load: Load, before: Placement, after: Placement) -> Placement:
    load.add(before, -1)
    load.add(after)
    return after
