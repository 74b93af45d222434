"""What a shard does for the one order of topics, joined to its turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weir_raft as raft
from weir.broker.api.settings import Layout
from weir.broker.barriers.barriers import BarrierAnswers, Bounded, Promises
from weir.broker.barriers.cuts import CutAnswers
from weir.broker.barriers.offsets import OffsetLocator
from weir.broker.barriers.topic_order import Ends, Growth
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.registry import Registry
from weir.broker.partition.partition import PartitionContext
from weir.broker.partition.topics import Topics
from weir.protocol.client.order import (
    AskBarriers,
    AwaitMark,
    LocateOffsets,
    ReportEnded,
    ReportJoined,
    ResolveCut,
    SubscribeMarks,
)


class TotalOrder:
    """Joins what the room has to a shard."""

    __slots__ = ("_answers", "_catalog", "_cuts", "_ends", "_events", "_growth", "_multi",
                 "_promises", "_registry")  # fmt: skip

    def __init__(
        self, topics: Topics, registry: Registry, forwarder: Forwarder, layout: Layout,
        context: PartitionContext, multi: raft.Multi, logs: Sequence[Bounded],
    ) -> None:  # fmt: skip
        """Begin without requests. Events of partitions say which batches become visible."""
        self._catalog = topics.catalog
        self._registry = registry
        self._events = context.events
        self._multi = multi
        self._promises = promises = Promises(multi, context.highest, logs, context.time)
        self._answers = BarrierAnswers(topics, promises, multi, forwarder, layout, context)
        locator = OffsetLocator(topics, forwarder, context)
        self._cuts = CutAnswers(
            topics, registry, self._answers, locator, context.outbox, context.time
        )
        self._growth = Growth(topics, registry, forwarder, context.outbox, context.time)
        self._ends = Ends(topics, registry, forwarder, context.outbox, context.time)

    @property
    def promise_rounds(self) -> int:
        """How often the voters of all groups that are led here were asked for a promise."""
        return self._promises.rounds

    @property
    def due_ms(self) -> int | None:
        """The monotonic time in ms before which no tick answers a waiter; 0 if the next tick may,
        None if nobody waits.
        """
        return 0 if self._promises.is_pending else self._answers.due_ms

    def handlers(self) -> dict[type[Any], Callable[..., None]]:
        """Return what answers each request about orders."""
        return {
            AskBarriers: self._answers.ask,
            AwaitMark: self._answers.await_mark,
            SubscribeMarks: self._answers.subscribe,
            ResolveCut: self._cuts.ask,
            LocateOffsets: self._cuts.locator.ask,
            ReportJoined: self._growth.reported,
            ReportEnded: self._ends.reported,
        }

    def session_closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self._answers.session_closed(session)
        self._cuts.session_closed(session)

    def trunk_closed(self, place: int) -> None:
        """The trunk to another shard broke."""
        self._answers.trunk_closed(place)

    def proceed(self) -> None:
        """Go on with what any event may have made possible; cheap while nobody asks."""
        if self._catalog.growing:
            self._growth.join_partitions()
        if self._catalog.ending:
            self._ends.end_partitions()
        visible = self._events.visible
        while visible:
            self._answers.confirm_visible(visible.popleft())
        promises, answers = self._promises, self._answers
        if self._events.proposed:
            answers.demand_proposed()
        cuts = self._cuts
        if cuts.resolutions or cuts.locator.locations or answers.reached:
            cuts.proceed()
        while True:
            if promises.is_pending or self._multi.fence_wanted > promises.wanted:
                promises.pursue()
            if answers.waiters.waiting:
                answers.answer_reached()
            if not answers.reached:
                break
            cuts.proceed()  # it may ask for more, which may be there already
        if answers.streams.due:
            answers.send_due()

    def check_deadlines(self) -> None:
        """Let nobody wait for ever."""
        self._registry.administration.check_deadlines()
        self._registry.endings.check_deadlines()
        self._answers.check_deadlines()
        self._cuts.check_deadlines()
