"""The nodes of a BrokerSet, and which of them hold each group: replicated with the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from weir.broker.metadata.placement import Load, Placement, place, replicas_of
from weir.broker.records.control import (
    GroupsPlaced,
    GroupsSettled,
    LevelRaised,
    NodeChanged,
    NodeJoined,
    NodeRecord,
)
from weir.errors import Halted, UnknownNode
from weir.model.ids import INCARNATION_BITS, REGISTRY_GROUP, incarnation_of, node_of, voter_of
from weir.model.limits import FORMAT_LEVEL_FIRST

NodeState = Literal["active", "draining", "removed"]
_STATES = get_args(NodeState)


class NodeInfo(NamedTuple):
    """A node: where its shards listen, how many logs it has, which format level it supports, and
    what tells its folder from others that are founded under its number (0: it has not said).
    """

    id: int
    host: str
    port: int
    state: NodeState = "active"
    shards: int = 0
    level: int = FORMAT_LEVEL_FIRST
    birth: int = 0


class Nodes:
    """Nodes by id, and placements by group. Ids of nodes are never reused."""

    __slots__ = (
        "_founders",
        "_leaving",
        "_left",
        "_nodes",
        "_placements",
        "_wanted",
        "level",
        "load",
    )

    def __init__(self) -> None:
        """Begin with no node: who leads the registry first registers those it is founded by."""
        self._nodes: dict[int, NodeInfo] = {}
        self._placements: dict[int, Placement] = {}
        #: Who voted in a group when it was new, where others do now.
        self._founders: dict[int, Placement] = {}
        #: How many replicas a topic's groups are to have, where that was asked for.
        self._wanted: dict[int, int] = {}
        #: Who is still needed by a group that is on its way to others, by group.
        self._leaving: dict[int, Placement] = {}
        #: The incarnation of a node that held a group once, by (group, node).
        self._left: dict[tuple[int, int], int] = {}
        #: How groups are spread now.
        self.load = Load()
        #: The format level that everybody writes.
        self.level = FORMAT_LEVEL_FIRST

    def all(self) -> list[NodeInfo]:
        """Return all nodes that are not removed, by id."""
        return [node for _, node in sorted(self._nodes.items()) if node.state != "removed"]

    def ever(self) -> list[NodeInfo]:
        """Return all nodes that there ever were, removed ones too."""
        return list(self._nodes.values())

    def active(self) -> list[int]:
        """Return the ids of the nodes that may be given groups: those that have run once."""
        return [node.id for node in self.all() if node.state == "active" and node.shards]

    @property
    def highest(self) -> int:
        """The highest id that a node ever had."""
        return max(self._nodes, default=0)

    def get(self, node: int) -> NodeInfo | None:
        """Return a node, removed or not; None if there never was one of this id."""
        return self._nodes.get(node)

    # -- groups ------------------------------------------------------------------------------

    def voters(self, group: int) -> Placement:
        """Return who is to vote in a group, its preferred leader first; () if it is nowhere."""
        return self._placements.get(group, ())

    def founders(self, group: int) -> Placement:
        """Return who voted in a group when it was new: what it is opened with where it is."""
        return self._founders.get(group) or self.voters(group)

    def learners(self, group: int) -> Placement:
        """Return who is to have a copy of a group without voting: of the registry, every node."""
        if group != REGISTRY_GROUP:
            return ()
        voting = set(map(node_of, self.voters(group)))
        return tuple(self.voter(group, node.id) for node in self.all() if node.id not in voting)

    def voter(self, group: int, node: int) -> int:
        """Return the id by which a group knows a node, or will know it when the node comes.

        Everybody has the registry, so nobody ever comes to it anew.
        """
        for voter in (*self.voters(group), *self.leaving(group)):
            if node_of(voter) == node:
                return voter
        left = self._left.get((group, node))
        return voter_of(node, 0 if left is None else (left + 1) % (1 << INCARNATION_BITS))

    def leaving(self, group: int) -> Placement:
        """Return who voted in a group and is to go, and may still be needed."""
        return self._leaving.get(group, ())

    def returning(self, group: int) -> tuple[int, ...]:
        """Return who is to vote in a group and comes to it as another than it was there before."""
        before = set(map(node_of, self.leaving(group)))
        return tuple(voter for voter in self.voters(group) if node_of(voter) in before)

    @property
    def unsettled(self) -> Mapping[int, Placement]:
        """Of every group that is not known to be where it is wanted, who is still needed."""
        return self._leaving

    def wanted(self, group: int) -> int:
        """Return how many replicas a group was asked to have; 0: as many as is the rule."""
        return self._wanted.get(group, 0)

    @property
    def placements(self) -> Mapping[int, Placement]:
        """The placement of every group that has one."""
        return self._placements

    def place_new(self, groups: Iterable[int], replicas: int) -> None:
        """Place new groups on the nodes that are active, `replicas` of each (0: as is the rule)."""
        active = self.active()
        if not active:
            return
        groups = list(groups)
        found = place(groups, replicas_of(replicas, len(active)), active, self.load)
        self._placements |= found
        if replicas:
            self._wanted |= dict.fromkeys(groups, replicas)

    def drop(self, groups: Iterable[int]) -> None:
        """Forget groups that are gone."""
        for group in groups:
            self.load.add(self._placements.pop(group, ()), -1)
            self._wanted.pop(group, None)
            self._founders.pop(group, None)
            self._leaving.pop(group, None)
        gone = set(groups)
        self._left = {key: n for key, n in self._left.items() if key[0] not in gone}

    # -- records -----------------------------------------------------------------------------

    def apply(self, record: NodeRecord) -> None:
        """Apply a committed record. Raises `UnknownNode` if it cannot be any more."""
        match record:
            case NodeJoined():
                self._join(record)
            case NodeChanged(node, state):
                known = self._known(node)
                if state not in _STATES:
                    raise Halted(f"a node cannot be {state!r} as far as this release knows")
                if known.state == "removed":
                    raise _removed(node)
                self._nodes[node] = known._replace(state=state)  # type: ignore[arg-type]
            case GroupsPlaced(rows):
                for group, voters in rows:
                    self._move(group, tuple(voters))
            case GroupsSettled(rows):
                for group, voters in rows:
                    if set(voters) == set(self.voters(group)):
                        self._settle(group)
            case LevelRaised(level):
                self.level = max(self.level, level)

    def _join(self, record: NodeJoined) -> None:
        known = self._nodes.get(record.node)
        if known is not None and known.state == "removed":
            raise _removed(record.node)
        info = known or NodeInfo(record.node, "", 0)
        self._nodes[record.node] = info._replace(
            host=record.host or info.host,
            port=record.port or info.port,
            shards=record.shards or info.shards,
            level=record.level or info.level,
            birth=info.birth or record.birth,
        )

    def _move(self, group: int, voters: Placement) -> None:
        before = self._placements.get(group)
        if before is None and group != REGISTRY_GROUP:
            return  # its topic was deleted meanwhile
        if before is not None:
            self._founders.setdefault(group, before)
            held = dict.fromkeys((*before, *self.leaving(group)))
            leaving = tuple(voter for voter in held if voter not in voters)
            if leaving or set(before) != set(voters) or group in self._leaving:
                self._leaving[group] = leaving
        self.load.add(before or (), -1)
        self.load.add(voters)
        self._placements[group] = voters

    def _settle(self, group: int) -> None:
        for voter in reversed(self._leaving.pop(group, ())):  # of a node, the newest is the first
            # Who votes in the registry no more still has it, and stays who it is.
            stays = group == REGISTRY_GROUP
            self._left[group, node_of(voter)] = incarnation_of(voter) - stays

    def _known(self, node: int) -> NodeInfo:
        known = self._nodes.get(node)
        if known is None:
            raise UnknownNode(f"there is no node {node}: `weir node status` names them")
        return known

    # -- snapshots ---------------------------------------------------------------------------

    def encode(self) -> object:
        """Return the state as MessagePack can hold it."""
        return (
            self.level,
            [tuple(node) for node in self._nodes.values()],
            list(self._placements.items()),
            list(self._founders.items()),
            list(self._wanted.items()),
            list(self._leaving.items()),
            [(*key, incarnation) for key, incarnation in self._left.items()],
        )

    @classmethod
    def decode(cls, data: Any) -> Nodes:
        """Return the state that `encode` gave."""
        nodes = cls()
        nodes.level, infos, placements, founders, wanted, leaving, left = data
        nodes._nodes = {info[0]: NodeInfo(*info) for info in infos}
        nodes._placements = {group: tuple(voters) for group, voters in placements}
        nodes._founders = {group: tuple(voters) for group, voters in founders}
        nodes._wanted = dict(wanted)
        nodes._leaving = {group: tuple(voters) for group, voters in leaving}
        nodes._left = {(group, node): incarnation for group, node, incarnation in left}
        for group, placement in nodes._placements.items():
            if not placement or len(set(placement)) < len(placement):
                raise ValueError(f"group {group} is on {placement}, which is no configuration")
            nodes.load.add(placement)
        return nodes


def _removed(node: int) -> UnknownNode:
    return UnknownNode(
        f"node {node} was removed, and its number is never used again: add it as another", node
    )
