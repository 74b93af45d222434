"""Requests that wait for something to come or for their deadline, in order of arrival.

Whatever happens costs what it concerns: a deadline those that end, a peer that goes those it had
asked. Nothing here looks at the rest, however many wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

from weir.broker.runtime.outbox import Caller
from weir.errors import Overloaded
from weir.model.limits import CONNECTIONS_MAX, RETRY_AFTER_MS

Request = TypeVar("Request")
#: Deadlines of requests that were served may stay in the heap, up to so many beyond the live ones.
_SLACK = 64


class Wait(NamedTuple, Generic[Request]):
    """A request that came at monotonic time `came_ms`, and waits until `deadline_ms` at most."""

    caller: Caller
    request: Request
    deadline_ms: int
    came_ms: int = 0


class Waits(Generic[Request]):
    """A line of requests; those of one peer, and those whose time is up, leave it out of turn."""

    __slots__ = ("_due", "_next", "_of", "_waits")

    def __init__(self) -> None:
        """Begin with nobody in line."""
        self._waits: OrderedDict[int, Wait[Request]] = OrderedDict()
        #: The numbers of each peer's waits, in order of arrival.
        self._of: dict[int, dict[int, None]] = {}
        self._due: list[tuple[int, int]] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._waits)

    def check_room(self) -> None:
        """Raise `Overloaded` if as many wait as peers may be connected."""
        if len(self._waits) >= CONNECTIONS_MAX:
            raise Overloaded(
                f"{CONNECTIONS_MAX:,} requests wait here already: ask again shortly", RETRY_AFTER_MS
            )

    def add(self, wait: Wait[Request], front: bool = False) -> None:
        """Put a request at the end of the line, or back in `front` of it."""
        number, self._next = self._next, self._next + 1
        self._waits[number] = wait
        if front:
            self._waits.move_to_end(number, last=False)
        self._of.setdefault(wait.caller.session, {})[number] = None
        if len(self._due) >= 2 * len(self._waits) + _SLACK:
            self._due = [(w.deadline_ms, n) for n, w in self._waits.items() if n != number]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (wait.deadline_ms, number))

    def holds(self, session: int) -> bool:
        """Return whether a peer is in line."""
        return session in self._of

    @property
    def due_ms(self) -> int:
        """The monotonic time before which no deadline of those in line has come."""
        return self._due[0][0] if self._due else 0

    @property
    def peers(self) -> int:
        """How many peers are in line."""
        return len(self._of)

    @property
    def sessions(self) -> set[int]:
        """Who is in line."""
        return set(self._of)

    def first(self, session: int = 0) -> Wait[Request]:
        """Return the first in line, or the first wait of one peer."""
        return self._waits[self._number(session)]

    def pop(self, session: int = 0) -> Wait[Request]:
        """Take out the first in line, or the first wait of one peer."""
        return self._take(self._number(session))

    def other(self, passed: set[int]) -> int | None:
        """Return a peer in line that is none of those; None if there is no other."""
        return next((session for session in self._of if session not in passed), None)

    def _number(self, session: int) -> int:
        return next(iter(self._of[session] if session else self._waits))

    def ended(self, now_ms: int) -> list[Wait[Request]]:
        """Take out those whose time is up, the earliest deadline first."""
        found: list[Wait[Request]] = []
        while self._due and self._due[0][0] <= now_ms:
            _, number = heapq.heappop(self._due)
            if number in self._waits:
                found.append(self._take(number))
        return found

    def withdrawn(self, session: int) -> list[Wait[Request]]:
        """Take out all of a peer, in order of arrival."""
        return [self._take(number) for number in list(self._of.get(session, ()))]

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self.withdrawn(session)

    def _take(self, number: int) -> Wait[Request]:
        wait = self._waits.pop(number)
        session = wait.caller.session
        numbers = self._of[session]
        del numbers[number]
        if not numbers:
            del self._of[session]
        return wait
