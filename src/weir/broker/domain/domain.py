"""One topic's order as one shard sees it: a register a partition, and who waits for them.

Registers are soft state: their loss costs time, never order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from weir.broker.domain.askers import Asker, Scope
from weir.order.barrier import NO_BARRIER, Barrier


class Domain:
    """What is known of the partitions of one topic, and who waits until they are further."""

    __slots__ = ("_behind", "_behind_of", "_waiting", "asked_ms", "registers", "roster", "scope",
                 "topic")  # fmt: skip

    def __init__(self, topic: int, scope: Scope) -> None:
        """Nothing is known of a topic, by its id."""
        self.topic = topic
        self.scope = scope
        self.asked_ms = 0
        self.registers: dict[int, Barrier] = {}
        self.roster: tuple[tuple[int, int], ...] = ()
        self._waiting: list[tuple[int, int, Asker]] = []
        #: Of the lowest stamp that somebody waits for: the partitions not known to be there.
        self._behind: list[int] = []
        self._behind_of = 0

    def take(self, partition: int, barrier: Barrier) -> None:
        """Keep what somebody who leads, or led, said of a partition, if it is news."""
        if barrier.stamp > self.registers.get(partition, NO_BARRIER).stamp:
            self.registers[partition] = barrier

    def learn(self, roster: Iterable[tuple[int, int]]) -> None:
        """Keep the longest roster: it only grows."""
        self.roster = max(self.roster, tuple(roster), key=len)

    def add(self, asker: Asker) -> None:
        """Let somebody wait."""
        heapq.heappush(self._waiting, (asker.stamp, asker.number, asker))

    @property
    def first(self) -> Asker | None:
        """Who waits for the lowest stamp: nobody is told before it."""
        while self._waiting and self._waiting[0][2].is_over:
            heapq.heappop(self._waiting)
        return self._waiting[0][2] if self._waiting else None

    def behind(self, stamp: int, partitions: Iterable[int]) -> list[int]:
        """Return which of `partitions` were not at `stamp` when they were looked at last; for as
        long as that is the stamp, the list is for its caller to shorten.
        """
        if stamp != self._behind_of:
            known = self.registers.get
            self._behind = [p for p in partitions if known(p, NO_BARRIER).stamp < stamp]
            self._behind_of = stamp
        return self._behind

    def forget_behind(self) -> None:
        """Look at all partitions again: there may be more of them."""
        self._behind_of = 0
