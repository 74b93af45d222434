"""Whose disk has no room for more, as one shard of a set hears it.

Such a node refuses publishes to what it leads, though others of the set could take them: it lets
them lead. While its disk stays full it says so, again and again, and is given nothing back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from weir.broker.replica.peers.clocks import TELL_EVERY_MS, Clocks, Voting
from weir.model.ids import node_of, place_node

#: Who has not said for so long that its disk is full has room again, or is gone.
_FORGET_MS = 3 * TELL_EVERY_MS


class Full(NamedTuple):
    """Nodes whose disks are full, and how much each of them is to free, at most."""

    nodes: tuple[int, ...]
    needed_bytes: int

    def __str__(self) -> str:
        if len(self.nodes) == 1:
            return f"node {self.nodes[0]} has a full disk"
        return f"nodes {' and '.join(map(str, self.nodes))} have full disks"


class Rooms:
    """The nodes that are full, and whether this one `is_full`, which its logs tell; if it takes no
    publishes any more, `needed_bytes` are to be freed.
    """

    __slots__ = ("_said", "_time", "is_full", "needed_bytes")

    def __init__(self, time: Clocks) -> None:
        """Have room, as all others."""
        self.is_full = False
        self.needed_bytes = 0
        self._time = time
        #: By place, when it said last that its disk is full, and how much it needs.
        self._said: dict[int, tuple[int, int]] = {}

    def told(self, place: int, needed_bytes: int) -> None:
        """A shard of another node says that its disk is full."""
        self._said[place] = self._time.monotonic_ms(), needed_bytes

    def suits(self, group: Voting, voter: int) -> bool:
        """Whether a voter could lead a group for long: its disk has room, and its clock is near."""
        return node_of(voter) not in self._full() and self._time.is_near(group, voter)

    def short(self, led: Iterable[Voting]) -> dict[int, Full]:
        """Return by id those groups led here whose publishes no majority has room for, though this
        node has, and which nodes lack it.
        """
        found: dict[int, Full] = {}
        needs = {node: needed for node, needed in self._full().items() if needed}
        if not needs:
            return found
        for group in led:
            voters = group.node.configuration.voters
            others = {node_of(voter) for voter in voters if voter != group.voter}
            lacking = sorted(others & needs.keys())
            if 2 * (len(voters) - len(lacking)) <= len(voters):
                found[group.id] = Full(tuple(lacking), max(needs[node] for node in lacking))
        return found

    def _full(self) -> dict[int, int]:
        """Return by node that is full how many bytes it is to free; 0 while it takes publishes."""
        now_ms, found = self._time.monotonic_ms(), dict[int, int]()
        for place, (said_ms, needed) in self._said.items():
            if now_ms - said_ms <= _FORGET_MS:
                node = place_node(place)
                found[node] = max(needed, found.get(node, 0))
        return found
