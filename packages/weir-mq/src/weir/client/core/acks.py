"""Acks of one partition, gathered into ranges: what is done goes out in few requests."""

from __future__ import annotations

from weir.model.limits import ACK_RANGES_MAX


class Acks:
    """Ranges (fence, first, next) that are done and not yet told to the broker."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        """Begin with nothing done."""
        self._ranges: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        """Return the number of ranges that wait."""
        return len(self._ranges)

    def done(self, fence: int, first: int, behind: int) -> None:
        """Note messages [first, behind) of a grant as done; a range that goes on grows."""
        if self._ranges:
            last_fence, last_first, last_behind = self._ranges[-1]
            if last_fence == fence and last_behind == first:
                self._ranges[-1] = (fence, last_first, behind)
                return
        self._ranges.append((fence, first, behind))

    def take(self) -> list[tuple[int, int, int]]:
        """Return the ranges for one request, oldest first, and forget them."""
        taken = self._ranges[:ACK_RANGES_MAX]
        del self._ranges[:ACK_RANGES_MAX]
        return taken

    def put_back(self, ranges: list[tuple[int, int, int]]) -> None:
        """Take back ranges whose request got no answer, before all others."""
        self._ranges[:0] = ranges
