"""The other shards, as this one sees them: what is passed on, and who knows the registry."""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.api.events import PassedBack, TrunkClosed, TrunkOpened
from weir.broker.api.settings import Layout
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.forwarding.registry_feed import Feed
from weir.broker.forwarding.registry_view import Current, Following
from weir.broker.forwarding.routes import Routes
from weir.broker.metadata.registry import Registry
from weir.broker.records.control import ControlRecord
from weir.broker.replica.refusals import no_registry
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import SHARD, Session
from weir.errors import NotLeader, Refused, Unavailable
from weir.model.ids import REGISTRY_GROUP
from weir.order.clock import Time
from weir.protocol.client import messages as m


class ShardTrunks:
    """The trunks of a shard, and its part in the registry: it has a replica of it, or a copy."""

    __slots__ = ("_outbox", "_settled", "_time", "copy", "feed", "passing", "routes")

    #: How this shard keeps up with the registry: by a replica of its group, or by a copy of that.
    copy: Current | Following

    def __init__(
        self,
        routes: Routes,
        layout: Layout,
        node: int,
        sessions: dict[int, Session],
        outbox: Outbox,
        budget: Budget,
        time: Time,
        settled: Callable[[ControlRecord | None], bool],
    ) -> None:
        """Be the shard of `node` that `routes` begin at; `join` comes next.

        `settled` says whether this shard has done what a record of the registry means for it.
        """
        self._settled = settled
        self._outbox = outbox
        self._time = time
        self.routes = routes
        principal = f"{SHARD}{node}.{routes.shard}"
        self.passing = Forwarder(routes, principal, sessions, outbox, budget)
        self.feed = Feed(outbox, time, layout.shards - 1, settled)

    def join(
        self,
        registry: Registry,
        at: int,
        granted: Callable[[int], None],
        resume: Callable[[int], None],
    ) -> None:
        """Take the registry: the shard `at` of this node has a replica. See `Following`."""
        self.feed.registry = registry
        passing, time = self.passing, self._time
        if at == passing.shard:
            self.copy = Current(registry, passing, granted, resume, time)
        else:
            self.copy = Following(at, registry, passing, granted, resume, self._settled, time)

    @property
    def settled(self) -> bool:
        """Whether this shard knows all topics that it serves: it asks, or reads its log, first."""
        return self.copy.known

    @property
    def in_sync(self) -> bool:
        """Whether what is not in the registry here is not, or was not a moment ago."""
        return self.copy.in_sync

    def handle(self, event: TrunkOpened | TrunkClosed | PassedBack) -> None:
        """Take an event of a trunk."""
        match event:
            case PassedBack(shard, frames):
                self.passing.received(shard, frames)
            case TrunkOpened(shard):
                self.passing.opened(shard)
                if isinstance(self.copy, Following):
                    self.copy.opened(shard)
            case TrunkClosed(shard):
                self.passing.closed(shard)
                self.copy.closed(shard)

    def advance(self) -> None:
        """Tell what waited until this shard had done it."""
        self.copy.advance()
        feed = self.feed
        if not feed.is_open and isinstance(self.copy, Current) and self.copy.known:
            feed.opened()
        if feed.held:  # as only the shard that has the registry does
            feed.advance()

    def tick(self) -> None:
        """Let nobody wait for ever."""
        self.copy.tick()
        self.feed.tick()

    def closed(self, session: Session) -> None:
        """A peer is gone, or another shard as one."""
        self.passing.left(session)
        self.feed.closed(session.id)

    def certain(self, error: Refused) -> Refused:
        """Return what to answer to who asks for what is not in the registry as it is known here."""
        return error if self.in_sync else no_registry()

    def nodes(self) -> tuple[tuple[int, str, int], ...]:
        """Return the nodes of the set as (node, host, port); () if there is but this one."""
        return self.routes.nodes()

    def reach(self, caller: Caller, foreign: bool) -> None:
        """Answer a shard that asks how far the registry is at least: only its leader says so to
        another node. Raises `NotLeader`.
        """
        registry = self.feed.registry
        assert isinstance(registry, Registry)
        if foreign and not registry.ready:
            node = self.routes.leader(REGISTRY_GROUP)
            raise NotLeader("this node does not lead the registry", node)
        if not isinstance(self.copy, Current):
            raise Unavailable("another shard of this node has the registry")

        def answer(current: bool) -> None:
            if current and registry.group is not None:
                reached = m.RegistryReached(registry.group.node.applied_index)
                self._outbox.reply(caller, reached)
            else:
                self._outbox.refuse(caller, no_registry())

        self.copy.ask(answer)

    def may_be_news(self) -> bool:
        """Return whether what is not in the registry here may have come to be in it elsewhere."""
        if isinstance(self.copy, Current):
            return self.routes.several
        return self.copy.in_sync
