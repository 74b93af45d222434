"""Whose disk has no room for more, as one shard of a set hears it.

Such a node refuses publishes to what it leads, though others of the set could take them: it lets
them lead. While its disk stays full it says so, again and again, and is given nothing back.
"""

from __future__ import annotations

from weir.broker.peers.clocks import TELL_EVERY_MS, Clocks
from weir.broker.registry.moving import Led
from weir.model.ids import node_of

#: Who has not said for so long that its disk is full has room again, or is gone.
_FORGET_MS = 3 * TELL_EVERY_MS


class Rooms:
    """The nodes that are full, and whether this one `is_full`, which its logs tell."""

    __slots__ = ("_said_ms", "_time", "is_full")

    def __init__(self, time: Clocks) -> None:
        """Have room, as all others."""
        self.is_full = False
        self._time = time
        #: By node, when it said last that its disk is full.
        self._said_ms: dict[int, int] = {}

    def told(self, node: int) -> None:
        """A node says that its disk is full."""
        self._said_ms[node] = self._time.monotonic_ms()

    def suits(self, group: Led, voter: int) -> bool:
        """Whether a voter could lead a group for long: its disk has room, and its clock is near."""
        said = self._said_ms.get(node_of(voter))
        if said is not None and self._time.monotonic_ms() - said <= _FORGET_MS:
            return False
        return self._time.is_near(group, voter)
