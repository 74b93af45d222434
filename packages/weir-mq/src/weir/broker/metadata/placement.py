"""The nodes of a BrokerSet, and which of them hold each group: replicated with the registry.

A group's *placement* is its voters, preferred leader first. Both leaders and replicas are spread
evenly: the node with the fewest comes first, and where several have as few, they take turns. Which
of them may vote together, `Spread` says. That is decided from the state alone, so it is the same on
every replica.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from weir.broker.metadata.promotion.state import Forced, Promotions, copies, keeps_majority
from weir.broker.metadata.spread import ONE_SET, UNDECLARED, Declared, Spread
from weir.broker.records.registry import (
    GroupsFollowed,
    GroupsPlaced,
    GroupsSettled,
    LevelRaised,
    NodeChanged,
    NodeExpected,
    NodeJoined,
    NodeRecord,
    SetJoined,
    SetPromoted,
)
from weir.errors import BadRequest, Halted, UnknownNode
from weir.model.ids import (
    INCARNATION_BITS,
    REGISTRY_GROUP,
    SET_UNKNOWN,
    incarnation_of,
    node_of,
    voter_of,
)
from weir.model.limits import FORMAT_LEVEL_FIRST

REPLICAS_DEFAULT = 3
#: Any more would make every commit slower, and lose no less.
REPLICAS_MAX = 5

Placement = tuple[int, ...]
#: The id by which a group is to know a node that comes to it: of a group and a node.
Newcomer = Callable[[int, int], int]
NodeState = Literal["active", "draining", "removed"]
_STATES = get_args(NodeState)


class Load(msgspec.Struct):
    """How many groups each node holds, and how many it is to lead."""

    held: dict[int, int] = msgspec.field(default_factory=dict)
    led: dict[int, int] = msgspec.field(default_factory=dict)

    def copy(self) -> Load:
        """Return one to reckon with."""
        return Load(dict(self.held), dict(self.led))

    def follow(self, learners: Placement, by: int = 1) -> None:
        """Count learners, or with -1 count them no more."""
        for node in map(node_of, learners):
            self.held[node] = self.held.get(node, 0) + by

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


def check_replicas(asked: int, nodes: int, spread: Spread = ONE_SET) -> None:
    """Raise `BadRequest` unless so many nodes can hold as many replicas as were asked for, and the
    group can miss any one of the sets.
    """
    if asked > REPLICAS_MAX:
        raise BadRequest(f"{asked} replicas: give {REPLICAS_MAX} at most", REPLICAS_MAX)
    if nodes and asked > nodes:  # none is known for a moment when a set is founded
        raise BadRequest(
            f"{asked} replicas, and only {nodes} of the nodes can hold one: ask for fewer, or add "
            "a node",
            nodes,
        )
    if asked > (most := spread.limit(asked)):
        raise BadRequest(
            f"{asked} replicas over these BrokerSets: without one of them there would be no "
            f"majority. Ask for {most}, or add nodes to other sets",
            most,
        )


def place(
    groups: Sequence[int],
    replicas: int,
    nodes: Sequence[int],
    load: Load,
    spread: Spread = ONE_SET,
) -> dict[int, Placement]:
    """Return placements of new `groups`, and count them in `load`; `nodes` are those to use."""
    found: dict[int, Placement] = {}
    order = sorted(nodes)
    for turn, group in enumerate(groups):
        at = (group + turn) % len(order)
        turned = order[at:] + order[:at]
        chosen = [min(spread.leading(turned), key=lambda node: load.led.get(node, 0))]
        while len(chosen) < min(replicas, len(order)):
            chosen.append(_best([one for one in turned if one not in chosen], chosen, load, spread))
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
    spread: Spread = ONE_SET,
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
        free = _free(placement, nodes)
        if free and len(kept) < spread.limit(len(placement)):
            kept.append(newcomer(group, _best(free, [*map(node_of, kept)], load, spread)))
        if not kept:
            continue
        found[group] = _change(load, placement, _led_evenly(kept, load, spread))
    return found


def respread(
    placements: Mapping[int, Placement],
    wanted: Mapping[int, int],
    nodes: Sequence[int],
    load: Load,
    newcomer: Newcomer,
    spread: Spread,
) -> dict[int, Placement]:
    """Return new placements of the groups that `spread` wants elsewhere, each with as few changes
    as it takes. A replica that no other node can take goes, where there are more than can be.
    """
    found: dict[int, Placement] = {}
    for group, placement in placements.items():
        kept = list(placement)
        limit = spread.limit(wanted.get(group, REPLICAS_DEFAULT))
        while misplaced := spread.misplaced([*map(node_of, kept)]):
            # Of several as loaded the last one: the first is to lead.
            gone = max(reversed(misplaced), key=lambda node: load.held.get(node, 0))
            others = [voter for voter in kept if node_of(voter) != gone]
            before = spread.excess([*map(node_of, kept)])
            fits = [
                one
                for one in _free((*placement, *kept), nodes)
                if spread.excess([*map(node_of, others), one]) < before
            ]
            if fits:
                new = newcomer(group, _best(fits, [*map(node_of, others)], load, spread))
                kept = [new if node_of(voter) == gone else voter for voter in kept]
            elif len(kept) > limit:
                kept = others
            else:
                break
        if kept != list(placement):
            found[group] = _change(load, placement, _led_evenly(kept, load, spread))
    return found


def filled(
    placements: Mapping[int, Placement],
    wanted: Mapping[int, int],
    nodes: Sequence[int],
    load: Load,
    newcomer: Newcomer,
    spread: Spread = ONE_SET,
) -> dict[int, Placement]:
    """Return placements of the groups that have fewer replicas than are `wanted`, with more of
    `nodes` in them, as far as there are any.
    """
    found: dict[int, Placement] = {}
    for group, placement in placements.items():
        holders, free = [*map(node_of, placement)], _free(placement, nodes)
        limit = spread.limit(wanted.get(group, REPLICAS_DEFAULT))
        more: list[int] = []
        while free and len(holders) < limit:
            best = _best(free, holders, load, spread)
            free.remove(best)
            holders.append(best)
            more.append(newcomer(group, best))
        if more:
            found[group] = _change(load, placement, (*placement, *more))
    return found


def evened(
    placements: Mapping[int, Placement],
    nodes: Sequence[int],
    load: Load,
    newcomer: Newcomer,
    spread: Spread = ONE_SET,
) -> dict[int, Placement]:
    """Return changes after which no node holds, or is to lead, two groups more than another that
    could have one of them.

    Each move costs a copy of a group, so there are no more of them than it takes.
    """
    found = _replicas_evened(placements, nodes, load, newcomer, spread)
    found |= _leaders_evened({**placements, **found}, nodes, load, spread)
    return found


def _replicas_evened(
    placements: Mapping[int, Placement],
    nodes: Sequence[int],
    load: Load,
    newcomer: Newcomer,
    spread: Spread,
) -> dict[int, Placement]:
    found: dict[int, Placement] = {}
    for group, placement in placements.items():
        pair = _uneven([*map(node_of, placement)], _free(placement, nodes), load, spread)
        if pair is None:
            continue
        most, least = pair
        new = newcomer(group, least)
        changed = tuple(new if node_of(v) == most else v for v in placement)
        found[group] = _change(load, placement, changed)
    return found


def _uneven(
    holders: list[int], free: list[int], load: Load, spread: Spread
) -> tuple[int, int] | None:
    """Return which node has two groups more than another that may take its place in one."""
    excess = spread.excess(holders)
    free.sort(key=lambda node: load.held.get(node, 0))
    for most in sorted(holders, key=lambda node: -load.held.get(node, 0)):
        for least in free:
            if load.held.get(most, 0) - load.held.get(least, 0) < 2:
                break
            if spread.excess([least if node == most else node for node in holders]) <= excess:
                return most, least
    return None


def _leaders_evened(
    placements: Mapping[int, Placement], nodes: Iterable[int], load: Load, spread: Spread
) -> dict[int, Placement]:
    found: dict[int, Placement] = {}
    usable = set(nodes)
    for group, placement in placements.items():
        leader = node_of(placement[0])
        voting = spread.leading([*map(node_of, placement)])
        others = [v for v in placement if node_of(v) in usable and node_of(v) in voting]
        if not others:
            continue
        better = min(others, key=lambda voter: load.led.get(node_of(voter), 0))
        is_even = load.led.get(leader, 0) - load.led.get(node_of(better), 0) < 2
        if is_even and leader in voting:
            continue
        changed = (better, *(voter for voter in placement if voter != better))
        found[group] = _change(load, placement, changed)
    return found


def _free(placement: Iterable[int], nodes: Iterable[int]) -> list[int]:
    """Return which of some nodes do not hold a group, by id."""
    holders = set(map(node_of, placement))
    return [node for node in sorted(nodes) if node not in holders]


def _best(free: Iterable[int], holders: Sequence[int], load: Load, spread: Spread) -> int:
    """Return which free node is to hold a group besides its holders."""
    return min(free, key=lambda node: (spread.rank(node, holders), load.held.get(node, 0)))


def _led_evenly(voters: list[int], load: Load, spread: Spread) -> Placement:
    """Return voters with the one first that is to lead: the first of them, unless it is new."""
    leading = spread.leading([*map(node_of, voters)])
    able = [voter for voter in voters if node_of(voter) in leading]
    leader = min(able, key=lambda voter: load.led.get(node_of(voter), 0))
    return (leader, *(voter for voter in voters if voter != leader))


def _change(load: Load, before: Placement, after: Placement) -> Placement:
    load.add(before, -1)
    load.add(after)
    return after


class NodeInfo(NamedTuple):
    """A node: where its shards listen, how many logs it has, which format level it supports, what
    tells its folder from others that are founded under its number (0: it has not said), which
    BrokerSet it is of (`SET_UNKNOWN`: it has not said), and the key by which it proves its identity
    until its folder is known (empty: none).
    """

    id: int
    host: str
    port: int
    state: NodeState = "active"
    shards: int = 0
    level: int = FORMAT_LEVEL_FIRST
    birth: int = 0
    brokerset: int = SET_UNKNOWN
    join_key: bytes = b""


class Nodes:
    """Nodes by id, and placements by group. Ids of nodes are never reused."""

    __slots__ = (
        "_followers",
        "_founders",
        "_leaving",
        "_left",
        "_nodes",
        "_placements",
        "_wanted",
        "level",
        "load",
        "promotions",
    )

    def __init__(self) -> None:
        """Begin with no node: the registry's leader first registers the founding nodes."""
        self._nodes: dict[int, NodeInfo] = {}
        self._placements: dict[int, Placement] = {}
        #: The voters of a group when it was new, where others vote now.
        self._founders: dict[int, Placement] = {}
        #: Learners by group: they have a copy and do not vote; every node has the registry.
        self._followers: dict[int, Placement] = {}
        #: How many replicas a topic's groups are to have, where that was asked for.
        self._wanted: dict[int, int] = {}
        #: The nodes that a group still needs while it moves to others, by group.
        self._leaving: dict[int, Placement] = {}
        #: The incarnation of a node that held a group once, by (group, node).
        self._left: dict[tuple[int, int], int] = {}
        #: Which sets went on alone.
        self.promotions = Promotions()
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

    # -- sets --------------------------------------------------------------------------------

    @property
    def uses_sets(self) -> bool:
        """Whether a node is of a set with another id than 0."""
        return any(node.brokerset > 0 for node in self.all())

    def set_of(self, node: int, declared: Declared) -> int:
        """Return of which set a node is: what it says of itself, or else what the topology says;
        `SET_UNKNOWN` if neither does.
        """
        known = self._nodes.get(node)
        if known is not None and known.brokerset != SET_UNKNOWN:
            return known.brokerset
        return declared.sets.get(node, SET_UNKNOWN)

    def spread(self, declared: Declared) -> Spread:
        """Return what placements keep to. Until all nodes are known to be of a set, nothing: else
        groups would move, and move back, while nodes say of which set they are.
        """
        if not self.uses_sets:
            return ONE_SET
        run = [node.id for node in self.all() if node.shards]
        sets = {node: self.set_of(node, declared) for node in run}
        if SET_UNKNOWN in sets.values():
            return ONE_SET
        return Spread(sets, self.active(), self.promotions.home(declared))

    # -- groups ------------------------------------------------------------------------------

    def voters(self, group: int) -> Placement:
        """Return the wanted voters of a group, its preferred leader first; () if it is nowhere."""
        return self._placements.get(group, ())

    def founders(self, group: int) -> Placement:
        """Return who voted in a group when it was new: what it is opened with where it is."""
        return self._founders.get(group) or self.voters(group)

    def learners(self, group: int) -> Placement:
        """Return the wanted learners of a group: of the registry, every node."""
        if group != REGISTRY_GROUP:
            return self._followers.get(group, ())
        voting = set(map(node_of, self.voters(group)))
        return tuple(self.voter(group, node.id) for node in self.all() if node.id not in voting)

    def voter(self, group: int, node: int) -> int:
        """Return the id by which a group knows a node, or will know it when the node comes.

        Everybody has the registry, so nobody ever comes to it anew.
        """
        followers = self._followers.get(group, ())
        for voter in (*self.voters(group), *self.leaving(group), *followers):
            if node_of(voter) == node:
                return voter
        left = self._left.get((group, node))
        return voter_of(node, 0 if left is None else (left + 1) % (1 << INCARNATION_BITS))

    def leaving(self, group: int) -> Placement:
        """Return who voted in a group and is to go, and may still be needed."""
        return self._leaving.get(group, ())

    def returning(self, group: int) -> tuple[int, ...]:
        """Return the wanted voters of a group whose node was in it before under another voter
        id.
        """
        before = set(map(node_of, self.leaving(group)))
        return tuple(voter for voter in self.voters(group) if node_of(voter) in before)

    @property
    def unsettled(self) -> Mapping[int, Placement]:
        """By group, of those not known to be where they are wanted: the voters still needed."""
        return self._leaving

    def wanted(self, group: int) -> int:
        """Return how many replicas a group was asked to have; 0: as many as is the rule."""
        return self._wanted.get(group, 0)

    @property
    def followers(self) -> Mapping[int, Placement]:
        """The learners of every group of a topic that has any."""
        return self._followers

    @property
    def placements(self) -> Mapping[int, Placement]:
        """The placement of every group that has one."""
        return self._placements

    def place_new(
        self, groups: Iterable[int], replicas: int, declared: Declared = UNDECLARED
    ) -> None:
        """Place new groups on the nodes that are active, `replicas` of each (0: as is the rule)."""
        active = self.active()
        if not active:
            return
        groups = list(groups)
        spread = self.spread(declared)
        most = spread.limit(replicas_of(replicas, len(active)))
        found = place(groups, most, active, self.load, spread)
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
            self.load.follow(self._followers.pop(group, ()), -1)
            self.promotions.forced.pop(group, None)
        gone = set(groups)
        self._left = {key: n for key, n in self._left.items() if key[0] not in gone}

    # -- records -----------------------------------------------------------------------------

    def apply(self, record: NodeRecord) -> None:
        """Apply a committed record. Raises `UnknownNode` if it cannot be any more."""
        match record:
            case NodeJoined():
                self._join(record)
            case NodeChanged(node, state):
                self._change(node, state)
            case SetJoined(node, brokerset):
                self._nodes[node] = self._known(node)._replace(brokerset=brokerset)
            case NodeExpected(node, key):
                self._expect(node, key)
            case LevelRaised(level):
                self.level = max(self.level, level)
            case SetPromoted():
                self._promote(record)
            case _:
                self._place(record)

    def _place(self, record: GroupsPlaced | GroupsFollowed | GroupsSettled) -> None:
        for group, members in record.rows:
            if isinstance(record, GroupsPlaced):
                self._move(group, tuple(members))
            elif isinstance(record, GroupsFollowed):
                self._follow(group, tuple(members))
            elif set(members) == set(self.voters(group)):
                self._settle(group)

    def _change(self, node: int, state: str) -> None:
        known = self._known(node)
        if state not in _STATES:
            raise Halted(
                f"this release does not know the state {state!r} of a node: upgrade this node"
            )
        if known.state == "removed":
            raise _removed(node)
        self._nodes[node] = known._replace(state=state)  # type: ignore[arg-type]

    def _expect(self, node: int, key: bytes) -> None:
        known = self._known(node)
        if not known.birth:  # else it has come, and needs none
            self._nodes[node] = known._replace(join_key=key)

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
            join_key=b"" if record.birth else info.join_key,
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
        if any(voter in voters for voter in self._followers.get(group, ())):
            self._follow(group, self._followers[group])

    def _promote(self, record: SetPromoted) -> None:
        """Let nodes go on alone with the copies that they have; a group of which they have none
        begins with nothing, as a new one does.
        """
        if record.lineage <= self.promotions.lineage:
            return
        staying = frozenset(record.nodes)
        left = [node.id for node in self.all() if node.id not in staying]
        before = {group: self.learners(group) for group in self._placements}
        for node in left:
            self._nodes[node] = self._nodes[node]._replace(state="removed")
        self.promotions.begin(record, left)
        for group, voters in list(self._placements.items()):
            if keeps_majority(voters, staying):
                self._follow(group, copies(self._followers.get(group, ()), staying))
                if (kept := copies(voters, staying)) != voters:
                    self._move(group, kept)
                continue
            found = copies((*voters, *before[group]), staying)
            if not found:
                among = [node for node in self.active() if node in staying] or sorted(staying)
                best = min(among, key=lambda node: self.load.held.get(node, 0))
                found = (self.voter(group, best),)
            self._leaving.pop(group, None)
            self._founders.setdefault(group, voters)
            self.load.follow(self._followers.pop(group, ()), -1)
            self.load.add(voters, -1)
            self.load.add(found)
            self._placements[group] = found
            self.promotions.forced[group] = Forced(record.lineage, found)

    def _follow(self, group: int, learners: Placement) -> None:
        """Let these learn, but for those that vote."""
        voters = self._placements.get(group)
        if voters is None:
            return  # its topic was deleted meanwhile
        before = self._followers.pop(group, ())
        needed = {*learners, *voters, *self.leaving(group)}
        for voter in before:
            if voter not in needed:  # it comes back as another
                self._left[group, node_of(voter)] = incarnation_of(voter)
        voting = set(map(node_of, voters))
        after = tuple(voter for voter in learners if node_of(voter) not in voting)
        self.load.follow(before, -1)
        self.load.follow(after)
        if after:
            self._followers[group] = after

    def _settle(self, group: int) -> None:
        staying = self._followers.get(group, ())
        for voter in reversed(self._leaving.pop(group, ())):  # of a node, the newest is the first
            if voter in staying:
                continue
            # A node that votes in the registry no more still has it, and keeps its incarnation.
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
        sets = {n.id: n.brokerset for n in self._nodes.values() if n.brokerset != SET_UNKNOWN}
        keys = {n.id: n.join_key for n in self._nodes.values() if n.join_key}
        followers = list(self._followers.items())
        return (
            self.level,
            # What earlier releases would not know comes last, and where there is none not at all.
            [tuple(node)[:-2] for node in self._nodes.values()],
            list(self._placements.items()),
            list(self._founders.items()),
            list(self._wanted.items()),
            list(self._leaving.items()),
            [(*key, incarnation) for key, incarnation in self._left.items()],
            *_trimmed(sets, keys, followers, self.promotions.encode()),
        )

    @classmethod
    def decode(cls, data: Any) -> Nodes:
        """Return the state that `encode` gave."""
        nodes = cls()
        nodes.level, infos, placements, founders, wanted, leaving, left, *more = data
        absent: list[Any] = [{}, {}, (), ()]
        sets, keys, followers, promotions = list(more) + absent[len(more) :]
        infos = [NodeInfo(*info) for info in infos]
        nodes._nodes = {
            info.id: info._replace(
                brokerset=sets.get(info.id, SET_UNKNOWN), join_key=keys.get(info.id, b"")
            )
            for info in infos
        }
        nodes._placements = {group: tuple(voters) for group, voters in placements}
        nodes._founders = {group: tuple(voters) for group, voters in founders}
        nodes._wanted = dict(wanted)
        nodes._leaving = {group: tuple(voters) for group, voters in leaving}
        nodes._left = {(group, node): incarnation for group, node, incarnation in left}
        for group, placement in nodes._placements.items():
            if not placement or len(set(placement)) < len(placement):
                raise ValueError(f"group {group} is on {placement}, which is no configuration")
            nodes.load.add(placement)
        nodes.promotions = Promotions.decode(promotions)
        for group, learners in followers:
            nodes._follow(group, tuple(learners))
        return nodes


def _trimmed(*parts: Collection[object]) -> tuple[object, ...]:
    """Return parts up to the last one that holds something."""
    kept = len(parts)
    while kept and not parts[kept - 1]:
        kept -= 1
    return parts[:kept]


def _removed(node: int) -> UnknownNode:
    return UnknownNode(
        f"node {node} was removed, and its number is never used again: add it as another", node
    )
