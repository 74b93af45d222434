"""What nodes of a set tell of themselves: how many shards they run, and what their clocks say.

A replica is on the shard of its node that serves the group's log there, one of as many as that node
said it has.

Each shard tells each that it is linked to what its wall clock says. What is kept of that is the
difference to the own clock that never jumps: so a wall clock that is set, here or there, is seen as
what it is. A message says less than its sender's clock by as long as it took; of the last two the
higher one is kept, so that one that was late moves nothing.

A node whose clock is far from the median of all uses the median, and hands over what it leads: what
has a stamp in the future can never be taken back, nor what was let go as too old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import weir_raft as raft
from weir.broker.api.settings import Layout
from weir.model.ids import node_of, place_node, place_of
from weir.model.limits import MAX_AHEAD_MS
from weir.order.clock import Time

#: So many places are remembered.
_PLACES_MAX = 1 << 16
#: How often a shard tells the time. A clock that is set back is noticed by others after `_KEPT`.
TELL_EVERY_MS = 1_000
_KEPT = 2
#: The clock of a node that has been silent for so long counts as unknown.
_FORGET_MS = 5_000
#: A wall clock that gained or lost so much of late was set.
_SET_MS = 100


class PeerLinks:
    """The links of one shard to shards of other nodes, by place."""

    __slots__ = ("_layout", "_node", "_shards", "places", "up")

    def __init__(self, node: int, layout: Layout) -> None:
        """Be on `node`, whose groups lie as `layout` says; no link is up yet."""
        self._node = node
        self._layout = layout
        #: By node, how many shards it said it runs.
        self._shards: dict[int, int] = {}
        #: By group and voter, the place of a replica, as far as `place_of` was asked: each message
        #: goes to one.
        self.places: dict[tuple[int, int], int] = {}
        #: The places that can be sent to.
        self.up: set[int] = set()

    def opened(self, place: int, shards: int) -> None:
        """A link came up to a place of a node that runs so many shards."""
        self.up.add(place)
        if self._shards.get(place_node(place)) != shards:
            self._shards[place_node(place)] = shards
            self.places.clear()

    def closed(self, place: int) -> None:
        """The link to a place broke."""
        self.up.discard(place)

    def place_of(self, group: int, voter: int) -> int:
        """Return the place of a group's replica."""
        place = self.places.get((group, voter))
        if place is None:
            node = node_of(voter)
            shards = self._shards.get(node, self._layout.shards)
            place = place_of(node, self._layout.log_of(group) % shards)
            if len(self.places) >= _PLACES_MAX:
                self.places.clear()
            self.places[group, voter] = place
        return place

    def places_of(self, group: int) -> list[int]:
        """Return the places of other nodes that can be reached, and that may have a group."""
        log, known = self._layout.log_of(group), sorted(self._shards.items())
        found = [place_of(node, log % shards) for node, shards in known if node != self._node]
        return [place for place in found if place in self.up]


class Voting(Protocol):
    """A group in which this node has a vote."""

    id: int
    #: The id by which the group knows this node.
    voter: int
    node: raft.Node


class Clocks:
    """The wall clocks of this node and of those that it is linked to; the `Time` that it goes by.

    `monotonic_ms` is the own clock that never jumps.
    """

    __slots__ = ("_at", "_heard", "_looked", "_node", "_time", "differ", "monotonic_ms")

    def __init__(self, node: int, time: Time) -> None:
        """Be `node`, which has heard of nobody yet."""
        self._time = time
        #: The host's own function: each event asks for the time, and nothing is added to it here.
        self.monotonic_ms: Callable[[], int] = time.monotonic_ms
        self._node = node
        #: By node, by how much its wall clock lay before the own clock that never jumps.
        self._heard: dict[int, deque[int]] = {}
        #: When that was said last.
        self._at: dict[int, int] = {}
        #: Whether any two clocks, as of the last `look`, differ by more than `max_ahead`: only
        #: then is there anything to ask.
        self.differ = False
        self._looked = self._own()

    def own_ms(self) -> int:
        """Return what the own wall clock says, right or wrong."""
        return self._time.wall_ms()

    def wall_ms(self) -> int:
        """Milliseconds since 1970, by the median of all clocks where the own one is far from it."""
        wall = self._time.wall_ms()
        if not self.differ and abs(wall - self.monotonic_ms() - self._looked) <= _SET_MS:
            return wall  # as nearly always
        return wall - self._astray_at(wall)

    @property
    def astray_ms(self) -> int:
        """By how much the own wall clock lies ahead of `wall_ms`; 0 where it is not far from it."""
        return self._astray_at(self._time.wall_ms())

    def _astray_at(self, wall: int) -> int:
        if not self.differ:
            if abs(wall - self.monotonic_ms() - self._looked) <= _SET_MS:
                return 0
            self.look()
        ahead = self.ahead_ms(self._node, self._heard)
        return ahead if abs(ahead) > MAX_AHEAD_MS else 0

    def told(self, node: int, wall_ms: int) -> None:
        """A node says what its clock says."""
        now = self._at[node] = self.monotonic_ms()
        self._heard.setdefault(node, deque(maxlen=_KEPT)).append(wall_ms - now)
        self.look()

    def look(self) -> None:
        """See whether all clocks agree; called so often that a clock that was set is noticed."""
        now = self.monotonic_ms()
        self._looked = self._time.wall_ms() - now
        if not self._at:
            self.differ = False
            return
        since = now - _FORGET_MS
        for node in [node for node, at in self._at.items() if at < since]:
            del self._at[node], self._heard[node]
        known = [self._looked, *map(max, self._heard.values())]
        self.differ = max(known) - min(known) > MAX_AHEAD_MS

    def ahead_ms(self, node: int, among: Iterable[int]) -> int:
        """Return by how much a node's clock lies before the median of those known `among` some and
        itself; 0 where it is not known.

        Of an even number the lower one in the middle counts: a clock that is ahead does lasting
        harm.
        """
        own = self._of(node)
        if own is None:
            return 0
        known = sorted(at for one in {node, *among} if (at := self._of(one)) is not None)
        return own - known[(len(known) - 1) // 2]

    def is_astray(self, group: Voting) -> bool:
        """Whether this node's clock is too far from the median of a group's voters to lead it."""
        return self.differ and abs(self.ahead_ms(self._node, _nodes(group))) > MAX_AHEAD_MS

    def is_near(self, group: Voting, voter: int) -> bool:
        """Whether a voter's clock is so near the median that a group it is given stays with it."""
        ahead = self.ahead_ms(node_of(voter), _nodes(group)) if self.differ else 0
        return 2 * abs(ahead) <= MAX_AHEAD_MS

    def _of(self, node: int) -> int | None:
        if node == self._node:
            return self._own()
        heard = self._heard.get(node)
        return max(heard) if heard else None

    def _own(self) -> int:
        return self._time.wall_ms() - self.monotonic_ms()


def _nodes(group: Voting) -> list[int]:
    return [node_of(voter) for voter in group.node.configuration.voters]
