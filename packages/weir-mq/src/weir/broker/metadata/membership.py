"""What is asked of the registry about nodes: who belongs to the set, and where groups lie.

Every decision is an entry, so a leader that comes next goes on where the last one stopped: it
decides only while nothing that was decided is still under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from weir.broker.api.settings import Identity, Layout, Member, registry_voters
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.placement import (
    NodeInfo,
    Nodes,
    Placement,
    evened,
    filled,
    moved_off,
    respread,
)
from weir.broker.metadata.spread import ONE_SET, Rule, followed
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
)
from weir.broker.replica.requests import ProposalLog, Proposals
from weir.broker.runtime.outbox import Caller
from weir.errors import (
    BadRequest,
    LevelTooHigh,
    LevelTooLow,
    NodeInUse,
    Refused,
    Unavailable,
    UnknownNode,
)
from weir.model.ids import (
    INCARNATION_BITS,
    NODE_MAX,
    REGISTRY_GROUP,
    SET_UNKNOWN,
    incarnation_of,
    node_of,
    voter_of,
)
from weir.model.limits import FORMAT_LEVEL_FIRST, FORMAT_LEVEL_TOPOLOGY, JOIN_KEY_BYTES
from weir.protocol.client.nodes import (
    ChangeNode,
    NodeList,
    NodeRow,
    RaiseLevel,
    Report,
    ReportLost,
    ReportNode,
    ReportSet,
    ReportSettled,
    SetInfo,
    SetList,
)

#: An entry that places groups says so of no more than these.
_PLACED_TOGETHER = 1_024


class Replies(Protocol):
    """Where answers go."""

    def reply(self, caller: Caller, reply: NodeList) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class Membership:
    """Adds, drains and removes nodes, and places what lies on them."""

    __slots__ = ("_balanced", "_catalog", "_founded", "_identity", "_learning", "_level", "_logs",
                 "_outbox", "_placing", "_proposals", "_registry", "_shards")  # fmt: skip

    def __init__(
        self,
        catalog: Catalog,
        identity: Identity,
        layout: Layout,
        level: int,
        outbox: Replies,
        registry: ProposalLog[NodeRecord],
    ) -> None:
        """Change `catalog` by entries of `registry`.

        Until they say otherwise, the nodes that the set is founded with are taken to have the
        `layout` of this one, and to support the first format level; this one supports `level`.
        """
        self._catalog = catalog
        self._identity = identity
        self._logs, self._shards, self._level = layout.logs, layout.shards, level
        self._outbox = outbox
        self._registry = registry
        self._proposals: Proposals[NodeRecord, Caller] = Proposals(registry)
        #: Entries that place groups and are not applied yet.
        self._placing: set[int] = set()
        #: By group to which somebody comes back, who learnt when its leader was last heard of it.
        self._learning: dict[int, frozenset[int]] = {}
        #: Whether nothing has happened since it was last decided where groups go.
        self._balanced = False
        #: Whether it was looked, in this term, if there is something of the set to found.
        self._founded = False

    def lead(self) -> None:
        """This node leads the registry: found the set, as far as nobody has yet."""
        self._placing.clear()
        self._balanced = self._founded = False
        with suppress(Refused):  # it hands over already: if it still leads then, `rebalance` comes
            self._found()

    def _found(self) -> None:
        nodes = self._catalog.nodes
        alone = {one.node for one in self._identity.members} <= {self._identity.node}
        if alone and not nodes.ever() and self._level > nodes.level:
            # No earlier release wrote anything, so there is no way back to keep open. What the
            # other founders of a set support is not known yet.
            self._registry.propose(LevelRaised(self._level))
        # An earlier leader may have been lost in the middle of the founding.
        for node, host, port in self._identity.members or (Member(self._identity.node, "", 0),):
            if nodes.get(node) is None:
                level = self._level if node == self._identity.node else FORMAT_LEVEL_FIRST
                self._registry.propose(NodeJoined(node, host, port, self._shards, level))
        if not nodes.voters(REGISTRY_GROUP):
            self._place({REGISTRY_GROUP: self._identity.founding_voters})
        self._founded = True

    def lose(self, error: Refused) -> None:
        """This node no longer leads: refuse waiting callers."""
        self._placing.clear()
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)

    # -- requests ----------------------------------------------------------------------------

    def listed(self) -> NodeList:
        """Return the nodes as they are known here."""
        nodes, me = self._catalog.nodes, self._identity
        leaving = Counter(node_of(v) for voters in nodes.unsettled.values() for v in voters)
        rows = [
            NodeRow(
                node.id,
                node.host,
                node.port,
                node.state,
                node.shards,
                node.level,
                replicas=nodes.load.held.get(node.id, 0),
                leaders=nodes.load.led.get(node.id, 0),
                leaving=leaving[node.id],
            )
            for node in nodes.all()
        ]
        return NodeList(rows, nodes.level, me.system, me.node, self._logs)

    def listed_sets(self) -> SetList:
        """Return the BrokerSets as they are known here."""
        nodes, applied = self._catalog.nodes, self._catalog.topology
        topology = applied.topology
        set_of = {node.id: nodes.set_of(node.id, applied.declared) for node in nodes.all()}
        majorities: Counter[int] = Counter()
        with_registry = None
        for group, voters in nodes.placements.items():
            counts = Counter(set_of.get(node_of(voter), SET_UNKNOWN) for voter in voters)
            most, count = counts.most_common(1)[0]
            if 2 * count > len(voters):
                majorities[most] += 1
                with_registry = most if group == REGISTRY_GROUP else with_registry
        ids = {*set_of.values(), *(one.id for one in topology.sets)} - {SET_UNKNOWN}
        sets = []
        for id in sorted(ids):
            row = topology.by_id(id)
            name, tier = (row.name, row.tier) if row is not None else ("", "core")
            there = [node for node, found in set_of.items() if found == id]
            sets.append(SetInfo(id, name, tier, there, majorities[id], with_registry == id))
        unknown = [node for node, found in set_of.items() if found == SET_UNKNOWN]
        return SetList(sets, self._catalog.spread.rule.value, unknown)

    def change(self, caller: Caller, request: ChangeNode) -> None:
        """Propose what is asked. Raises `UnknownNode`, `NodeInUse` or `BadRequest`."""
        verbs: dict[str, Callable[[ChangeNode], NodeRecord]] = {
            "add": self._added,
            "active": self._activated,
            "drain": self._drained,
            "remove": self._removed,
        }
        if request.verb not in verbs:
            raise BadRequest(f"nodes can be told to {', '.join(verbs)}, not {request.verb!r}")
        record = verbs[request.verb](request)
        if not (request.join_key and isinstance(record, NodeJoined)):
            self._proposals.propose(record, caller)
            return
        nodes, known = self._catalog.nodes, self._catalog.nodes.get(record.node)
        if nodes.level < FORMAT_LEVEL_TOPOLOGY:
            raise LevelTooLow(
                f"nodes join by a key from format level {FORMAT_LEVEL_TOPOLOGY} on, and this set "
                f"writes level {nodes.level}: `weir node raise-level` first",
                FORMAT_LEVEL_TOPOLOGY,
            )
        if len(request.join_key) != JOIN_KEY_BYTES:
            raise BadRequest(
                f"a join key has {JOIN_KEY_BYTES} bytes, not {len(request.join_key)}",
                JOIN_KEY_BYTES,
            )
        if known is not None and known.birth:  # it came long ago, and listens elsewhere now
            self._proposals.propose(record, caller)
            return
        self._registry.propose(record)
        self._proposals.propose(NodeExpected(record.node, request.join_key), caller)

    def propose(self, record: NodeRecord, caller: Caller) -> None:
        """Propose a record; `caller` is told which nodes there are once it is applied."""
        self._proposals.propose(record, caller)

    def raise_level(self, caller: Caller, request: RaiseLevel) -> None:
        """Propose a format level. Raises `LevelTooHigh` if a node does not support it, and
        `Unavailable` while not all founders are known, nor what they support.
        """
        nodes = self._catalog.nodes
        if not nodes.all() or any(nodes.get(one.node) is None for one in self._identity.members):
            raise Unavailable("this set is being founded: try again shortly")
        lowest = min(nodes.all(), key=lambda node: node.level)
        level = request.level or lowest.level
        if level > lowest.level:
            raise LevelTooHigh(
                f"node {lowest.id} supports format level {lowest.level}, not {level}: upgrade it, "
                "or remove it from the set",
                lowest.level,
            )
        if level < nodes.level:
            raise BadRequest(
                f"format level {nodes.level} is written already, and never again a lower one: "
                "its entries are in the logs",
                nodes.level,
            )
        self._proposals.propose(LevelRaised(level), caller)

    def take_report(self, report: Report) -> None:
        """Take what a shard of the set says. Raises `Unavailable` if this node does not lead."""
        match report:
            case ReportNode():
                self.report(report)
            case ReportSettled():
                self.arrived(report)
            case ReportLost():
                self.lost(report)
            case ReportSet():
                self.joined_set(report)

    def report(self, request: ReportNode) -> None:
        """Take what a node says of itself, if it is news, and if it is the one that is meant."""
        known, birth = self._catalog.nodes.get(request.node), request.birth
        if known is None or known.state == "removed" or known.birth not in (0, birth):
            return
        if (known.shards, known.level, known.birth) != (request.shards, request.level, birth):
            self._registry.propose(
                NodeJoined(request.node, "", 0, request.shards, request.level, birth)
            )

    def joined_set(self, request: ReportSet) -> None:
        """Take of which set a node says that it is, if that is news: a node is of one for good, and
        of none that the topology does not have it in.
        """
        nodes, declared = self._catalog.nodes, self._catalog.topology.declared
        known = nodes.get(request.node)
        if known is None or known.state == "removed" or nodes.level < FORMAT_LEVEL_TOPOLOGY:
            return
        if known.brokerset != SET_UNKNOWN:
            return
        if nodes.set_of(request.node, declared) in (SET_UNKNOWN, request.brokerset):
            self._registry.propose(SetJoined(request.node, request.brokerset))

    def arrived(self, request: ReportSettled) -> None:
        """Take the present voters of groups that have arrived where they are wanted."""
        nodes = self._catalog.nodes
        rows = [
            (group, tuple(voters))
            for group, voters in request.rows
            if group in nodes.unsettled and set(voters) == set(nodes.voters(group))
        ]
        if rows:
            self._registry.propose(GroupsSettled(rows))
        learning = {group: frozenset(learners) for group, learners in request.learning}
        known = {**self._learning, **learning}
        self._learning = {group: known[group] for group in known if nodes.returning(group)}

    def lost(self, request: ReportLost) -> None:
        """Let a voter whose log is damaged come back as another, with what the others have.

        One at a time: of what two have lost, each may hold what the other one lacks. But who has
        come back so far that it lost what it was given anew is taken back once more. Those that the
        group moves away from lost nothing, and it may wait for this very one before it can go. And
        who only learns, beside those that come back, held nothing that counts: they vote together.
        """
        group, lost = request.group, request.voter
        nodes = self._catalog.nodes
        voters = nodes.voters(group)
        if lost in nodes.followers.get(group, ()) and not self._placing:
            kept = [voter for voter in nodes.followers[group] if voter != lost]
            self._follow({group: (*kept, _next_life(lost))})
            return
        if len(voters) == 1 or self._placing:
            return
        others = {one for one in nodes.returning(group) if node_of(one) != node_of(lost)}
        # A leader that knows of these others says so: who learnt then votes with them, or not yet.
        if others and not others | {lost} <= self._learning.get(group, frozenset()):
            return
        again = _next_life(lost)
        if lost in voters:
            self._place({group: tuple(again if voter == lost else voter for voter in voters)})
        elif lost in nodes.learners(group):
            # Voters keep their ids: the id says which voter was placed, and is not any more.
            rows = [(group, (*voters, again)), (group, voters)]
            self._placing.add(self._registry.propose(GroupsPlaced(rows)))

    # -- entries -----------------------------------------------------------------------------

    def apply(self, index: int, record: NodeRecord) -> None:
        """Apply a committed record."""
        caller = self._proposals.applied(index)
        self._placing.discard(index)
        self._balanced = False
        try:
            self._catalog.nodes.apply(record)
        except Refused as error:
            if caller is not None:
                self._outbox.refuse(caller, error)
            return
        if caller is not None:
            self._outbox.reply(caller, self.listed())

    def look_again(self) -> None:
        """Decide anew where groups go: what placements keep to may have changed."""
        self._balanced = False

    def placed_new(self) -> None:
        """There are new groups: where home has learners elsewhere, they get some, too."""
        if self._catalog.nodes.uses_sets and self._catalog.spread.rule is Rule.HOME:
            self.look_again()

    def rebalance(self) -> None:
        """As the leader, decide where groups go that lie on draining nodes, that their sets do not
        allow, that have too few replicas, or that are unevenly spread, unless such a decision is
        still under way.

        Raises `Refused` if this node cannot propose just now: try again later.
        """
        if not self._founded:
            self._found()
        nodes = self._catalog.nodes
        active = nodes.active()
        if self._balanced or self._placing or not active:
            return
        placements, load, spread = dict(nodes.placements), nodes.load.copy(), self._catalog.spread
        changed: dict[int, Placement] = {}

        def take(found: dict[int, Placement]) -> None:
            placements.update(found)
            changed.update(found)

        for node in nodes.all():
            if node.state == "draining":
                take(moved_off(node.id, placements, active, load, nodes.voter, spread))
        wanted = {group: nodes.wanted(group) for group in placements if nodes.wanted(group)}
        wanted[REGISTRY_GROUP] = registry_voters(len(active))
        take(respread(placements, wanted, active, load, nodes.voter, spread))
        take(filled(placements, wanted, active, load, nodes.voter, spread))
        # A node that has not said its set yet may be of one that has enough of a group already.
        if spread is not ONE_SET or not nodes.uses_sets:
            take(evened(placements, active, load, nodes.voter, spread))
        self._place({group: to for group, to in changed.items() if to != nodes.voters(group)})
        learners, held = nodes.followers, load.held
        self._follow(followed(placements, learners, active, held, nodes.voter, spread))
        self._balanced = True

    def _follow(self, learners: dict[int, Placement]) -> None:
        rows = list(learners.items())
        for first in range(0, len(rows), _PLACED_TOGETHER):
            some = rows[first : first + _PLACED_TOGETHER]
            self._placing.add(self._registry.propose(GroupsFollowed(some)))

    def _place(self, placements: dict[int, Placement]) -> None:
        rows = list(placements.items())
        for first in range(0, len(rows), _PLACED_TOGETHER):
            some = rows[first : first + _PLACED_TOGETHER]
            self._placing.add(self._registry.propose(GroupsPlaced(some)))

    # -- what each verb becomes --------------------------------------------------------------

    def _added(self, request: ChangeNode) -> NodeJoined:
        if not request.host or not request.port:
            raise BadRequest("to add a node, say where it listens: HOST:PORT")
        nodes = self._catalog.nodes
        there = nodes.all()
        same = [n for n in there if (n.host, n.port) == (request.host, request.port)]
        if same and not request.node and not same[0].shards:
            # An earlier request did not get its answer: the node is registered and never ran.
            return NodeJoined(same[0].id, request.host, request.port)
        taken = [n.id for n in same]
        if taken and taken != [request.node]:
            raise BadRequest(f"node {taken[0]} listens at {request.host}:{request.port} already")
        unknown = [n.id for n in there if not n.port and n.id != request.node]
        if unknown:
            raise BadRequest(
                f"node {unknown[0]} was founded alone, and the set does not know its address: "
                f"set it first by `weir node add HOST:PORT --node {unknown[0]}`"
            )
        node = request.node or nodes.highest + 1
        if node > NODE_MAX:
            raise BadRequest(f"nodes are numbered from 1 to {NODE_MAX:,}")
        known = nodes.get(node)
        if known is not None and known.state == "removed":
            raise UnknownNode(f"node {node} was removed: add it as {nodes.highest + 1}", node)
        return NodeJoined(node, request.host, request.port)

    def _activated(self, request: ChangeNode) -> NodeChanged:
        return NodeChanged(self._there(request.node).id, "active")

    def _drained(self, request: ChangeNode) -> NodeChanged:
        node = self._there(request.node)
        if not self._left_without(node.id):
            raise NodeInUse(
                f"node {node.id} is the only one that can hold groups: add another first",
                len(_on(self._catalog.nodes, node.id)),
            )
        return NodeChanged(node.id, "draining")

    def _removed(self, request: ChangeNode) -> NodeChanged:
        node = self._there(request.node)
        held = _on(self._catalog.nodes, node.id)
        if held or not self._left_without(node.id):
            raise NodeInUse(
                f"node {node.id} is to hold {len(held)} groups: `weir node drain {node.id}` moves "
                "them to others first",
                len(held),
            )
        unsettled = self._catalog.nodes.unsettled.values()
        needed = sum(node.id in map(node_of, voters) for voters in unsettled)
        if needed:
            raise NodeInUse(
                f"{needed} groups still need node {node.id} until they have moved: `weir node "
                "status` shows how far they are",
                needed,
            )
        return NodeChanged(node.id, "removed")

    def _left_without(self, node: int) -> list[int]:
        return [other for other in self._catalog.nodes.active() if other != node]

    def _there(self, node: int) -> NodeInfo:
        known = self._catalog.nodes.get(node)
        if known is None or known.state == "removed":
            raise UnknownNode(f"there is no node {node}: `weir node status` names them", node)
        return known


def _next_life(voter: int) -> int:
    """Return the id of a node that comes back to a group with nothing that it had."""
    return voter_of(node_of(voter), (incarnation_of(voter) + 1) % (1 << INCARNATION_BITS))


def _on(nodes: Nodes, node: int) -> Sequence[int]:
    held = (*nodes.placements.items(), *nodes.followers.items())
    return [group for group, to in held if node in map(node_of, to)]
