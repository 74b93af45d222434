"""Who is sent old entries: of all groups that lag, only a few at a time have a slot.

Each may have a whole window under way. Were all of a node that was away to get theirs at once, its
link would hold more than it may, and break for those too that lag by nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from weir.order.clock import Time

#: Groups of a shard whose followers are being sent what lies on its disk.
SLOTS = 4
#: A slot is free when what was sent is acknowledged; so late, nobody waits for that any more.
_PATIENCE_MS = 2_000


class Slots:
    """The groups of one shard that have a slot, and those in line for one."""

    __slots__ = ("_held", "_line", "_time")

    def __init__(self, time: Time) -> None:
        """Begin with nobody in line."""
        self._time = time
        #: Until when each group has its slot, the longest first.
        self._held: OrderedDict[int, int] = OrderedDict()
        self._line: dict[int, list[Callable[[], None]]] = {}

    def take(self, group: int, go: Callable[[], None]) -> None:
        """Call `go` now if the group has a slot or can get one, else once it gets one."""
        if group in self._held or len(self._held) < SLOTS:
            self._hold(group)
            go()
        else:
            self._line.setdefault(group, []).append(go)

    def done(self, group: int) -> None:
        """A group needs its slot no more: the next one in line has it."""
        self._held.pop(group, None)
        self._next()

    def forget(self, group: int) -> None:
        """A group is gone, or led by others."""
        self._line.pop(group, None)
        self.done(group)

    def tick(self) -> None:
        """Free the slots of those who were sent something and never answered."""
        if not (self._held or self._line):
            return
        now = self._time.monotonic_ms()
        for group in [group for group, until in self._held.items() if until <= now]:
            del self._held[group]
        self._next()

    def _hold(self, group: int) -> None:
        self._held[group] = self._time.monotonic_ms() + _PATIENCE_MS

    def _next(self) -> None:
        while self._line and len(self._held) < SLOTS:
            group = next(iter(self._line))
            self._hold(group)
            for go in self._line.pop(group):
                go()
