"""The topology in the registry, and what is asked of it: it is changed by compare-and-set.

The leader looks first whether an entry could be applied; replicas look again when they apply it,
for another one may have come between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from weir.broker.metadata.placement import NodeInfo, Nodes
from weir.broker.metadata.spread import UNDECLARED, Declared
from weir.broker.records.registry import TopologyApplied
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import BadRequest, LevelTooLow, Refused, TopologyChanged, Unauthorized
from weir.model.ids import SET_UNKNOWN
from weir.model.limits import FORMAT_LEVEL_TOPOLOGY
from weir.protocol.client import topology as t
from weir.protocol.client.messages import Reply
from weir.protocol.client.relays import DescribeRelay
from weir.relay.holds import Child, HoldLimits, limits_in
from weir.topology.checks import check
from weir.topology.sets import TopicTags, Topology, name_of

#: A refusal names so many of the problems.
_TOLD_MAX = 4


class AppliedTopology:
    """The topology that was applied last; version 0: none was."""

    __slots__ = ("declared", "topology", "version")

    def __init__(self) -> None:
        """Begin without any."""
        self.version = 0
        self.topology = Topology()
        self.declared = UNDECLARED

    def __bool__(self) -> bool:
        return bool(self.version)

    def check_version(self, after: int) -> None:
        """Raise `TopologyChanged` unless the version that is to be replaced is the last one."""
        if after != self.version:
            raise TopologyChanged(
                f"the topology has version {self.version}, and the change was made of version "
                f"{after}: look at the difference again, then apply it",
                self.version,
            )

    def apply(self, record: TopologyApplied) -> None:
        """Apply a record. Raises `TopologyChanged` where another one came between."""
        self.check_version(record.version - 1)
        self._be(record.version, record.topology)

    def check_relay(self, topic: str, brokerset: int, node: int) -> TopicTags:
        """Return which messages of a topic (its full name) a node of a set may hold; any where no
        topology is applied. Raises `Unauthorized` if none.
        """
        if not self.version:
            return TopicTags(topic)
        row = self.topology.by_id(brokerset)
        if row is None or row.tier == "core" or node not in [one.number for one in row.nodes]:
            raise Unauthorized(
                f"node {node} of BrokerSet {brokerset} is in no tandem or access set of the "
                "topology: see `weir topology show`"
            )
        held = row.tags_of(topic)
        if held is None:
            raise Unauthorized(f"the topology gives no message of {topic} to set {row.name}")
        return held

    def relay_set(self, brokerset: int) -> str:
        """Return the name of a tandem or access set; empty where there is none of this id."""
        row = self.topology.by_id(brokerset)
        return row.name if row is not None and row.tier != "core" else ""

    def relays(self) -> dict[Child, HoldLimits]:
        """Return the nodes of all tandem and access sets, and how much is kept for each."""
        return limits_in(self.topology)

    def check_tags(
        self, topic: str, brokerset: int, node: int, tags: tuple[str, ...] | None
    ) -> None:
        """Raise `Unauthorized` unless a node of a set may hold the messages of a topic with these
        tags; None: all.
        """
        held = self.check_relay(topic, brokerset, node)
        if more := held.lacks(TopicTags(topic, tags)):
            told = "all tags" if more == ("*",) else f"tag {more[0]!r}"
            raise Unauthorized(
                f"the topology does not give {told} of {topic} to BrokerSet {brokerset}"
            )

    def encode(self) -> object:
        """Return the state as MessagePack can hold it."""
        return self.version, self.topology

    @classmethod
    def decode(cls, data: Any) -> AppliedTopology:
        """Return the state that `encode` gave."""
        found = cls()
        version, topology = data
        found._be(version, msgspec.convert(topology, Topology))
        return found

    def _be(self, version: int, topology: Topology) -> None:
        self.version, self.topology = version, topology
        self.declared = Declared(topology.core_nodes(), topology.home, version)


class TopologyCatalog(Protocol):
    """What is known of the topology, of nodes, and of what is written."""

    topology: AppliedTopology
    nodes: Nodes

    @property
    def level(self) -> int:
        """The format level that is written."""


class TopologyLog(Protocol):
    """The registry's log."""

    def propose(self, record: TopologyApplied, /) -> int:
        """Propose an entry; return its index. Raises `Unavailable` where it is not led here."""


