"""Sets of offsets as sorted, disjoint runs [first, next): never flat bits (counterexample 21)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """A set of whole numbers; memory grows with the number of runs, not of members."""

    __slots__ = ("_firsts", "_nexts")

    def __init__(self, runs: list[tuple[int, int]] | None = None) -> None:
        """Hold `runs`, in any order, overlapping or not."""
        self._firsts: list[int] = []
        self._nexts: list[int] = []
        for first, behind in runs or ():
            self.add(first, behind)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._nexts, strict=True)))

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def count(self) -> int:
        """How many numbers are in the set."""
        return sum(self._nexts) - sum(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, first: int, behind: int) -> None:
        """Add [first, behind), joining the runs that it touches."""
        if first >= behind:
            return
        lo = bisect_left(self._nexts, first)
        hi = bisect_right(self._firsts, behind)
        if lo < hi:
            first = min(first, self._firsts[lo])
            behind = max(behind, self._nexts[hi - 1])
        self._firsts[lo:hi] = [first]
        self._nexts[lo:hi] = [behind]

    def discard(self, first: int, behind: int) -> None:
        """Take [first, behind) out."""
        if first >= behind:
            return
        lo = bisect_right(self._nexts, first)
        hi = bisect_left(self._firsts, behind)
        if lo >= hi:
            return
        kept = [(self._firsts[lo], first), (behind, self._nexts[hi - 1])]
        kept = [run for run in kept if run[0] < run[1]]
        self._firsts[lo:hi] = [run[0] for run in kept]
        self._nexts[lo:hi] = [run[1] for run in kept]

    def covers(self, first: int, behind: int) -> bool:
        """Return whether all of [first, behind) is in the set."""
        at = bisect_right(self._firsts, first) - 1
        return first >= behind or (at >= 0 and self._nexts[at] >= behind)

    def within(self, first: int, behind: int) -> list[tuple[int, int]]:
        """Return the runs that lie in [first, behind), cut off at its ends."""
        if first >= behind:
            return []
        lo, hi = bisect_right(self._nexts, first), bisect_left(self._firsts, behind)
        runs = zip(self._firsts[lo:hi], self._nexts[lo:hi], strict=True)
        return [(max(a, first), min(b, behind)) for a, b in runs]

    def first_run(self) -> tuple[int, int] | None:
        """Return the lowest run."""
        return (self._firsts[0], self._nexts[0]) if self._firsts else None

    def gap_from(self, first: int, limit: int) -> tuple[int, int]:
        """Return the first run of numbers at or above `first` that are not in the set, cut off at
        `limit`; empty if there is none.
        """
        at = bisect_right(self._firsts, first) - 1
        if at >= 0 and self._nexts[at] > first:
            first = self._nexts[at]
        at += 1
        behind = self._firsts[at] if at < len(self._firsts) else limit
        return min(first, limit), min(behind, limit)
