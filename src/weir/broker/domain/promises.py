"""What this shard's leaders promise, and ask of their voters (DESIGN §5 Barrier safety).

One number stands for all groups led here. Nothing flows but when somebody asks.
"""

from __future__ import annotations

from weir import raft
from weir.model.limits import MAX_AHEAD_MS
from weir.model.stamp import stamp_at
from weir.order.clock import Highest, Time


class Promises:
    """Lets all clocks of this shard go above a stamp, and asks the voters to remember that."""

    __slots__ = ("_highest", "_multi", "_time")

    def __init__(self, multi: raft.Multi, highest: Highest, time: Time) -> None:
        """Promise nothing yet."""
        self._multi = multi
        self._highest = highest
        self._time = time

    def ask(self, stamp: int) -> None:
        """Promise that nothing is stamped at or below `stamp`, or the time if that is later, by any
        leader here from now on. What lies too far ahead is promised as far as a client may see.
        """
        wall = self._time.wall_ms()
        promised = max(stamp_at(wall), min(stamp, stamp_at(wall + MAX_AHEAD_MS)))
        if promised > self._highest.promised:
            self._highest.promised = promised
            self._multi.fence_bound = max(self._multi.fence_bound, promised)
            self._multi.ask(promised)
