"""Connections to other shards, of this node or of others: who is at this end of each.

A host keeps a `Wire` for each, and tells its `end` what the transport says. What comes of that is
in the event queue then: the host lets the shard take it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from weir.broker.runtime.budget import Budget, Unfinished
from weir.broker.shard import Shard
from weir.host.connections import Connections, Transport
from weir.host.event_queue import EventQueue
from weir.host.logger import Log
from weir.host.shard_loop import Soon

#: Calls what it is given after so many seconds, and has the shard take what comes of it. Returns
#: what to call if that is not wanted any more.
Later = Callable[[float, Callable[[], None]], Callable[[], None]]


class End(Protocol):
    """Who is at this end of a connection."""

    def receive(self, data: bytes) -> None:
        """Take bytes as they come."""

    def pause_writing(self) -> None:
        """The other side does not take what it is sent."""

    def resume_writing(self) -> None:
        """The other side took it."""

    def lost(self, why: str) -> None:
        """The connection is over; `why` is empty if the other side has closed it."""


class Wire:
    """A connection to another shard. One who greets it is followed by one who stays."""

    __slots__ = ("end", "transport")

    def __init__(self, transport: Transport, end: End) -> None:
        """Tell `end` what `transport` says."""
        self.transport = transport
        self.end = end


class FrameSource(Protocol):
    """A connection on which frames come."""

    def cut(self) -> None:
        """Close at once."""


class LocalShard:
    """What those at the ends of wires know of the shard here, and of its host."""

    __slots__ = (
        "_shard",
        "budget",
        "connections",
        "later",
        "log",
        "queue",
        "soon",
        "time",
        "unfinished",
    )  # fmt: skip

    def __init__(
        self,
        shard: Shard,
        queue: EventQueue,
        connections: Connections[Any],
        soon: Soon,
        later: Later,
        log: Log,
    ) -> None:
        """Tell `queue` what comes in for `shard`."""
        self._shard = shard
        self.budget: Budget = shard.budget
        self.queue = queue
        self.connections = connections
        self.soon = soon
        self.later = later
        self.log = log
        #: Seconds since whenever; they never fall.
        self.time = connections.time
        #: Other shards have a pool of their own, which holds the largest frames.
        self.unfinished: Unfinished[FrameSource] = Unfinished(connections.reservations.limit // 2)

    def brought(self, source: FrameSource, size: int) -> None:
        """Of the frame under way on a connection there are `size` bytes now; 0: there is none."""
        self.unfinished.came(source, size)
        for slowest in self.unfinished.overflow():
            self.log.warning("a connection of another shard was cut: its frame waited longest")
            slowest.cut()

    def passed_on(self, place: int, size: int) -> None:
        """Give back bytes of the budget that another shard was sent."""
        self._shard.passed_on(place, size)
