"""How far a voter's promises may go: durable before they are given (DESIGN §5 Barrier safety)."""

from __future__ import annotations

from weir.model.stamp import stamp_at

#: A voter that starts again stands by all it may have promised, so each extension may cost whoever
#: reads in total order as long.
EXTENSION_MS = 1_000
#: Less than this in hand, and it is time for the next extension: a flush takes its time.
_LEAST_MS = 500


class Bound:
    """The highest stamp that one log's shard may promise to stand by, whatever happens to it.

    It lies in the log as hard state does. Who starts again holds itself to the whole of it.
    """

    __slots__ = ("_asked", "durable")

    def __init__(self, durable: int = 0) -> None:
        """Begin with what the log holds."""
        #: Up to here promises may be given.
        self.durable = durable
        self._asked = durable

    def extension(self, wall_ms: int) -> int:
        """Return the bound to write now, or 0 while there is enough in hand or under way."""
        if self._asked >= stamp_at(wall_ms + _LEAST_MS):
            return 0
        self._asked = stamp_at(wall_ms + EXTENSION_MS)
        return self._asked

    def written(self, bound: int) -> None:
        """Note that a bound is durable."""
        self.durable = max(self.durable, bound)
