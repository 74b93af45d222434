"""Connections to other shards, of this node or of others: the handler of each at this end.

A host keeps a `ShardConnection` for each, and tells its `handler` what the transport says. What
comes of that is in the event queue then: the host lets the shard take it.
"""

from __future__ import annotations

from typing import Any, Protocol

from weir.broker.runtime.budget import Budget, Unfinished
from weir.broker.shard import Shard
from weir.codec import Buffer
from weir.host.connections import Connections
from weir.host.ports import Later, Log, Soon, Transport
from weir.host.shard_loop import EventQueue
from weir.host.unsent_bytes import UnsentBytes


class Handler(Protocol):
    """Takes the bytes of a connection."""

    def receive(self, data: bytes) -> None:
        """Take bytes as they come."""

    def pause_writing(self) -> None:
        """The other side does not take what it is sent."""

    def resume_writing(self) -> None:
        """The other side took it."""

    def lost(self, why: str) -> None:
        """The connection is over; `why` is empty if the other side has closed it."""


class ShardConnection:
    """A connection to another shard. The handler of its greeting is followed by one that stays."""

    __slots__ = ("handler", "transport")

    def __init__(self, transport: Transport, handler: Handler) -> None:
        """Tell `handler` what `transport` says."""
        self.transport = transport
        self.handler = handler


class FrameSource(Protocol):
    """A connection on which frames come."""

    def cut(self) -> None:
        """Close at once."""


class LocalShard:
    """What the handlers of connections know of the shard here, and of its host."""

    __slots__ = (
        "_shard", "budget", "connections", "later", "log", "queue", "soon", "time", "unfinished",
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


class ShardWriter:
    """Writing to another shard, and giving back what was charged once it is out."""

    def __init__(self, local: LocalShard, transport: Transport) -> None:
        """Write to `transport`."""
        self._local = local
        self._transport: Transport | None = transport
        self._unsent = UnsentBytes()

    @property
    def is_over(self) -> bool:
        """Whether the connection is gone."""
        return self._transport is None

    def pause_writing(self) -> None:
        """The other side does not take what it is sent."""

    def resume_writing(self) -> None:
        """The other side took it."""

    def lost(self, why: str) -> None:
        """The connection is over: give everything back."""
        self._transport = None
        self.give_back(self._unsent.drop())

    def give_back(self, size: int) -> None:
        """These bytes have left this process, or never will."""
        self._local.budget.release(size)

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write buffers as they are; `charged` bytes are given back once they are out."""
        if self._transport is None:
            self.give_back(charged)
            return
        if charged:
            self.release_sent()
            self._unsent.size += charged
        self._transport.writelines(buffers)

    def release_sent(self) -> None:
        """Give back what has left this process since the last time."""
        if self._transport is not None:
            self.give_back(self._unsent.release(self._transport))

    def close(self) -> None:
        """Close once what was written is out."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
