"""The place of a relay node among the tiers: its upper nodes, and the relays below it."""

from __future__ import annotations

from collections.abc import Sequence

from weir.protocol.client.topology import TopologyState
from weir.relay.holds import Child, HoldLimits, limits_in
from weir.relay.ports import ChildrenSet, UpperNode
from weir.relay_node.uppers import Hosts, MarkFeeds, UpperRelays
from weir.tls.dialling import by_its_name
from weir.topology.sets import Topology


class Tiers:
    """What the command line and the topology say of a node of a BrokerSet."""

    def __init__(
        self, brokerset: int, node: int, uppers: UpperRelays, fixed: Sequence[Hosts], core: str = ""
    ) -> None:
        """Pull from the relays at `fixed` addresses; without any, from those of the topology, which
        are reached as the host `core` is: by TLS with its files, or without.
        """
        self._brokerset = brokerset
        self._node = node
        self._fixed = fixed
        self._core = core
        #: None before the core told it.
        self._told: TopologyState | None = None
        self._limits: dict[Child, HoldLimits] | None = None
        self.uppers = uppers
        #: What readers and relays below are told of how far the order of topics is complete.
        self.marks = MarkFeeds()

    def start(self) -> None:
        """Begin to reach the relays that the command line names."""
        self.uppers.use(self._fixed)

    def take(self, told: TopologyState) -> bool:
        """Take the topology; return whether it is another one than before."""
        if self._told is not None and told.version == self._told.version:
            return False
        self._told = told
        self._limits = limits_in(told.topology) if told.version else None
        if not self._fixed:
            self.uppers.use(uppers_in(told.topology, self._brokerset, self._node, self._core))
        return True

    def name_of(self, upper: UpperNode) -> str:
        """Return where an upper node is reached, for people."""
        relay = self.uppers.find(upper)
        return "core" if upper.is_core else f"relay {upper.node}" if relay is None else str(relay)

    def children(self, topic: str) -> ChildrenSet | None:
        """Return the nodes that pull a topic, by its full name, from here, and what is kept for
        relays; None while that is not known. What they need is kept for a day then.
        """
        if self._told is None:
            return None
        found = children_in(self._told.topology, self._brokerset, topic)
        return ChildrenSet(found, self._limits)


def uppers_in(
    topology: Topology, brokerset: int, node: int, core: str = ""
) -> tuple[Hosts, ...]:  # fmt: skip
    """Return where the nodes of the sets above a set are reached that are relays, too, the
    preferred ones first: as `core` is, each by its own name. Of a set with several nodes, each node
    below has another one first.
    """
    row = topology.by_id(brokerset)
    found: list[Hosts] = []
    for id in row.upper if row is not None else ():
        above = topology.by_id(id)
        if above is None or above.tier == "core" or not above.nodes:
            continue
        turn = node % len(above.nodes)
        found += [
            ((by_its_name(one.host, core), one.port),)
            for one in above.nodes[turn:] + above.nodes[:turn]
        ]
    return tuple(found)


def children_in(topology: Topology, brokerset: int, topic: str) -> frozenset[Child]:
    """Return the nodes of the sets that pull a topic, by its full name, from a set."""
    return frozenset(
        (row.id, one.number)
        for row in topology.children(brokerset)
        if row.tags_of(topic) is not None
        for one in row.nodes
    )
