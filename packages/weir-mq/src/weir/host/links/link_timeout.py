"""How long the other side of a link may say nothing: decided from the gaps between its heartbeats.

A link on which heartbeats come steadily is given up soon. One whose heartbeats come late, because
its node or the network is loaded, is given more time. Pure: times in milliseconds are given.
"""

from __future__ import annotations

import math
from collections import deque

from weir.model.limits import LINK_SILENT_MS

#: The least and the most that the limit can be.
SILENT_LEAST_MS = 600
SILENT_MOST_MS = LINK_SILENT_MS
#: The limit is so many times the 99th percentile of the gaps.
_TIMES, _PERCENTILE = 6, 0.99
#: Gaps count for so long.
_KEPT_MS = 60_000
#: Below so many gaps nothing is known of a link yet.
_ENOUGH = 20
#: The limit is computed anew so often.
_ANEW_MS = 1_000


class LinkTimeout:
    """The heartbeats of one link, and the limit that follows from them."""

    __slots__ = ("_anew_at", "_gaps", "_last", "limit_ms")

    def __init__(self) -> None:
        """Know of no heartbeat yet."""
        #: Milliseconds without a word after which the link counts as silent.
        self.limit_ms = SILENT_MOST_MS
        self._last: int | None = None
        self._gaps: deque[tuple[int, int]] = deque()
        self._anew_at = 0

    def heard(self, now_ms: int) -> None:
        """A heartbeat came; `now_ms` never falls."""
        last, self._last = self._last, now_ms
        if last is None:
            return
        self._gaps.append((now_ms, now_ms - last))
        while self._gaps[0][0] <= now_ms - _KEPT_MS:
            self._gaps.popleft()
        # A longer gap raises the limit at once; it falls when it is computed anew.
        if now_ms >= self._anew_at or (now_ms - last) * _TIMES > self.limit_ms:
            self._anew_at = now_ms + _ANEW_MS
            self.limit_ms = silent_after_ms([gap for _, gap in self._gaps])


def silent_after_ms(gaps_ms: list[int]) -> int:
    """Return after how many milliseconds without a word a link counts as silent, given the gaps
    between its heartbeats of the last minute.
    """
    if len(gaps_ms) < _ENOUGH:
        return SILENT_MOST_MS
    ordered = sorted(gaps_ms)
    percentile = ordered[math.ceil(_PERCENTILE * len(ordered)) - 1]
    return min(max(_TIMES * percentile, SILENT_LEAST_MS), SILENT_MOST_MS)
