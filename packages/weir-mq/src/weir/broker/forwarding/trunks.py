"""The other shards, as this one sees them: what is passed on, and who knows the registry."""

from __future__ import annotations

from weir.broker.api.events import PassedBack, TrunkClosed, TrunkOpened
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.forwarding.registry_feed import HeldReplies, RegistryFeed
from weir.broker.forwarding.registry_view import RegistryCopy, RegistryReplica
from weir.broker.forwarding.routes import Routes
from weir.broker.metadata.registry import Registry
from weir.broker.replica.refusals import no_registry
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import NotLeader, Refused, Unavailable
from weir.model.ids import REGISTRY_GROUP


class ShardTrunks:
    """The trunks of a shard, and its part in the registry: it has a replica of it, or a copy."""

    __slots__ = ("_registry", "feed", "forwarder", "replies", "routes", "view")

    def __init__(
        self,
        routes: Routes,
        forwarder: Forwarder,
        registry: Registry,
        replies: HeldReplies,
        feed: RegistryFeed,
        view: RegistryReplica | RegistryCopy,
    ) -> None:
        """Reach the shards that `routes` lead to, by `forwarder`. The registry is followed by
        `view`, and `feed` lets others follow it.
        """
        self.routes = routes
        self.forwarder = forwarder
        self._registry = registry
        #: What waits until this shard and all that follow have done what it speaks of.
        self.replies = replies
        self.feed = feed
        #: How this shard keeps up with the registry: by a replica of its group, or a copy of that.
        self.view = view

    @property
    def knows_topics(self) -> bool:
        """Whether this shard knows all topics that it serves: it asks, or reads its log, first."""
        return self.view.known

    @property
    def in_sync(self) -> bool:
        """Whether what is not in the registry here is not, or was not a moment ago."""
        return self.view.in_sync

    def handle(self, event: TrunkOpened | TrunkClosed | PassedBack) -> None:
        """Take an event of a trunk."""
        match event:
            case PassedBack(shard, frames):
                self.forwarder.received(shard, frames)
            case TrunkOpened(shard):
                self.forwarder.opened(shard)
                if isinstance(self.view, RegistryCopy):
                    self.view.opened(shard)
            case TrunkClosed(shard):
                self.forwarder.closed(shard)
                self.view.closed(shard)

    def proceed(self) -> None:
        """Tell what waited until this shard had done it: where `copy` has work, or `replies` are
        held.
        """
        self.view.proceed()
        if not self.feed.is_open and isinstance(self.view, RegistryReplica) and self.view.known:
            self.feed.opened()
        if self.replies.held:  # as only the shard that has the registry does
            self.replies.release()

    def check_deadlines(self) -> None:
        """Let nobody wait for ever."""
        self.view.check_deadlines()
        self.replies.refuse_late()

    def closed(self, session: Session) -> None:
        """A peer is gone, or another shard as one."""
        self.forwarder.left(session)
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
        if foreign and not self._registry.ready:
            node = self.routes.leader(REGISTRY_GROUP)
            raise NotLeader("this node does not lead the registry", node)
        if not isinstance(self.view, RegistryReplica):
            raise Unavailable("another shard of this node has the registry")
        self.view.ask(caller)

    def may_be_news(self) -> bool:
        """Return whether what is not in the registry here may have come to be in it elsewhere."""
        if isinstance(self.view, RegistryReplica):
            return self.routes.several
        return self.view.in_sync
