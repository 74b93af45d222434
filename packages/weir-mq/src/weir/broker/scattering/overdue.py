"""Scatterings of a partition that nobody finishes: somebody is to, from its leader on."""

from __future__ import annotations

from weir.broker.state.scatterings import Recover, Scatterings
from weir.model.limits import MAX_AHEAD_MS
from weir.model.scattering import Attempt
from weir.model.stamp import milliseconds_of
from weir.order.clock import Time

#: A coordinator has so long, as stamps and the leader's clock have it. Where a stamp lies too far
#: ahead, for a clock was wrong or is, the time counts since the leader found it.
UNDECIDED_MS = 500
#: What is committed here keeps nobody waiting.
UNCLOSED_MS = 10_000
_LOOK_EVERY_MS = 100
_AGAIN_MS_MAX = 8_000
#: Where what was waited for came too late, the next one has up to so many times as long: else slow
#: disks would let nothing ever come to be.
_PATIENCE_MAX = 16


class Overdue:
    """Looks at what is unfinished now and then, and again later each time."""

    __slots__ = ("_again", "_far", "_known", "_look_at_ms", "_patience", "_recover", "_time")

    def __init__(self, known: Scatterings, time: Time, recover: Recover) -> None:
        """Begin to lead; `recover` gets attempts and all their parts."""
        self._known = known
        self._time = time
        self._recover = recover
        self._look_at_ms = 0
        self._patience = 1
        #: By attempt, when to try again, and how long to wait the time after that.
        self._again: dict[Attempt, tuple[int, int]] = {}
        #: By attempt whose stamp lies, or lay, too far ahead, when it was found.
        self._far: dict[Attempt, int] = {}

    def tick(self) -> None:
        """Let what is overdue be finished."""
        now_ms, wall_ms = self._time.monotonic_ms(), self._time.wall_ms()
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + _LOOK_EVERY_MS
        overdue: dict[Attempt, tuple[tuple[int, ...], bool]] = {}
        far: dict[Attempt, int] = {}
        for attempt, _, parts, is_undecided in self._known.unfinished():
            age_ms = wall_ms - milliseconds_of(attempt.stamp)
            if age_ms < -MAX_AHEAD_MS or attempt in self._far:
                far[attempt] = self._far.get(attempt, now_ms)
                age_ms = now_ms - far[attempt]
            if age_ms >= (UNDECIDED_MS * self._patience if is_undecided else UNCLOSED_MS):
                overdue[attempt] = parts, not is_undecided
        self._far = far
        self._again = {one: again for one, again in self._again.items() if one in overdue}
        for attempt, (parts, is_committed) in overdue.items():
            at_ms, pause_ms = self._again.get(attempt, (now_ms, UNDECIDED_MS))
            if now_ms >= at_ms:
                self._again[attempt] = now_ms + pause_ms, min(2 * pause_ms, _AGAIN_MS_MAX)
                self._recover(attempt, parts, is_committed)

    def decided(self, attempt: Attempt, committed: bool) -> None:
        """It is known what became of an attempt, perhaps because it was found out from here."""
        if attempt in self._again:
            patience = self._patience // 2 if committed else 2 * self._patience
            self._patience = min(max(patience, 1), _PATIENCE_MAX)
