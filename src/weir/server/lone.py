"""Which flushes the loop runs itself: small ones, of a log that is not busy, on a quick disk."""

from __future__ import annotations

from weir.log.flush import Flush
from weir.model.limits import KIB

#: A flush of one writer, or two: more of it, or more of them, and what comes meanwhile is to be
#: read while the disk works.
LONE_BYTES = 64 * KIB
LONE_TOKENS = 2
#: What peers asked for since the flush before: who asks for more has something under way besides,
#: which is to be read while the disk works.
LONE_ASKED = 3
#: A crowd's flushes are small now and then: so many in a row are no crowd's.
LONE_IN_A_ROW = 8
#: What flushes may take on average for the loop to wait for one: a hand-over to a thread and back
#: takes a tenth of a millisecond, which is nothing to a slower disk.
QUICK_SECONDS = 0.001
#: Of about how many flushes the average is.
QUICK_OF = 32


class Lone:
    """Judges the flushes of one log, one after the other.

    A disk that stalls once for half a minute holds the loop up once: it is thought slow then, for
    some 230 flushes. So is one of which little is known, for some 50.
    """

    __slots__ = ("_mean", "_small")

    def __init__(self) -> None:
        """Know nothing of the disk."""
        self._mean = 4 * QUICK_SECONDS
        self._small = 0

    def takes(self, flush: Flush, asked: int) -> bool:
        """Whether the loop may run this flush, which is the log's next one; peers `asked` for so
        many things since the last.
        """
        runs = flush.runs
        small = (
            asked <= LONE_ASKED
            and len(runs) == 1
            and runs[0].missing is None
            and len(flush.tokens) <= LONE_TOKENS
            and flush.end - flush.start <= LONE_BYTES
        )
        self._small = self._small + 1 if small else 0
        return self._small > LONE_IN_A_ROW and self._mean <= QUICK_SECONDS

    def took(self, seconds: float) -> None:
        """Learn how long a flush took, whoever ran it."""
        self._mean += (seconds - self._mean) / QUICK_OF
