"""Limits of accepted connections: how many, how fast, and for how long they may be silent."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from weir.access.failures import Failures
from weir.model.limits import (
    ACCEPT_BURST,
    ACCEPTS_PER_SECOND_DEFAULT,
    CONNECTIONS_MAX,
    FRAME_SECONDS,
    IDLE_SECONDS_DEFAULT,
)

if TYPE_CHECKING:  # the settings of a node need its limits, and nothing of a shard
    from weir.host.strangers import Strangers


class ConnectionLimits(msgspec.Struct, frozen=True):
    """The limits of a shard's connections."""

    connections_max: int = CONNECTIONS_MAX
    #: Connections that are let in per second, once a burst is used up.
    accepts_per_second: float = ACCEPTS_PER_SECOND_DEFAULT
    #: The broker closes the connection of a device that is silent for this long; a ping is enough.
    idle_seconds: float = IDLE_SECONDS_DEFAULT
    #: A frame must arrive completely within this time.
    frame_seconds: float = FRAME_SECONDS
    #: Connections that are let in at once.
    accept_burst: int = ACCEPT_BURST


#: So many that wait for their address are looked at each time whether they are gone: that is a call
#: of the system for each, since nothing is read from them.
_LOOKS = 64


class Queued(Protocol):
    """A connection that waits to be let in."""

    @property
    def gone(self) -> bool:
        """Whether its peer has hung up."""

    def cut(self) -> None:
        """Close it at once."""


C = TypeVar("C", bound=Queued)


class AcceptQueue(Generic[C]):
    """A token bucket: connections that come too fast wait, in turn, and nothing is read from them.

    Those that hang up meanwhile take no token, else devices that lose patience and come again would
    keep out each other, and themselves.
    """

    __slots__ = (
        "_looked",
        "_slow",
        "_slow_numbers",
        "_then",
        "_tokens",
        "_waiting",
        "closed",
        "failures",
        "limits",
        "strangers",
    )

    def __init__(self, limits: ConnectionLimits, now: float, strangers: Strangers[Any]) -> None:
        """Accept connections as `limits` say; accepted ones that have said nothing are `strangers`.
        `now` is in seconds, here and below.
        """
        self.limits = limits
        self.strangers = strangers
        #: Logins and proofs that failed, by where they came from.
        self.failures = Failures()
        #: By when they may come in, those that others from their address made wait.
        self._slow: list[tuple[float, int, C]] = []
        self._slow_numbers = count()
        #: How many of them were looked at in this round.
        self._looked = 0
        #: Whether all have to wait: the shard is not there yet.
        self.closed = False
        self._tokens = float(limits.accept_burst)
        self._then = now
        self._waiting: deque[C] = deque()

    def may_enter(self, connection: C, now: float) -> bool:
        """Return whether a connection may come in now; if not, it waits for `entering`."""
        if now != self._then:
            self._refill(now)
        if self.closed or self._waiting or self._tokens < 1:
            self._waiting.append(connection)
            return False
        self._tokens -= 1
        return True

    @property
    def has_waiting(self) -> bool:
        """Whether any connection waits to come in."""
        return bool(self._waiting or self._slow)

    @property
    def slowed(self) -> int:
        """How many wait because logins failed at their address."""
        return len(self._slow)

    def let_wait(self, connection: C, until: float) -> None:
        """Let a connection wait behind failures of its address: all others come in before it."""
        heapq.heappush(self._slow, (until, next(self._slow_numbers), connection))

    def entering(self, now: float) -> list[C]:
        """Return those that may come in by now; cut those that are gone."""
        self._refill(now)
        if self._slow:
            self._drop_gone()
        while self._slow and self._slow[0][0] <= now:
            self._waiting.append(heapq.heappop(self._slow)[2])
        found: list[C] = []
        while not self.closed and self._waiting and self._tokens >= 1:
            connection = self._waiting.popleft()
            if connection.gone:
                connection.cut()
            else:
                self._tokens -= 1
                found.append(connection)
        return found

    def _drop_gone(self) -> None:
        """Cut some of those that hung up while they wait for their address."""
        rows = self._slow[self._looked : self._looked + _LOOKS]
        gone = {number for _, number, one in rows if one.gone}
        self._looked += len(rows) - len(gone)
        if self._looked + len(gone) >= len(self._slow):
            self._looked = 0
        if gone:
            self._slow = [row for row in self._slow if row[1] not in gone]
            heapq.heapify(self._slow)
            for _, number, one in rows:
                if number in gone:
                    one.cut()

    def _refill(self, now: float) -> None:
        limits = self.limits
        refilled = self._tokens + limits.accepts_per_second * (now - self._then)
        self._tokens = min(limits.accept_burst, refilled)
        self._then = now
