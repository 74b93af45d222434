"""What leaders of partitions tell the registry, until it is known there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from weir.broker.forwarding.forwarder import NO_REPLY, Passing
from weir.broker.metadata.registry import Registry
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import Refused, UnknownOpcode
from weir.order.clock import Time
from weir.protocol.client.messages import Request

#: How often the registry is told again what it does not know yet.
_REPORT_EVERY_MS = 1_000


class Reports:
    """Tells the registry the same no more than once a second."""

    __slots__ = ("_passing", "_report_ms", "_time", "_told")

    def __init__(self, passing: Passing, time: Time) -> None:
        """Nothing was told yet."""
        self._passing = passing
        self._time = time
        #: What the registry was told of late, and until when that will do.
        self._told: set[Request] = set()
        self._report_ms = 0

    def advance(self) -> None:
        """Let all be told again that is still news, if it is time."""
        if (now := self._time.monotonic_ms()) >= self._report_ms:
            self._told.clear()
            self._report_ms = now + _REPORT_EVERY_MS

    def tell(self, report: Request, here: Callable[[], None]) -> None:
        """Tell the registry, by `here` if this shard leads it."""
        if report in self._told:
            return
        self._told.add(report)
        place = self._passing.routes.registry
        with suppress(Refused):  # it is told again as long as it is news
            if place != self._passing.shard:
                self._passing.ask_own(place, report, NO_REPLY)
            else:
                here()


class Steps:
    """What leaders of partitions do step by step, each found from entries, and each told."""

    __slots__ = ("_outbox", "_registry", "_reports", "_time", "_topics")

    def __init__(
        self, topics: Topics, registry: Registry, passing: Passing, outbox: Outbox, time: Time
    ) -> None:
        """Nothing is to be done yet."""
        self._topics = topics
        self._registry = registry
        self._outbox = outbox
        self._time = time
        self._reports = Reports(passing, time)

    def _hear(self, session: Session, caller: Caller) -> None:
        """Take another shard's report, and nobody else's. Raises `UnknownOpcode`."""
        if not session.is_shard:
            raise UnknownOpcode("only a shard may ask that", caller.opcode)
        self._outbox.answered(session.id)  # there is no reply: what it did, the registry shows
