"""Who belongs to a domain's order, and how far it is complete (DESIGN §5 Aggregation).

The roster is part of the order: it changes by entries of the domain's partition 0, which every
reader meets at the same place. Registers are soft state: their loss costs time, never order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Above every stamp: nothing is waited for.
NO_BOUND = 1 << 63


@dataclass(slots=True)
class _Member:
    """A partition that counts above `floor` and up to `end`; nothing of it is at or below floor."""

    floor: int
    end: int = NO_BOUND
    #: The highest barrier that was reported and may be used.
    reached: int = 0

    @property
    def bound(self) -> int:
        """Up to here nothing new comes of it."""
        reached = max(self.floor, self.reached)
        return NO_BOUND if reached >= self.end else reached


class Roster:
    """A register a partition, never one a node (counterexample 4); the domain's barrier is the
    least of them, and a partition that nobody reports keeps its last value.
    """

    __slots__ = ("_barrier", "_members")

    def __init__(self, partitions: Iterable[int]) -> None:
        """Begin with the partitions that the domain was founded with."""
        self._members = {partition: _Member(0) for partition in partitions}
        #: None once it may have changed: it is asked for far more often than it does.
        self._barrier: int | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, partition: int) -> bool:
        return partition in self._members

    def join(self, partition: int, floor: int) -> None:
        """Count a partition in: it was created to stamp above `floor` (counterexample 6)."""
        self._members.setdefault(partition, _Member(floor))
        self._barrier = None

    def end(self, partition: int, stamp: int) -> None:
        """Count a partition out above `stamp`: it was sealed there."""
        member = self._members[partition]
        member.end = min(member.end, stamp)
        self._barrier = None

    def report(self, partition: int, stamp: int) -> None:
        """Note that nothing at or below `stamp` comes of a partition any more, but what is here."""
        member = self._members[partition]
        if stamp > member.reached:
            if self._barrier == member.bound:
                self._barrier = None
            member.reached = stamp

    @property
    def barrier(self) -> int:
        """All at or below it is here, of every partition."""
        if self._barrier is None:
            self._barrier = min((member.bound for member in self._members.values()), default=0)
        return self._barrier

    def behind(self) -> list[int]:
        """The partitions that hold the barrier where it is: those to hear of first."""
        barrier = self.barrier
        if barrier == NO_BOUND:
            return []
        return [p for p, member in self._members.items() if member.bound == barrier]
