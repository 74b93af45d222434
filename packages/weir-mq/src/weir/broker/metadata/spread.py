"""How the voters of a group are spread over the core's BrokerSets: decided from the state alone.

With three sets or more, each group keeps a majority without any one of them. With two, voters lie
in the home set, as far as it has nodes, and the other set may be lost; it has as many learners as
there are voters, which go on when home is lost for good. One set makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from weir.model.ids import REGISTRY_GROUP, node_of

#: With fewer replicas no set can be missed: two need both, and one is all.
_REPLICAS_TO_MISS_ONE = 3


class Declared(NamedTuple):
    """What the topology says of nodes: of which core set each is, by its number, and which set is
    home (None: no topology is applied), and the version of the topology.
    """

    sets: Mapping[int, int]
    home: int | None
    version: int = 0


#: Of a system without a topology.
UNDECLARED = Declared({}, None)


class Rule(Enum):
    """What placements keep to."""

    NONE = "none"  # one set, or not all nodes are known to be of one
    HOME = "home"  # two sets
    APART = "apart"  # three or more


class Spread:
    """Which nodes may vote together. `set_of` has the id of the BrokerSet of each node that has
    ever run and was not removed; `active` are those of them that may be given groups.
    """

    __slots__ = ("_home", "_is_limited", "_set_of", "_sizes", "rule")

    def __init__(
        self,
        set_of: Mapping[int, int] | None = None,
        active: Collection[int] = (),
        home: int | None = None,
    ) -> None:
        """Spread over the sets of these nodes. `home` matters where there are two: if it is none
        of them, the set of the lowest node is home.
        """
        self._set_of = dict(set_of or {})
        #: How many active nodes each set has.
        self._sizes = Counter(self._set_of[node] for node in active if node in self._set_of)
        sets = {*self._set_of.values()}
        self._home = home if home in sets else self._set_of[min(self._set_of)] if sets else 0
        self.rule = Rule.NONE
        if len(sets) == 2 and self._home in self._sizes:
            self.rule = Rule.HOME
        elif len(sets) > 2 and len(self._sizes) > 1:
            self.rule = Rule.APART
        #: While but two sets have nodes to use, no number of replicas survives the loss of one.
        self._is_limited = self.rule is Rule.APART and len(self._sizes) > 2

    @property
    def home(self) -> int:
        """The id of the home set, where there are two."""
        return self._home

    def limit(self, replicas: int) -> int:
        """Return how many of so many replicas a group gets, so that it can miss any one set."""
        if not self._is_limited:
            return replicas
        for fewer in range(replicas, _REPLICAS_TO_MISS_ONE, -1):
            most = _most(fewer)
            if sum(min(size, most) for size in self._sizes.values()) >= fewer:
                return fewer
        return min(replicas, _REPLICAS_TO_MISS_ONE)

    def rank(self, node: int, among: Iterable[int]) -> int:
        """Return how well a node goes with others: the lower, the better."""
        if self.rule is Rule.HOME:
            return self._of(node) != self._home
        if self.rule is Rule.APART:
            return sum(self._of(other) == self._of(node) for other in among)
        return 0

    def leading(self, nodes: Sequence[int]) -> Sequence[int]:
        """Return those of some nodes that are to lead."""
        if self.rule is not Rule.HOME:
            return nodes
        return [node for node in nodes if self._of(node) == self._home] or nodes

    def misplaced(self, nodes: Sequence[int]) -> list[int]:
        """Return which nodes of a group are not where the rule wants them: one of those has to go
        for each that `excess` counts.
        """
        if self.rule is Rule.HOME:
            return [node for node in nodes if self._of(node) != self._home]
        if self.rule is Rule.APART:
            counts, most = Counter(map(self._of, nodes)), _most(len(nodes))
            return [node for node in nodes if counts[self._of(node)] > most]
        return []

    def excess(self, nodes: Sequence[int]) -> int:
        """Return how many nodes of a group would have to be others."""
        if self.rule is Rule.APART:
            most = _most(len(nodes))
            return sum(max(n - most, 0) for n in Counter(map(self._of, nodes)).values())
        return len(self.misplaced(nodes))

    def away(self, nodes: Iterable[int]) -> list[int]:
        """Return those of some nodes that are to have a copy of each group without voting."""
        if self.rule is not Rule.HOME:
            return []
        return [node for node in nodes if self._of(node) != self._home]

    def _of(self, node: int) -> int:
        return self._set_of.get(node, self._home)


def followed(
    placements: Mapping[int, tuple[int, ...]],
    learners: Mapping[int, tuple[int, ...]],
    nodes: Sequence[int],
    held: Mapping[int, int],
    newcomer: Callable[[int, int], int],
    spread: Spread,
) -> dict[int, tuple[int, ...]]:
    """Return the learners of the groups that are to have others than they have: as many as voters,
    as far as there are `nodes` away, those that hold the fewest groups first. Present learners
    stay.
    """
    away, counts = spread.away(nodes), Counter(held)
    found: dict[int, tuple[int, ...]] = {}
    for group, voters in placements.items():
        if group == REGISTRY_GROUP:
            continue  # every node has it
        before = learners.get(group, ())
        voting = set(map(node_of, voters))
        free = [node for node in away if node not in voting]
        kept = [one for one in before if node_of(one) in free][: len(voters)]
        free = [node for node in free if node not in map(node_of, kept)]
        while free and len(kept) < len(voters):
            best = min(free, key=lambda node: (counts[node], node))
            free.remove(best)
            counts[best] += 1
            kept.append(newcomer(group, best))
        if tuple(kept) != before:
            found[group] = tuple(kept)
    return found


def _most(replicas: int) -> int:
    """Return how many of so many replicas one set may hold, and be missed."""
    return max((replicas - 1) // 2, 1)


#: Of a system with one set.
ONE_SET = Spread()