class Replies(Protocol):
    """Where the registry's answers go."""

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class TopologyRequests:
    """Changes the topology by entries."""

    __slots__ = ("_catalog", "_outbox", "_proposals")

    def __init__(self, catalog: TopologyCatalog, outbox: Replies, log: TopologyLog) -> None:
        """Change `catalog` by entries of `log`."""
        self._catalog = catalog
        self._outbox = outbox
        self._proposals: Proposals[TopologyApplied, Caller] = Proposals(log)

    def lose(self, error: Refused) -> None:
        """This node no longer leads: refuse callers that wait for a change."""
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)

    def change(self, caller: Caller, request: t.ApplyTopology) -> None:
        """Propose another topology in place of version `after`. Raises `LevelTooLow`, `BadRequest`
        for one that does not fit, or `TopologyChanged`.

        One that is applied already is answered at once, so that a client that lost the first answer
        may ask again.
        """
        level, applied = self._catalog.level, self._catalog.topology
        if level < FORMAT_LEVEL_TOPOLOGY:
            raise LevelTooLow(
                f"this set writes format level {level}, and a topology needs "
                f"{FORMAT_LEVEL_TOPOLOGY}: once all nodes run this release, raise it by `weir node "
                "raise-level`",
                level,
            )
        if applied and request.topology == applied.topology:
            self._outbox.reply(caller, self._state())
            return
        applied.check_version(request.after)
        check_fit(request.topology, applied.topology, self._catalog.nodes)
        self._proposals.propose(TopologyApplied(request.after + 1, request.topology), caller)

    def describe(self, caller: Caller) -> None:
        """Answer with the topology."""
        self._outbox.reply(caller, self._state())

    def handlers(self) -> Mapping[type[Any], Callable[[Session, Caller, Any], None]]:
        """Return what answers each request about the topology."""
        return {
            t.ApplyTopology: lambda _, caller, request: self.change(caller, request),
            t.DescribeTopology: lambda _, caller, request: self.describe(caller),
            DescribeRelay: _refuse_as_core,
        }

    def apply(self, index: int, record: TopologyApplied) -> None:
        """Apply a committed record, and answer who asked for it."""
        caller = self._proposals.applied(index)
        try:
            self._catalog.topology.apply(record)
        except Refused as error:
            if caller is not None:
                self._outbox.refuse(caller, error)
        else:
            if caller is not None:
                self._outbox.reply(caller, self._state())

    def _state(self) -> t.TopologyState:
        applied = self._catalog.topology
        return t.TopologyState(applied.version, applied.topology)


def check_fit(new: Topology, old: Topology, nodes: Nodes) -> None:
    """Raise `BadRequest` unless a topology is sound, and can follow another one in a system that
    has these nodes.
    """
    if problems := check(new):
        told = "; ".join(
            f"set {new.sets[one.at].name}: {one.text}" if one.at >= 0 else one.text
            for one in problems[:_TOLD_MAX]
        )
        raise BadRequest(f"the topology cannot be: {told}. `weir topology check` says it by line")
    core = new.core_nodes()
    for node in nodes.all():
        if node.id not in core:
            raise BadRequest(
                f"node {node.id} is in no core set of the file, and is one of the system: name it "
                f"in its set, or drain and remove it first (`weir node drain {node.id}`)",
                node.id,
            )
        _check_set(node, core[node.id], nodes.uses_sets, new)
    before = {node.number: one for one in old.sets for node in one.nodes}
    tiers = {one.id: one.tier for one in old.sets}
    for one in new.sets:
        tier = tiers.get(one.id, one.tier)
        if (tier == "core") != (one.tier == "core"):
            raise BadRequest(
                f"set {one.name} was {tier}, and is {one.tier} in the file: core sets hold "
                "replicas and others do not, so give the new set an id of its own",
                one.id,
            )
        for number in (node.number for node in one.nodes):
            if (was := before.get(number)) is not None and was.id != one.id:
                raise BadRequest(
                    f"node {number} belongs to set {was.name}, for good: found another node for "
                    f"set {one.name}",
                    number,
                )


def _check_set(node: NodeInfo, declared: int, uses_sets: bool, topology: Topology) -> None:
    """Raise `BadRequest` unless a node of the system is of the set that a topology has it in."""
    said = node.brokerset
    if said == SET_UNKNOWN:
        if not node.shards:
            return  # it has never run: what it says will have to fit
        if uses_sets:
            raise BadRequest(
                f"node {node.id} has not said yet of which BrokerSet it is: start it, then apply "
                "the topology again",
                node.id,
            )
        if declared:  # nobody has said of a set: either there is but 0, or they are about to
            raise BadRequest(
                f"node {node.id} was founded in BrokerSet 0, or has not said yet in which one, and "
                f"the file has it in set {name_of(topology, declared)}, which has the id "
                f"{declared}: if it was founded in that one (`weir node status`), apply the "
                "topology again shortly; else give that set the id 0, or name the node in another "
                "one",
                node.id,
            )
        return
    if said != declared:
        raise BadRequest(
            f"node {node.id} was founded in BrokerSet {said}, and the file has it in set "
            f"{name_of(topology, declared)}, which has the id {declared}: a node never changes its "
            f"set, so give that set the id {said}, or name the node in another one",
            node.id,
        )


def _refuse_as_core(_: Session, __: Caller, ___: DescribeRelay) -> None:
    """Raise `BadRequest`: this is no relay."""
    raise BadRequest("this node belongs to a core set and pulls from no other: ask a relay")
