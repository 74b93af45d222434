"""Which shards of other nodes can be reached, and at which of them a group's replicas are.

A replica is on the shard of its node that serves the group's log there, one of as many as that node
said it has.
"""

from __future__ import annotations

from weir.broker.api.settings import Layout
from weir.model.ids import node_of, place_node, place_of

#: So many places are remembered.
_PLACES_MAX = 1 << 16


class PeerLinks:
    """The links of one shard to shards of other nodes, by place."""

    __slots__ = ("_layout", "_node", "_places", "_shards", "up")

    def __init__(self, node: int, layout: Layout) -> None:
        """Be on `node`, whose groups lie as `layout` says; no link is up yet."""
        self._node = node
        self._layout = layout
        #: By node, how many shards it said it runs.
        self._shards: dict[int, int] = {}
        #: By group and voter, the place of a replica: each message asks for one.
        self._places: dict[tuple[int, int], int] = {}
        #: The places that can be sent to.
        self.up: set[int] = set()

    def opened(self, place: int, shards: int) -> None:
        """A link came up to a place of a node that runs so many shards."""
        self.up.add(place)
        if self._shards.get(place_node(place)) != shards:
            self._shards[place_node(place)] = shards
            self._places.clear()

    def closed(self, place: int) -> None:
        """The link to a place broke."""
        self.up.discard(place)

    def place_of(self, group: int, voter: int) -> int:
        """Return the place of a group's replica."""
        place = self._places.get((group, voter))
        if place is None:
            node = node_of(voter)
            shards = self._shards.get(node, self._layout.shards)
            place = place_of(node, self._layout.log_of(group) % shards)
            if len(self._places) >= _PLACES_MAX:
                self._places.clear()
            self._places[group, voter] = place
        return place

    def places_of(self, group: int) -> list[int]:
        """Return the places of other nodes that can be reached, and that may have a group."""
        log, known = self._layout.log_of(group), sorted(self._shards.items())
        found = [place_of(node, log % shards) for node, shards in known if node != self._node]
        return [place for place in found if place in self.up]
