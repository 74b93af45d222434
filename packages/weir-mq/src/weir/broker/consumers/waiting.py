"""Those who wait for messages of one cluster, and what is being granted of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from weir.broker.runtime.waits import Wait, Waits
from weir.protocol.client.messages import Pull


@dataclass(slots=True)
class Line:
    """One cluster's pulls in line, and the ranges of its grants that are proposed.

    `watches` are pulls of no message: they are told when there is something that nobody pulls.
    """

    pulls: Waits[Pull] = field(default_factory=Waits)
    watches: Waits[Pull] = field(default_factory=Waits)
    proposed: list[tuple[int, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.pulls or self.watches or self.proposed)

    def told(self, messages: int) -> list[Wait[Pull]]:
        """Take out as many watches as there are messages that nobody pulls.

        One message does not wake a thousand consumers; if those who were told do not come for it,
        the next are told at the next tick.
        """
        return [self.watches.pop() for _ in range(min(messages, len(self.watches)))]

    def taken(self) -> Iterator[Wait[Pull]]:
        """Take out all who wait, one by one."""
        for waits in (self.pulls, self.watches):
            while waits:
                yield waits.pop()

    def withdrawn(self, session: int) -> list[Wait[Pull]]:
        """Take out all of a peer."""
        return self.pulls.withdrawn(session) + self.watches.withdrawn(session)

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self.pulls.closed(session)
        self.watches.closed(session)

    def holds(self, session: int) -> bool:
        """Return whether a peer waits."""
        return self.pulls.holds(session) or self.watches.holds(session)

    def is_proposed(self, first: int, behind: int) -> bool:
        """Return whether some of [first, behind) is being granted."""
        return any(first < b and a < behind for a, b in self.proposed)
