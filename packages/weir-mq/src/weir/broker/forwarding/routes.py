"""Which shard, of which node, answers for a group, as far as that is known here."""

from __future__ import annotations

from typing import Protocol

from weir.broker.api.events import LinkClosed, LinkOpened
from weir.broker.api.settings import Layout
from weir.broker.metadata.catalog import Catalog
from weir.errors import NotLeader
from weir.model.ids import REGISTRY_GROUP, Address, node_of, place_node, place_of, place_shard


class Leaders(Protocol):
    """The groups that lie on a shard."""

    def leader_of(self, group: int, /) -> int:
        """Return the voter that leads a group as far as this shard knows; 0 if it does not."""


class Routes:
    """Places to send to: those of leaders as the groups of this shard know them, else guesses.

    A group lies in the same log on all nodes. Its replica here knows its leader; where there is
    none, or where another shard of this node has it, its preferred leader is the best guess.
    """

    __slots__ = ("_catalog", "_founded", "_groups", "_layout", "_node", "_shards", "shard")

    def __init__(
        self,
        layout: Layout,
        node: int,
        shard: int,
        catalog: Catalog,
        groups: Leaders,
        founded: int = 1,
    ) -> None:
        """Be `shard` of `node`, in a set that so many nodes `founded`; `groups` lie here."""
        self.shard = shard
        self._layout = layout
        self._node = node
        self._catalog = catalog
        self._groups = groups
        self._founded = founded
        #: By node, how many shards it has, as it said itself.
        self._shards: dict[int, int] = {}

    @property
    def several(self) -> bool:
        """Whether the set has other nodes than this one."""
        return self._founded > 1 or len(self._catalog.nodes.all()) > 1

    @property
    def met(self) -> bool:
        """Whether this node knows the nodes of the set that it was founded in."""
        return self._founded <= 1 or bool(self._catalog.nodes.all())

    def nodes(self) -> tuple[tuple[int, str, int], ...]:
        """Return the nodes of the set as (node, host, port); () if there is but this one."""
        nodes = self._catalog.nodes.all()
        return tuple((one.id, one.host, one.port) for one in nodes) if len(nodes) > 1 else ()

    def link(self, event: LinkOpened | LinkClosed) -> None:
        """A node that can be sent to says how many shards it has."""
        if isinstance(event, LinkOpened):
            self._shards[place_node(event.place)] = event.shards

    def toward(self, group: int, foreign: bool = False) -> int:
        """Return the place to ask about a group: this shard's number if it is to answer itself.

        What came from a node (`foreign`) goes to no other one, so that nothing goes round in
        circles while nodes disagree: raises `NotLeader`.
        """
        voter = self._groups.leader_of(group)
        if node_of(voter) == self._node:
            return self.shard
        owner = self._layout.shard_of(group)
        if owner != self.shard:
            return owner
        node = self._likely(group, voter)
        if node in (0, self._node):
            return self.shard
        if foreign:
            raise NotLeader(f"node {node} leads group {group}: ask it", node)
        return self.place(node, group)

    def holder(self, group: int) -> int:
        """Return the shard of this node that has a group's log."""
        return self._layout.shard_of(group)

    def leader(self, group: int) -> int:
        """Return the node that leads a group, or may lead it if it has no replica here; 0: nobody
        is known to.
        """
        return self._likely(group, self._groups.leader_of(group))

    def _likely(self, group: int, voter: int) -> int:
        """Return the node of the voter that leads a group, or of who may, if none is known to."""
        if voter:
            return node_of(voter)
        nodes = [node_of(voter) for voter in self._catalog.voters(group)]
        return 0 if self._node in nodes or not nodes else nodes[0]

    def place(self, node: int, group: int) -> int:
        """Return the shard of another node that has a group's log."""
        return place_of(node, self._layout.log_of(group) % self._shards_of(node))

    def from_here(self, place: int) -> int:
        """Return a shard of any node as the trunks of this shard know it."""
        return place_shard(place) if place_node(place) == self._node else place

    @property
    def registry(self) -> int:
        """Where the registry is led: this shard's number if here, or nobody is known to lead."""
        return self.toward(REGISTRY_GROUP)

    def address(self, group: int) -> Address:
        """Return where a group is led, or most likely will be; of a lone node, without its id."""
        at = self._layout.place(group)
        if not self.several:
            return at
        voters = self._catalog.voters(group)
        likely = node_of(voters[0]) if voters else self._node
        node = self.leader(group) or likely
        if node == self._node:
            return at._replace(node=node)
        return Address(at.log % self._shards_of(node), at.log, group, node)

    def _shards_of(self, node: int) -> int:
        known = self._catalog.nodes.get(node)
        return max(self._shards.get(node) or (known.shards if known else 1), 1)
