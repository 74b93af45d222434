"""What an operator asks of the nodes of a core set that is to go on alone: which copies they have,
that the registry's go on without its voters, and then that the registry decides it for all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from weir.broker.api.settings import Identity
from weir.broker.brokerset import BrokerSet
from weir.broker.forwarding.trunks import ShardTrunks
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.promotion.state import copies
from weir.broker.metadata.registry import Registry
from weir.broker.metadata.spread import Rule
from weir.broker.partition.topics import Topics
from weir.broker.records.registry import SetPromoted
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import ANONYMOUS, Session
from weir.errors import BadRequest, Unavailable
from weir.model.ids import REGISTRY_GROUP, SET_UNKNOWN, node_of, topic_of
from weir.protocol.client.topology import (
    COPIES_MAX,
    CopyList,
    CopyRow,
    DescribeCopies,
    ForceRegistry,
    PromoteSet,
)

Handler = Callable[[Session, Caller, Any], None]


class PromotionRequests:
    """Answers them for one shard."""

    __slots__ = ("_brokerset", "_identity", "_outbox", "_registry", "_topics", "_trunks")

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        registry: Registry,
        brokerset: BrokerSet,
        trunks: ShardTrunks,
        outbox: Outbox,
    ) -> None:
        """Be a shard of a node that has some of these groups."""
        self._identity = identity
        self._topics = topics
        self._registry = registry
        self._brokerset = brokerset
        self._trunks = trunks
        self._outbox = outbox

    def handlers(self) -> dict[type[Any], Handler]:
        """Return what answers each request."""
        return {
            DescribeCopies: self._describe_copies,
            ForceRegistry: self._force_registry,
            PromoteSet: lambda _, caller, request: self._promote(caller, request),
        }

    def _describe_copies(self, session: Session, caller: Caller, request: DescribeCopies) -> None:
        self._check_known(session)
        self._describe(caller, request.after)

    def _force_registry(self, session: Session, caller: Caller, request: ForceRegistry) -> None:
        self._check_known(session)
        self._force(caller, request)

    def _check_known(self, session: Session) -> None:
        """Raise `Unavailable` for a session without a login, unless this node knows that the set
        is open: no leader of the registry checks these requests again.
        """
        if session.principal == ANONYMOUS:
            self._trunks.cutoff.check()

    def _describe(self, caller: Caller, after: int) -> None:
        me, catalog, registry = self._identity, self._topics.catalog, self._registry
        groups = [group for group in sorted(self._groups(), key=_id) if group.id > after]
        rows = [self._row(group) for group in groups[:COPIES_MAX]]
        own = [one for one in catalog.nodes.all() if self._set_of(one.id) == me.brokerset]
        spread, found = catalog.spread, catalog.topology.topology.by_id(me.brokerset)
        nodes = frozenset(one.id for one in own)
        absent = [(group, self._name(group)) for group in self._absent(nodes)]
        told = CopyList(
            rows,
            len(groups) > len(rows),
            me.node,
            me.brokerset,
            registry.group.node.log.applied if registry.group is not None else 0,
            found.name if found is not None else "",
            [(one.id, max(one.shards, 1)) for one in own],
            spread.home if spread.rule is Rule.HOME else -1,
            catalog.nodes.promotions.lineage,
            self._others(),
            absent[:COPIES_MAX],
            not self._trunks.knows_topics,
        )
        self._outbox.reply(caller, told)

    def _force(self, caller: Caller, request: ForceRegistry) -> None:
        """Let the registry's copy go on. Raises `BadRequest` where that is not for this node, or it
        has no such copy, and `Unavailable` while there is no need.
        """
        me, group = self._identity, self._registry.group
        if request.brokerset != me.brokerset:
            raise BadRequest(
                f"node {me.node} is of BrokerSet {me.brokerset}, not {request.brokerset}: ask the "
                "nodes of the set that is to be promoted",
                me.brokerset,
            )
        if group is None:
            raise BadRequest(  # to ask again is in vain: a start of the node takes another copy
                f"this shard of node {me.node} has no whole copy of the registry: see the log of "
                "the node, start it again, and ask for the plan of the promotion again"
            )
        if self._trunks.knows_topics:  # else what the registry says here may be old
            check_other(self._topics.catalog, me.brokerset)
        if group.voter not in request.voters:
            raise BadRequest(
                f"node {me.node} is not among the voters: ask for the plan of the promotion again"
            )
        if not request.forced and request.lineage > group.node.lineages.current:
            self._check_alone()
        group.force(request.lineage, tuple(request.voters))
        self._describe(caller, REGISTRY_GROUP - 1)

    def _check_alone(self) -> None:
        """Raise `Unavailable` while somebody of another core set answers."""
        if others := self._others():
            raise Unavailable(
                f"node {', '.join(map(str, others))} of the other core set answers: stop it first, "
                "or force the promotion, after which it serves nothing any more. To move home "
                "while both sets are up, apply a topology that says so"
            )

    def _others(self) -> list[int]:
        """Return the nodes of other core sets that this shard is linked to."""
        return [
            node
            for node in self._brokerset.linked
            if self._set_of(node) not in (SET_UNKNOWN, self._identity.brokerset)
        ]

    def _set_of(self, node: int) -> int:
        if node == self._identity.node:
            return self._identity.brokerset
        catalog = self._topics.catalog
        return catalog.nodes.set_of(node, catalog.topology.declared)

    def _promote(self, caller: Caller, request: PromoteSet) -> None:
        """Propose that a set goes on alone. Raises `BadRequest` where that cannot be."""
        catalog, registry = self._topics.catalog, self._registry
        nodes, applied = catalog.nodes, catalog.topology
        if (request.lineage, request.brokerset) == nodes.promotions.last:
            self._outbox.reply(caller, registry.membership.listed())  # it was asked twice
            return
        check_promotion(catalog, request)
        record = SetPromoted(
            request.lineage, request.brokerset, tuple(sorted(request.nodes)), applied.version
        )
        registry.membership.propose(record, caller)

    def _row(self, group: Group) -> CopyRow:
        node, offset, stamp = group.node, 0, 0
        if (partition := self._topics.find(group.id)) is not None:
            offset, stamp = partition.state.next_offset, partition.state.last_stamp
        heard_ms, committed = node.lineages.heard
        last = node.log.last_index
        return CopyRow(
            group.id,
            self._name(group.id),
            group.voter,
            node_of(group.leader),
            node.lineages.current,
            node.lineages.begun,
            node.log.term(last) if last else 0,
            last,
            committed,
            heard_ms,
            offset,
            stamp,
            sorted(map(node_of, node.configuration.voters)),
        )

    def _name(self, group: int) -> str:
        topic = self._topics.catalog.by_id(topic_of(group))
        return topic.full_name if topic is not None else ""

    def _groups(self) -> Iterator[Group]:
        if self._registry.group is not None:
            yield self._registry.group
        for partition in self._topics.partitions():
            if partition.group.damage is None:
                yield partition.group

    def _absent(self, own: frozenset[int]) -> Iterator[int]:
        """Yield the groups of which no node of this set is to have a copy."""
        nodes = self._topics.catalog.nodes
        for group, voters in nodes.placements.items():
            if not copies((*voters, *nodes.learners(group)), own):
                yield group


def check_promotion(catalog: Catalog, request: PromoteSet) -> None:
    """Raise `BadRequest` unless a set is the other one of two core sets, of which these are nodes,
    and the lineage is a new one.
    """
    nodes, declared = catalog.nodes, catalog.topology.declared
    if request.lineage <= nodes.promotions.lineage:
        raise BadRequest(
            f"lineage {nodes.promotions.lineage} has begun already: ask for the plan again",
            nodes.promotions.lineage,
        )
    check_other(catalog, request.brokerset)
    strange = [one for one in request.nodes if nodes.set_of(one, declared) != request.brokerset]
    active = {one.id for one in nodes.all()}
    if strange := strange or [one for one in request.nodes if one not in active]:
        raise BadRequest(f"node {strange[0]} is not of BrokerSet {request.brokerset}", strange[0])


def check_other(catalog: Catalog, brokerset: int) -> None:
    """Raise `BadRequest` unless a set is the other one of two core sets."""
    spread = catalog.spread
    if spread.rule is not Rule.HOME:
        raise BadRequest("a set can be promoted only if there are exactly two core sets")
    if spread.home == brokerset:
        raise BadRequest(
            f"BrokerSet {brokerset} is home already: its nodes decide once most of them run",
            brokerset,
        )


def _id(group: Group) -> int:
    return group.id
