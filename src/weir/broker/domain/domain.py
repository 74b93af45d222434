"""One topic's order as one shard sees it: a register a partition, and who waits for them.

Registers are soft state: their loss costs time, never order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from weir.broker.domain.askers import ANYTIME, Asker, Scope
from weir.order.barrier import NO_BARRIER, Barrier


class Domain:
    """What is known of the partitions of one topic, and who waits until they are further."""

    __slots__ = ("_behind", "_behind_of", "_heard", "_waiting", "asked_ms", "registers", "roster",
                 "scope", "topic")  # fmt: skip

    def __init__(self, topic: int, scope: Scope) -> None:
        """Nothing is known of a topic, by its id."""
        self.topic = topic
        self.scope = scope
        self.asked_ms = 0
        self.registers: dict[int, Barrier] = {}
        self.roster: tuple[tuple[int, int], ...] = ()
        #: By partition, the newest question in whose answer it was told.
        self._heard: dict[int, int] = {}
        self._waiting: list[tuple[int, int, Asker]] = []
        #: Of whom waits for the lowest stamp: the partitions not known to be there.
        self._behind: list[int] = []
        self._behind_of = (0, 0, 0)

    def take(self, partition: int, barrier: Barrier, question: int = 0) -> None:
        """Keep what somebody who leads, or led, said of a partition, if it is news."""
        if barrier.stamp > self.registers.get(partition, NO_BARRIER).stamp:
            self.registers[partition] = barrier
        if question:
            self._heard[partition] = max(question, self._heard.get(partition, 0))

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

    def is_at(self, partition: int, asker: Asker) -> bool:
        """Whether a partition that others lead is where somebody waits for it."""
        if self.registers.get(partition, NO_BARRIER).stamp < asker.stamp:
            return False
        return asker.after == ANYTIME or self._heard.get(partition, 0) > asker.after

    def behind(self, asker: Asker, partitions: Callable[[], Iterable[int]]) -> list[int]:
        """Return which of `partitions` were not where somebody waits for them when they were looked
        at last; as long as that stays the same, the list is for its caller to shorten.
        """
        key = asker.stamp, asker.after, len(self.roster)
        if key != self._behind_of:
            self._behind = [p for p in partitions() if not self.is_at(p, asker)]
            self._behind_of = key
        return self._behind

    def look_again(self) -> None:
        """Look at all partitions again: others may be led here."""
        self._behind_of = (0, 0, 0)
