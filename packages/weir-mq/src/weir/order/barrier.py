"""The barrier of one partition, as its leader hands it out, and how far the promises of a voter, on
which it rests, may go: durable before they are given (DESIGN §5 Barrier safety).
"""

from __future__ import annotations

from typing import NamedTuple

from weir.order.clock import stamp_at

#: A voter that starts again stands by all it may have promised, so each extension may cost whoever
#: reads in total order as long.
EXTENSION_MS = 1_000
#: Less than this in hand, and it is time for the next extension: a flush takes its time.
_LEAST_MS = 500


class Barrier(NamedTuple):
    """All that is ever stamped at or below `stamp` lies below offset `through`, and is committed.

    A replica may use it once it has applied everything below `through` (counterexample 5).
    """

    stamp: int
    through: int


#: What is said of a partition of which nothing is known.
NO_BARRIER = Barrier(0, 0)


def barrier_at(fenced: int, committed: int, undecided: int, through: int) -> Barrier:
    """Return what a leader may say now.

    `fenced` is what a majority has promised for it, 0 for nothing; `committed` is the stamp of its
    last committed entry, 0 before one of its own term is; `undecided` is the lowest stamp that it
    has given and that is not committed, 0 if there is none; `through` lies behind its last
    committed message.
    """
    stamp = committed if committed > fenced else fenced
    if undecided and undecided <= stamp:
        stamp = undecided - 1
    return Barrier(stamp, through)


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
