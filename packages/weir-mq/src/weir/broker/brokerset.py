"""This shard's part in its BrokerSet: the nodes that it links to, the state that it reports, and
how the groups that it leads move to where they are wanted, or away when it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from msgspec.structs import astuple

from weir.broker.api.effects import Connect, Disconnect, GuardLinks
from weir.broker.api.events import LinkClosed, LinkOpened
from weir.broker.api.settings import Identity, Layout
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.placement import NodeInfo, Nodes
from weir.broker.metadata.reassignment import (
    Fitness,
    GroupMover,
    Standing,
    Transfer,
    give_away,
    heir,
    report_of,
    standing_of,
    take,
)
from weir.broker.metadata.registry import Registry
from weir.broker.metadata.spread import UNDECLARED, Declared
from weir.broker.partition.topics import Topics
from weir.broker.replica.group import Group
from weir.broker.replica.node_state import Clocks
from weir.broker.replica.refill import Refill
from weir.broker.replica.requests import unfounded
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import Halted, NotLeader, Refused
from weir.model.ids import REGISTRY_GROUP, SET_UNKNOWN, node_of, place_node, place_shard
from weir.model.limits import FORMAT_LEVEL_TOPOLOGY, LINK_NODES_MAX
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.nodes import (
    AskNodes,
    ChangeNode,
    DescribeShard,
    ListNodes,
    ListSets,
    NodeNews,
    NodesTold,
    RaiseLevel,
    Report,
    ReportLost,
    ReportNode,
    ReportSet,
    ReportSettled,
    ShardInfo,
    TransferLeader,
    Transferred,
)
from weir.protocol.frame import ClientFrame
from weir.topology.sets import name_of

#: A node that stops waits no longer for others to lead what it led.
HAND_OVER_MS = 2_000
#: How often a node says again what the registry does not know of it yet.
_REPORT_EVERY_MS = 1_000
#: No question of this shard has it: what comes back to a report is nothing to anybody.
_REPORT = 1 << 62

Handler = Callable[[Session, Caller, Any], None]


class NodeLinks:
    """The nodes that the host keeps links to, and which of those are up."""

    __slots__ = (
        "_connected", "_guarded", "_heard", "_identity", "_outbox", "_removed", "_seen", "_turns",
        "up",
    )  # fmt: skip

    def __init__(self, identity: Identity, outbox: Outbox) -> None:
        """Begin with none."""
        self._identity = identity
        self._outbox = outbox
        #: By node, what the host was told.
        self._connected: dict[int, Connect] = {}
        #: Nodes that others told of, which the registry here does not know well enough yet.
        self._heard: dict[int, Connect] = {}
        #: Removed nodes that the host was told of.
        self._removed: set[int] = set()
        self._turns = count()
        #: Whether the host was told to guard its links; None: nothing.
        self._guarded: bool | None = None
        #: All nodes and the topology, as they were when the links were last seen to.
        self._seen: tuple[list[NodeInfo], Declared] = ([], UNDECLARED)
        #: The places that can be sent to, in the order in which their links came up.
        self.up: dict[int, None] = {}

    @property
    def nodes(self) -> list[int]:
        """The nodes that a link to at least one shard is up to."""
        return sorted(dict.fromkeys(map(place_node, self.up)))

    def handle(self, event: LinkOpened | LinkClosed) -> None:
        """A link came up, or broke."""
        if isinstance(event, LinkOpened):
            self.up[event.place] = None
        else:
            self.up.pop(event.place, None)

    def link_to_founders(self) -> None:
        """Let the host link to the nodes that the set was founded with."""
        self._connect({one.node: Connect(*one) for one in self._identity.members})

    def follow(self, nodes: Nodes, declared: Declared) -> None:
        """Let the host link to the nodes that there are now, if others are known than before.

        It is told once of each removed node, of one that it never linked to as well: it may know
        the birth of that node from its last run, and serves it until then.
        """
        if self._seen == (seen := (nodes.ever(), declared)):
            return
        self._seen = seen
        there = nodes.all()
        if all(node.id != self._identity.node for node in there):
            return  # it is older than this node
        # A copy that was made while the set was founded does not hold all founders yet.
        wanted = {m.node: Connect(*m) for m in self._identity.members if nodes.get(m.node) is None}
        joined = {
            n.id: Connect(n.id, n.host, n.port, n.birth, nodes.set_of(n.id, declared), n.join_key)
            for n in there
            if n.port
        }
        self._heard = {
            node: effect for node, effect in self._heard.items() if _is_news(nodes.get(node))
        }
        self._disconnect_removed(nodes)
        self._connect(wanted | joined | self._heard)

    @property
    def is_guarded(self) -> bool:
        """Whether the host takes links of nodes that it knows only."""
        return self._guarded is True

    def in_turn(self) -> int:
        """Return a place that can be sent to, each in its turn; there is one."""
        places = [*self.up]
        return places[next(self._turns) % len(places)]

    def hear(self, told: Sequence[NodeNews], nodes: Nodes) -> None:
        """Let the host link to nodes that another node told of, as far as `nodes` do not know them:
        the registry here may be older than they are.
        """
        for one in told:
            if one.node != self._identity.node and one.port and _is_news(nodes.get(one.node)):
                self._heard[one.node] = Connect(*astuple(one))
        self._connect(self._connected | self._heard)

    def guard(self, mode: str, is_current: bool) -> None:
        """Let the host guard its links in a closed set, and no more once a current copy of the
        registry has another `mode`.
        """
        is_closed = mode == "closed"
        if self._guarded is not is_closed and (is_closed or is_current):
            self._guarded = is_closed
            self._outbox.put(GuardLinks(is_closed))

    def end_all(self) -> None:
        """Let the host break all links."""
        self._connect({})

    def _disconnect_removed(self, nodes: Nodes) -> None:
        for node in nodes.ever():
            if node.state == "removed" and node.id not in self._removed:
                self._removed.add(node.id)
                self._connected.pop(node.id, None)
                outlived = nodes.promotions.outlived.get(node.id, 0)
                self._outbox.put(Disconnect(node.id, outlived))

    def _connect(self, wanted: dict[int, Connect]) -> None:
        for node, effect in wanted.items():
            if node != self._identity.node and self._connected.get(node) != effect:
                self._connected[node] = effect
                self._outbox.put(effect)
        for node in [node for node in self._connected if node not in wanted]:
            del self._connected[node]
            self._outbox.put(Disconnect(node))


def _is_news(known: NodeInfo | None) -> bool:
    """Whether what others tell of a node may be newer than what is known here."""
    return known is None or not (known.birth or known.state == "removed")


class BrokerSet:
    """The set as one of its shards sees it."""

    __slots__ = ("_forwarder", "_hand_over_until", "_handed_over", "_identity", "_layout",
                 "_level", "_links", "_lost_registry", "_moving", "_outbox", "_refill",
                 "_registry", "_report_ms", "_time", "_topics")  # fmt: skip

    def __init__(
        self,
        identity: Identity,
        layout: Layout,
        level: int,
        topics: Topics,
        registry: Registry,
        forwarder: Forwarder,
        outbox: Outbox,
        time: Clocks,
        fitness: Fitness,
        refill: Refill,
    ) -> None:
        """Be a shard of a node that supports format level `level`; `start` comes next."""
        self._identity = identity
        self._layout = layout
        self._level = level
        self._topics = topics
        self._registry = registry
        self._forwarder = forwarder
        self._outbox = outbox
        self._time = time
        self._refill = refill
        self._moving = GroupMover(time, fitness)
        self._links = NodeLinks(identity, outbox)
        self._report_ms = 0
        forwarder.listen(self, AskNodes)
        #: The registry's group, if its log is damaged here.
        self._lost_registry: Group | None = None
        self._hand_over_until = 0
        self._handed_over = False

    # -- links -------------------------------------------------------------------------------

    def start(self) -> None:
        """Let the host link to the nodes that the set was founded with."""
        self._links.link_to_founders()

    def take_registry(self, group: Group) -> None:
        """Take the registry's group as it was opened. Raises its damage where nobody else has it.

        In a set, others have what is damaged here, and are asked to give it back.
        """
        lone = self._identity.founding_voters == (group.voter,)
        if group.damage is not None and lone and not group.has_others:
            raise group.damage
        self._lost_registry = group if group.damage is not None else None
        self._registry.take_group(group if group.damage is None else None)

    def link(self, event: LinkOpened | LinkClosed) -> None:
        """A link came up, or broke."""
        self._links.handle(event)

    def outlived(self, lineage: int) -> None:
        """Leave all groups: they continue elsewhere in this lineage. The data stays here, for
        operators who look for lost messages.
        """
        for group in self._groups():
            if group.node.lineages.current < lineage:
                group.node.lineages.retire(lineage)
                group.process_ready()

    # -- time --------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Follow what the registry says, tell it what it does not know, and move groups."""
        self._check_itself()
        self._links.follow(self._catalog.nodes, self._catalog.topology.declared)
        self._links.guard(self._catalog.access.mode, self._registry.ready)
        if self._time.monotonic_ms() >= self._report_ms:
            self._report_ms = self._time.monotonic_ms() + _REPORT_EVERY_MS
            self._report()
            self._report_settled()
            self._report_lost()
            self._seek_nodes()
        if self._registry.ready and self._registry.group is not None:
            with suppress(Refused):  # it is asked again at the next tick
                self._registry.membership.rebalance()
        if self._moving.is_due:
            here = (group.id for group in self._groups())
            turn = self._moving.turn(here, self._catalog.nodes.unsettled)
            self._moving.look(filter(None, map(self._led, turn)), self._catalog.nodes)

    def _seek_nodes(self) -> None:
        """Ask another node which nodes there are, if no link goes to the leader of the registry.
        A node that was added while this one was down may lead it, and its links are not taken here
        until it is known.
        """
        if not self._links.is_guarded or self._registry.ready or not self._links.up:
            return
        leader = self._forwarder.routes.leader(REGISTRY_GROUP)
        if leader == self._identity.node or leader in self._links.nodes:
            return
        with suppress(Refused):  # others are asked in the next seconds
            self._forwarder.ask_own(self._links.in_turn(), AskNodes())

    def answered(self, frame: ClientFrame) -> None:
        """Take another node's answer to which nodes there are."""
        told = decode_reply(frame)
        if isinstance(told, NodesTold):
            self._links.hear(told.nodes, self._catalog.nodes)

    def _check_itself(self) -> None:
        """Raise `Halted` where this node must not be in its set."""
        if self._catalog.nodes.level > self._level:
            raise Halted(
                f"format level {self._catalog.nodes.level} is written in this set, and this "
                f"release reads up to {self._level}: upgrade this node"
            )
        known = self._catalog.nodes.get(self._identity.node)
        if known is not None and known.birth not in (0, self._identity.birth):
            raise Halted(
                f"node {known.id} of this set has another data folder: start it with that one. If "
                "that is lost, add a node under another number (`weir node add`), then drain and "
                f"remove node {known.id}"
            )
        applied, own = self._catalog.topology, self._identity.brokerset
        found = self._catalog.nodes.set_of(self._identity.node, applied.declared)
        if found not in (SET_UNKNOWN, own):
            topology = applied.topology
            raise Halted(
                f"node {self._identity.node} was founded in BrokerSet {name_of(topology, own)}, "
                f"and the system has it in {name_of(topology, found)}: found it anew in an empty "
                f"folder (`weir init --brokerset {found}`), or add it under another number"
            )

    def _report(self) -> None:
        """Say how many shards this node runs, its format level, and of which set it is, if the
        registry says else.
        """
        me, known = self._identity, self._catalog.nodes.get(self._identity.node)
        if self._registry.group is None or known is None:
            return
        own = self._layout.shards, self._level, me.birth
        if (known.shards, known.level, known.birth) != own:
            self._tell(ReportNode(me.node, *own))
        nodes = self._catalog.nodes
        says_it = nodes.level >= FORMAT_LEVEL_TOPOLOGY and (me.brokerset or nodes.uses_sets)
        if says_it and known.brokerset != me.brokerset:
            self._tell(ReportSet(me.node, me.brokerset))

    def _report_settled(self) -> None:
        """Say which of the groups led here have arrived where the registry wants them."""
        nodes = self._catalog.nodes
        unsettled = nodes.unsettled
        led = (
            group
            for group in (self._groups() if unsettled else ())
            if group.id in unsettled and group.leads
        )
        if (report := report_of(led, nodes)) is not None:
            self._tell(report)

    def _report_lost(self) -> None:
        """Ask to come back to groups of which something is lost here, with what others have."""
        for partition in self._topics.partitions():
            group = partition.group
            is_whole = group.damage is None and not group.is_incomplete
            if is_whole or self._refill.is_hopeful(group.id):  # it may soon have all that it lacks
                continue
            if group.leads:
                give_away([group])  # it could not serve what it lacks, nor give it to others
            elif group.rejoin.others_go_on:
                self._tell(ReportLost(group.id, group.voter))
            elif group.damage is None:
                _ask_again(group)
        registry = self._lost_registry
        if registry is None or not registry.rejoin.others_go_on:
            return
        if self._refill.is_hopeful(registry.id):
            return
        for place in self._links.up:  # the leader is not known here: it alone answers
            if place_shard(place) == self._layout.registry_shard:
                with suppress(Refused):
                    report = ReportLost(registry.id, registry.voter)
                    self._forwarder.ask_own(place, report, _REPORT)

    def _tell(self, report: Report) -> None:
        place = self._forwarder.routes.registry
        with suppress(Refused):  # it is told again as long as it is news
            if place != self._forwarder.shard:
                self._forwarder.ask_own(place, report, _REPORT)
            else:
                self._registry.membership.take_report(report)

    # -- stopping ----------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Let others lead what is led here, for this node is about to stop."""
        self._hand_over_until = self._time.monotonic_ms() + HAND_OVER_MS
        self.hand_over_again()

    def hand_over_again(self) -> None:
        """Hand over what could not be before, or what nobody took: a leader that was elected just
        now, or whose followers lag, has nobody to hand over to yet.
        """
        give_away(group for group in self._shared_groups() if group.node.accepts)

    @property
    def handed_over(self) -> bool:
        """Whether nothing is led here any more that another could lead, or time is up."""
        if not self._handed_over:
            late = self._time.monotonic_ms() >= self._hand_over_until
            self._handed_over = late or not any(self._shared_groups())
        return self._handed_over

    def leave(self) -> None:
        """Let the host break the links: what others send would keep the logs from coming to rest,
        and they could hand back what was handed over.
        """
        self._links.end_all()

    def _shared_groups(self) -> Iterator[Group]:
        """Yield the groups that are led here and have other voters."""
        for group in self._groups():
            if group.leads and len(group.node.configuration.voters) > 1:
                yield group

    def _groups(self) -> Iterator[Group]:
        if self._registry.group is not None:
            yield self._registry.group
        for partition in self._topics.partitions():
            if partition.group.damage is None:
                yield partition.group

    def _led(self, group: int) -> Group | None:
        """Return a group if it is led here."""
        if group == REGISTRY_GROUP:
            found = self._registry.group
        else:
            partition = self._topics.find(group)
            found = partition.group if partition is not None else None
        return found if found is not None and found.leads else None

    # -- requests ----------------------------------------------------------------------------

    def handlers(self) -> dict[type[Any], Handler]:
        """Return what answers each request about nodes."""
        return {
            ListNodes: self._list,
            ListSets: self._list_sets,
            DescribeShard: self._describe,
            ChangeNode: self._change,
            RaiseLevel: self._raise_level,
            TransferLeader: self._transfer,
            ReportNode: self._reported,
            ReportSettled: self._reported,
            ReportLost: self._reported,
            ReportSet: self._reported,
            AskNodes: self._tell_nodes,
        }

    def _tell_nodes(self, session: Session, caller: Caller, request: AskNodes) -> None:
        rows = [
            NodeNews(one.id, one.host, one.port, one.birth, one.brokerset, one.join_key)
            for one in self._catalog.nodes.all()
            if one.port
        ]
        self._outbox.reply(caller, NodesTold(rows[-LINK_NODES_MAX:]))

    def _list(self, session: Session, caller: Caller, request: ListNodes) -> None:
        if not self._catalog.nodes.all():
            raise unfounded(self._identity.members, self._identity.node, self.linked)
        self._outbox.reply(caller, self._registry.membership.listed())

    def _list_sets(self, session: Session, caller: Caller, request: ListSets) -> None:
        self._outbox.reply(caller, self._registry.membership.listed_sets())

    def _change(self, session: Session, caller: Caller, request: ChangeNode) -> None:
        self._registry.membership.change(caller, request)

    def _raise_level(self, session: Session, caller: Caller, request: RaiseLevel) -> None:
        self._registry.membership.raise_level(caller, request)

    def _reported(self, session: Session, caller: Caller, request: Report) -> None:
        self._outbox.answered(session.id)  # there is no reply: what it did, the registry shows
        self._registry.membership.take_report(request)

    def _transfer(self, session: Session, caller: Caller, request: TransferLeader) -> None:
        number = request.address.group
        if number == REGISTRY_GROUP:
            group = self._registry.group
        else:
            group = self._topics.partition(number)[1].group
        if group is None or not group.leads:
            raise NotLeader("this shard does not lead the partition: ask its leader", 0)
        voter = heir(group, request.node, self._catalog.nodes)
        if voter != group.voter and not take(group, Transfer(voter)):
            raise NotLeader("the leader is already handing over: ask again shortly", 0)
        self._outbox.reply(caller, Transferred(node_of(voter)))

    def _describe(self, session: Session, caller: Caller, request: DescribeShard) -> None:
        found = self.standing
        self._outbox.reply(
            caller,
            ShardInfo(
                self._identity.node, self._identity.shard, found.led, found.held,
                self._moving.moving, found.leaderless, dict(found.lagging), self.linked,
            ),
        )  # fmt: skip

    @property
    def standing(self) -> Standing:
        """How the groups of this shard stand."""
        return standing_of(self._groups())

    @property
    def linked(self) -> list[int]:
        """The nodes that a link to at least one shard is up to."""
        return self._links.nodes

    @property
    def _catalog(self) -> Catalog:
        return self._topics.catalog


def _ask_again(group: Group) -> None:
    """Let the leader say again whether the others could do without what was lost here: who follows
    is told of nothing while nothing happens.
    """
    group.node.ask_again()
    group.process_ready()
