"""A shard's part in the one order of each topic: promises, questions, who joins and who ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weir_raft as raft
from weir.broker.api.layout import Layout
from weir.broker.barriers.barriers import Domains
from weir.broker.barriers.ends import Ends
from weir.broker.barriers.growth import Growth
from weir.broker.barriers.promises import Bounded, Promises
from weir.broker.forwarding.forwarder import Passing
from weir.broker.metadata.registry import Registry
from weir.broker.partition.context import Surroundings
from weir.broker.partition.topics import Topics
from weir.broker.runtime.admission import Authorize
from weir.protocol.client.barriers import AskBarriers, ReportEnded, ReportJoined


class Orders:
    """Joins what the room has to a shard."""

    __slots__ = ("_catalog", "_domains", "_ends", "_growth", "_promises", "closed", "cut")

    def __init__(
        self, topics: Topics, registry: Registry, passing: Passing, layout: Layout,
        shared: Surroundings, authorize: Authorize, multi: raft.Multi, logs: Sequence[Bounded],
    ) -> None:  # fmt: skip
        """Let partitions of `shared` be told from now on what is visible."""
        self._catalog = topics.catalog
        self._promises = promises = Promises(multi, shared.highest, logs, shared.time)
        self._domains = Domains(topics, promises, passing, layout, shared, authorize)
        self._growth = Growth(topics, registry, passing, shared.outbox, shared.time)
        self._ends = Ends(topics, registry, passing, shared.outbox, shared.time)
        shared.when_visible = self._domains.when_visible
        #: Told the number of a session that is gone, and the place of a trunk that broke.
        self.closed = self._domains.closed
        self.cut = self._domains.cut

    def handlers(self) -> dict[type[Any], Callable[..., None]]:
        """Return what answers each request about orders."""
        return {
            AskBarriers: self._domains.ask,
            ReportJoined: self._growth.reported,
            ReportEnded: self._ends.reported,
        }

    def advance(self) -> None:
        """Go on with what any event may have made possible; cheap while nobody asks."""
        if self._catalog.growing:
            self._growth.advance()
        if self._catalog.ending:
            self._ends.advance()
        if self._promises.is_due:
            self._promises.advance()
        if self._domains.askers.waiting:
            self._domains.advance()

    def tick(self) -> None:
        """Let nobody wait for ever."""
        self._growth.tick()
        self._ends.tick()
        self._domains.tick()
