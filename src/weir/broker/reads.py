"""Reads under way: from the cache at once, from the disk by way of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weir.broker.admission import Budget
from weir.broker.effects import StartRead
from weir.broker.events import ReadDone
from weir.broker.outbox import Outbox
from weir.codec.fields import Buffer
from weir.errors import Overloaded
from weir.log.reading import Reading

#: Gets the payloads, and the reason if there are none.
Then = Callable[[Sequence[Buffer], str], None]


class Reads:
    """Hands readings to the host and the answers back; charges the bytes meanwhile."""

    __slots__ = ("_budget", "_next", "_outbox", "_waiting")

    def __init__(self, outbox: Outbox, budget: Budget) -> None:
        """Begin with none."""
        self._outbox = outbox
        self._budget = budget
        self._next = 1
        self._waiting: dict[int, tuple[int, Then]] = {}

    def start(self, reading: Reading, then: Then) -> None:
        """Call `then` with the payloads: now if they are cached, else after the host's read.

        Without room in the budget it gets none, and the reason: the peer tries again shortly.
        """
        if reading.cached is not None:
            then(reading.cached, "")
            return
        try:
            self._budget.charge(reading.size)
        except Overloaded as error:
            then((), str(error))
            return
        ticket, self._next = self._next, self._next + 1
        self._waiting[ticket] = (reading.size, then)
        self._outbox.put(StartRead(reading.log, ticket, reading))

    def done(self, event: ReadDone) -> None:
        """Pass on what the host read."""
        size, then = self._waiting.pop(event.ticket)
        self._budget.release(size)
        then(event.payloads, event.failure)
