"""The background scrub of one log: a piece now and then, so that rot is found early."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from weir.order.clock import Time
from weir.storage.errors import LogDamaged
from weir.storage.format.segment import Segment
from weir.storage.log import Log
from weir.storage.scrub import Scrubbed, ScrubPiece

#: A start has better things to do.
FIRST_MS = 60_000
#: One piece of 4 MiB every so often, or less often while the log is busy: about 16 MB/s at most.
PIECE_EVERY_MS = 250
BUSY_PIECE_EVERY_MS = 5_000
#: From the end of one round to the next.
ROUND_EVERY_MS = 24 * 3600 * 1000
#: So many bad places are remembered; all of them are logged.
_PLACES_MAX = 1_000


class Scrubber:
    """Goes round over the closed segments. What is bad stays where it is: readers verify too."""

    __slots__ = ("_due_ms", "_log", "_piece", "_segment", "_time", "damage", "rounds", "size")

    def __init__(self, log: Log, time: Time, known: Iterable[LogDamaged] = ()) -> None:
        """Begin a first round some time after the start, which found what is `known` to be bad."""
        self._log = log
        self._time = time
        self._due_ms = time.monotonic_ms() + FIRST_MS
        self._segment: Segment | None = None
        self._piece: ScrubPiece | None = None
        #: What was found bad, by log position; how many bytes were verified; rounds that are done.
        self.damage = {bad.position: bad for bad in islice(known, _PLACES_MAX)}
        self.size = 0
        self.rounds = 0

    def next_piece(self, idle: bool) -> ScrubPiece | None:
        """Return the next piece if it is time; tell `done` before the next one is asked for."""
        now = self._time.monotonic_ms()
        if now < self._due_ms + (0 if idle else BUSY_PIECE_EVERY_MS):
            return None
        if self._piece is None:
            self._piece = self._first_of_next()
        self._due_ms = now + (PIECE_EVERY_MS if self._piece else ROUND_EVERY_MS)
        return self._piece

    def done(self, found: Scrubbed | None) -> None:
        """Take what a piece found; None where it could not be read: the next round tries again."""
        self._piece = found.next_piece if found is not None else None
        if found is not None:
            self.size += found.size
            for bad in found.bad[: max(_PLACES_MAX - len(self.damage), 0)]:
                self.damage[bad.position] = bad
        if self._piece is None and self._segment is not None:
            self._log.reader.let_go(self._segment)

    def mended(self, place: int) -> None:
        """What lies at a place is sound again."""
        self.damage.pop(place, None)

    def _first_of_next(self) -> ScrubPiece | None:
        self._segment = self._log.reader.hold_closed(self._segment.end if self._segment else 0)
        if self._segment is None:
            self.rounds += 1
            return None
        return self._log.reader.scrub(self._segment)
