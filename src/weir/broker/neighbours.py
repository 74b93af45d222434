"""The other shards of this node, as this one sees them: what is passed on, and who leads what."""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.admission import Budget
from weir.broker.control import ControlRecord
from weir.broker.events import PassedBack, TrunkClosed, TrunkOpened
from weir.broker.feed import Feed
from weir.broker.following import Following
from weir.broker.layout import Layout
from weir.broker.outbox import Outbox
from weir.broker.passing import Passing
from weir.broker.registry import Registry
from weir.broker.sessions import Session
from weir.errors import Refused, Unavailable
from weir.order.clock import Time


class Neighbours:
    """The trunks of a shard, and its part in the registry: it leads it, or has a copy."""

    __slots__ = ("_registry", "_settled", "_time", "copy", "feed", "passing")

    _registry: Registry

    def __init__(
        self,
        layout: Layout,
        shard: int,
        sessions: dict[int, Session],
        outbox: Outbox,
        budget: Budget,
        time: Time,
        settled: Callable[[ControlRecord], bool],
    ) -> None:
        """Be `shard` of `layout`; `join` comes next.

        `settled` says whether this shard has done what a record of the registry means for it.
        """
        self._settled = settled
        self._time = time
        self.passing = Passing(layout, shard, sessions, outbox, budget)
        self.feed = Feed(outbox, time, layout.shards - 1, settled)
        self.copy: Following | None = None

    def join(
        self, registry: Registry, granted: Callable[[int], None], resume: Callable[[int], None]
    ) -> None:
        """Take the registry, to lead it or to keep it up to date. See `Following`."""
        self._registry = self.feed.registry = registry
        leader = self.passing.registry_shard
        if leader != self.passing.shard:
            self.copy = Following(
                leader, registry, self.passing, granted, resume, self._settled, self._time
            )

    @property
    def settled(self) -> bool:
        """Whether this shard knows all topics that it serves: it asks, or reads its log, first."""
        return self._registry.ready if self.copy is None else self.copy.known

    @property
    def in_sync(self) -> bool:
        """Whether what is not in the registry here is not, or was not a moment ago."""
        return self._registry.ready if self.copy is None else self.copy.in_sync

    def handle(self, event: TrunkOpened | TrunkClosed | PassedBack) -> None:
        """Take an event of a trunk."""
        match event:
            case PassedBack(shard, frames):
                self.passing.received(shard, frames)
            case TrunkOpened(shard):
                self.passing.opened(shard)
                if self.copy is not None:
                    self.copy.opened(shard)
            case TrunkClosed(shard):
                self.passing.closed(shard)
                if self.copy is not None:
                    self.copy.closed(shard)

    def advance(self) -> None:
        """Tell what waited until this shard had done it."""
        if self.copy is None:
            self.feed.advance()
        else:
            self.copy.advance()

    def tick(self) -> None:
        """Let nobody wait for ever."""
        if self.copy is None:
            self.feed.tick()
        else:
            self.copy.tick()

    def closed(self, session: Session) -> None:
        """A peer is gone, or another shard as one."""
        self.passing.left(session)
        self.feed.closed(session.id)

    def certain(self, error: Refused) -> Refused:
        """Return what to answer to who asks for what is not in the registry as it is known here."""
        if self.in_sync:
            return error
        return Unavailable("the shard that leads the registry is starting: try again shortly")

    def may_be_news(self) -> bool:
        """Return whether what is not in the registry here may have come to be in it elsewhere."""
        return self.copy is not None and self.copy.in_sync
