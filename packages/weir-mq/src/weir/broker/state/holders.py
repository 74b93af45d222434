"""Who holds which offsets: disjoint runs in order, each of one grant.

Derived from a cluster's grants, so that who gets a run finds those it takes it from without looking
at all the others: ten thousand messages may each be held back by themselves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Holders:
    """A map from offsets to fencing numbers; lists in step, sorted by the first offset."""

    __slots__ = ("_fences", "_firsts", "_nexts")

    def __init__(self) -> None:
        """Begin with nothing held."""
        self._firsts: list[int] = []
        self._nexts: list[int] = []
        self._fences: list[int] = []

    def put(self, first: int, behind: int, fence: int) -> None:
        """Let grant `fence` hold [first, behind), which nobody holds."""
        at = bisect_left(self._firsts, first)
        self._firsts.insert(at, first)
        self._nexts.insert(at, behind)
        self._fences.insert(at, fence)

    def within(self, first: int, behind: int) -> list[tuple[int, int, int]]:
        """Return the runs held in [first, behind), cut off at its ends: (fence, first, next)."""
        if first >= behind:
            return []
        lo, hi = bisect_right(self._nexts, first), bisect_left(self._firsts, behind)
        return [
            (self._fences[at], max(self._firsts[at], first), min(self._nexts[at], behind))
            for at in range(lo, hi)
        ]

    def clear(self, first: int, behind: int) -> None:
        """Let nobody hold any of [first, behind)."""
        lo, hi = bisect_right(self._nexts, first), bisect_left(self._firsts, behind)
        if lo >= hi or first >= behind:
            return
        kept = [
            (self._firsts[lo], first, self._fences[lo]),
            (behind, self._nexts[hi - 1], self._fences[hi - 1]),
        ]
        kept = [run for run in kept if run[0] < run[1]]
        self._firsts[lo:hi] = [run[0] for run in kept]
        self._nexts[lo:hi] = [run[1] for run in kept]
        self._fences[lo:hi] = [run[2] for run in kept]
