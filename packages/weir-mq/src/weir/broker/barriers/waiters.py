"""Those who wait until a topic's order is further, by session and by deadline."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from weir.errors import Overloaded
from weir.model.limits import CONNECTIONS_MAX, RETRY_AFTER_MS
from weir.protocol.client.barriers import Barriers

#: Deadlines of those who were told may stay in the heap, up to so many beyond the live ones.
_SLACK = 64


#: For who does not mind when others were asked.
ANYTIME = -1


class Scope(Enum):
    """Of which partitions of a topic somebody is to be told."""

    #: Of all, wherever they are led: peers.
    ALL = auto()
    #: Of those in this shard's logs, wherever they are led: the other shards of this node.
    OWN = auto()
    #: Of those that are led by this shard: shards of other nodes.
    LED = auto()


@dataclass(slots=True, eq=False)
class Asker:
    """Who is told what is known once all partitions are at `stamp`, or when its time is up."""

    topic: int
    scope: Scope
    stamp: int
    deadline_ms: int
    session: int
    #: Gets what is known; None if the topic is gone.
    tell: Callable[[Barriers | None], None]
    #: The number of a question: answers to it, or to earlier ones, will not do.
    after: int = ANYTIME
    number: int = 0
    #: Whether it was told, or is gone.
    is_over: bool = False


class Askers:
    """All who wait at one shard."""

    __slots__ = ("_due", "_next", "_of", "waiting")

    def __init__(self) -> None:
        """Nobody waits."""
        #: By number.
        self.waiting: dict[int, Asker] = {}
        self._of: dict[int, dict[int, None]] = {}
        self._due: list[tuple[int, int]] = []
        self._next = 0

    def check_room(self) -> None:
        """Raise `Overloaded` if as many wait as peers may be connected."""
        if len(self.waiting) >= CONNECTIONS_MAX:
            raise Overloaded(
                f"{CONNECTIONS_MAX:,} wait for barriers here already: ask again shortly",
                RETRY_AFTER_MS,
            )

    def add(self, asker: Asker) -> None:
        """Let somebody wait, and give it a number."""
        number, self._next = self._next, self._next + 1
        asker.number = number
        self.waiting[number] = asker
        self._of.setdefault(asker.session, {})[number] = None
        if len(self._due) >= 2 * len(self.waiting) + _SLACK:
            self._due = [(one.deadline_ms, n) for n, one in self.waiting.items() if n != number]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (asker.deadline_ms, number))

    def take(self, number: int) -> Asker | None:
        """Let somebody wait no more; None if it does not."""
        asker = self.waiting.pop(number, None)
        if asker is not None:
            asker.is_over = True
            numbers = self._of[asker.session]
            del numbers[number]
            if not numbers:
                del self._of[asker.session]
        return asker

    def ended(self, now_ms: int) -> list[Asker]:
        """Take out those whose time is up, the earliest deadline first."""
        found = []
        while self._due and self._due[0][0] <= now_ms:
            if (asker := self.take(heapq.heappop(self._due)[1])) is not None:
                found.append(asker)
        return found

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        for number in list(self._of.get(session, ())):
            self.take(number)
