"""A shard's part in the one order of each topic: promises, questions, who joins and who ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weir import raft
from weir.broker.admission import Authorize
from weir.broker.domain.domains import Domains
from weir.broker.domain.ends import Ends
from weir.broker.domain.growth import Growth
from weir.broker.domain.promises import Bounded, Promises
from weir.broker.layout import Layout
from weir.broker.neighbours.passing import Passing
from weir.broker.registry.registry import Registry
from weir.broker.surroundings import Surroundings
from weir.broker.topics import Topics
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
