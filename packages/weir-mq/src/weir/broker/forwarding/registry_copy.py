"""A shard's copy of the registry, which another shard of its node has (see `registry_feed`).

Whoever asks here for a topic or producer that is not in the copy *parks* until the leader was asked
whether there is news. While the leader cannot be asked, or does not answer, what is not in the copy
is not known to exist or not: `in_sync` says which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from weir.broker.forwarding.forwarder import Passing
from weir.broker.metadata.registry import Registry
from weir.broker.records.control import ControlRecord
from weir.broker.records.entries import read_back
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.messages import Opcode
from weir.protocol.frame import ClientFrame
from weir.storage.format.frame import Kind

#: Who is parked waits no longer for news.
NEWS_WITHIN_MS = 5_000
#: How long to wait before asking again for what was refused.
_AGAIN_AFTER_MS = 1_000
_unpack = msgspec.msgpack.Decoder().decode


class Following:
    """Keeps the copy, and gets this shard the producer id that it writes device messages with."""

    __slots__ = ("_ask_at_ms", "_asking", "_doing", "_fed", "_granted", "_has_producer", "_late",
                 "_leader", "_number", "_owed", "_parked", "_passing", "_pinged", "_pinged_ms",
                 "_registry", "_resume", "_settled", "_time", "known")  # fmt: skip

    def __init__(
        self,
        leader: int,
        registry: Registry,
        passing: Passing,
        granted: Callable[[int], None],
        resume: Callable[[int], None],
        settled: Callable[[ControlRecord | None], bool],
        time: Time,
    ) -> None:
        """Follow shard `leader`. `granted` is told the producer id, `resume` of each session that
        need not wait any more; `settled` says whether what a record means is done here, or
        all that a snapshot covers.
        """
        self._settled = settled
        self._time = time
        #: Records that are applied and not done, None for a snapshot, and the entry to acknowledge
        #: when they are.
        self._doing: list[ControlRecord | None] = []
        self._owed = 0
        self._leader = leader
        self._registry = registry
        self._passing = passing
        self._granted = granted
        self._resume = resume
        #: Whether the leader has sent all it has since the trunk was opened.
        self._fed = False
        #: Whether it was asked for news and has not answered in time.
        self._late = False
        #: Whether there is a copy.
        self.known = False
        self._asking = self._has_producer = False
        self._ask_at_ms = self._pinged_ms = self._number = 0
        self._parked: list[int] = []
        #: Of those parked, the ones whom the ping under way will let go on.
        self._pinged: list[int] = []
        passing.listen(self._received)

    @property
    def in_sync(self) -> bool:
        """Whether the copy has all that the leader told anybody a moment ago."""
        return self._fed and not self._late

    def opened(self, shard: int) -> None:
        """A trunk is open: if it is the leader's, ask for all it has."""
        if shard == self._leader:
            self._ask(m.Follow(0))

    def closed(self, shard: int) -> None:
        """A trunk broke: if it is the leader's, nothing new can be learnt until it is back."""
        if shard == self._leader:
            self._fed = self._late = False
            self._asking = False
            self._owed = 0
            self._pinged, self._parked = self._pinged + self._parked, []
            self._go_on()

    def advance(self) -> None:
        """Acknowledge what is applied, once all of it is done."""
        if self._owed:
            self._doing = [record for record in self._doing if not self._settled(record)]
            if not self._doing:
                self._ask(m.Follow(self._owed))
                self._owed = 0

    def tick(self) -> None:
        """Let nobody wait too long for news, and ask again for what was refused."""
        now = self._time.monotonic_ms()
        if self._pinged and now - self._pinged_ms >= NEWS_WITHIN_MS:
            self._late = True
            self._pinged, self._parked = self._pinged + self._parked, []
            self._go_on()
        quiet = not self._pinged and now - self._pinged_ms >= _AGAIN_AFTER_MS
        if self._late and self._fed and quiet:
            self._ping()
        if self._fed and now >= self._ask_at_ms:
            self._ask_producer()

    def park(self, session: int) -> None:
        """Let a session wait until the copy has what the leader has now."""
        self._parked.append(session)
        if not self._pinged:
            self._ping()

    def _ping(self) -> None:
        self._pinged, self._parked = self._parked, []
        self._pinged_ms = self._time.monotonic_ms()
        self._number += 1
        self._ask(m.ReachRegistry(), self._number)

    def _go_on(self) -> None:
        sessions, self._pinged = self._pinged, []
        for session in sessions:
            self._resume(session)
        if self._parked and not self._pinged:
            self._ping()

    def _answered(self, frame: ClientFrame) -> None:
        if frame.correlation == self._number:
            self._go_on()

    def _received(self, frame: ClientFrame) -> None:
        if frame.opcode == Opcode.FOLLOW:
            self._learn(*_unpack(frame.body))
            return
        match decode_reply(frame):
            case m.RegistryReached():
                self._late = False
                self._answered(frame)
            case m.ProducerGrant(producer):
                self._has_producer = True
                self._granted(producer)
            case m.Refusal() if frame.opcode == Opcode.REACH_REGISTRY:
                self._late = True
                self._answered(frame)
            case m.Refusal():  # of the producer
                self._asking = False
                self._ask_at_ms = self._time.monotonic_ms() + _AGAIN_AFTER_MS

    def _learn(self, index: int, news: Any) -> None:
        if isinstance(news, bytes):
            payload = read_back(Kind.CONTROL, news)
            self._registry.apply(index, payload)
            if payload.control is not None:
                self._doing.append(payload.control)
        else:
            self._registry.restore(self._registry.decode(news))
            # A shard whose trunk broke has things under way, which an epoch of meanwhile may end.
            self._doing = [None]
            self._fed = self.known = True
        self._owed = index
        self.advance()
        self._ask_producer()

    def _ask_producer(self) -> None:
        if not (self._asking or self._has_producer):
            self._asking = True
            self._ask(m.OpenProducer())

    def _ask(self, request: m.Request, number: int = 0) -> None:
        self._passing.ask_own(self._leader, request, number)
