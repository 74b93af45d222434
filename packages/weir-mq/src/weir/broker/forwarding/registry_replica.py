"""Whether this node's replica of the registry is as new as what anybody was told of it.

The shard that has the registry's log holds a replica of its group. Where that leads, one ReadIndex
round says that it still does; else its leader is asked how far it is, and the replica is current
once it has applied so much. Rounds are shared: who comes while one is under way waits for the next.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.forwarding.forwarder import Passing
from weir.broker.forwarding.routes import Routes
from weir.broker.metadata.registry import Registry
from weir.broker.records.control import ProducerOpened
from weir.errors import Refused
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.client.codec import decode_reply
from weir.protocol.frame import ClientFrame

#: Nobody waits longer for the replica to be current.
CURRENT_WITHIN_MS = 5_000
#: How long to wait before asking again for a producer that was refused.
_AGAIN_AFTER_MS = 1_000

#: Told True once the replica is current, and False if that cannot be known now.
Then = Callable[[bool], None]


class _Round:
    """One question how far the registry is: where it was asked, and what was answered."""

    __slots__ = ("index", "number", "place", "thens", "until_ms")

    def __init__(self, number: int, place: int, thens: list[Then], until_ms: int) -> None:
        self.number = number
        self.place = place
        self.thens = thens
        self.until_ms = until_ms
        self.index: int | None = None


class Current:
    """Keeps who asks back until the replica is current, and gets this shard the producer id that
    it writes device messages with.
    """

    __slots__ = ("_ask_at_ms", "_asked", "_granted", "_has_producer", "_in_sync", "_known",
                 "_numbers", "_passing", "_registry", "_resume", "_round", "_routes", "_time",
                 "_waiting")  # fmt: skip

    def __init__(
        self,
        registry: Registry,
        passing: Passing,
        granted: Callable[[int], None],
        resume: Callable[[int], None],
        time: Time,
    ) -> None:
        """Tell `granted` the producer id, and `resume` each session that need not wait any more."""
        self._registry = registry
        self._passing = passing
        self._routes: Routes = passing.routes
        self._granted = granted
        self._resume = resume
        self._time = time
        self._known = self._in_sync = False
        self._waiting: list[Then] = []
        self._round: _Round | None = None
        self._numbers = 0
        self._has_producer = False
        #: Where the producer was asked for, -1 nowhere; and when to ask again at the earliest.
        self._asked = -1
        self._ask_at_ms = 0
        passing.listen(self._received)

    @property
    def known(self) -> bool:
        """Whether the replica was current once since this shard started."""
        self._known = self._known or self._registry.ready
        return self._known

    @property
    def in_sync(self) -> bool:
        """Whether the last who asked was told that the replica is current; alone it always is."""
        return self._in_sync or (self._registry.ready and not self._routes.several)

    def ask(self, then: Then) -> None:
        """Tell `then` when the replica has all that anybody was told before now."""
        self._waiting.append(then)
        if self._round is None:
            self._begin()

    def park(self, session: int) -> None:
        """Let a session wait until the replica is current, or it is clear that it cannot be."""
        self.ask(lambda _: self._resume(session))

    def closed(self, place: int) -> None:
        """The trunk to a place broke: what it was asked has no answer any more."""
        if self._round is not None and self._round.place == place:
            self._end(False)
        if self._asked == place:
            self._refused()

    def advance(self) -> None:
        """Go on with what may be applied by now."""
        current = self._round
        if current is not None and current.index is not None:
            group = self._registry.group
            if group is None:
                self._end(False)
            elif group.node.applied_index >= current.index:
                self._end(True)
        if not self._has_producer and self._asked < 0:
            self._ask_producer()

    def tick(self) -> None:
        """Let nobody wait for a leader that is gone; ask until the replica is known."""
        current = self._round
        if current is not None:
            late = self._time.monotonic_ms() >= current.until_ms
            moved = current.index is None and current.place != self._routes.registry
            if late or moved:
                self._end(False)
        if not self.known and self._round is None:
            self._begin()
        if self._asked >= 0 and self._asked != self._routes.registry:
            self._refused()  # who was asked leads no more, and might never answer

    # -- rounds ------------------------------------------------------------------------------

    def _begin(self) -> None:
        thens, self._waiting = self._waiting, []
        place, group = self._routes.registry, self._registry.group
        self._numbers += 1
        until = self._time.monotonic_ms() + CURRENT_WITHIN_MS
        self._round = begun = _Round(self._numbers, place, thens, until)
        if group is None:
            self._end(False)
        elif place != self._passing.shard:
            try:
                self._passing.ask_own(place, m.ReachRegistry(), begun.number)
            except Refused:
                self._end(False)
        elif self._registry.ready:
            group.read(lambda error: self._led(begun, error))
        else:
            self._end(False)

    def _led(self, begun: _Round, error: Refused | None) -> None:
        group = self._registry.group
        if self._round is not begun or group is None:
            return
        if error is not None:
            self._end(False)
        else:
            self._end(True)

    def _end(self, current: bool) -> None:
        ended, self._round = self._round, None
        assert ended is not None
        self._in_sync = current
        self._known = self._known or current
        for then in ended.thens:
            then(current)
        if self._waiting and self._round is None:
            self._begin()

    # -- answers -----------------------------------------------------------------------------

    def _received(self, frame: ClientFrame) -> None:
        reply = decode_reply(frame)
        if isinstance(reply, m.ProducerGrant):
            self._opened(reply.producer)
            return
        current = self._round
        if current is not None and frame.correlation == current.number:
            if isinstance(reply, m.RegistryReached):
                current.index = reply.index
                self.advance()
            else:
                self._end(False)
        elif not frame.correlation and isinstance(reply, m.Refusal):
            self._refused()

    # -- the producer ------------------------------------------------------------------------

    def _ask_producer(self) -> None:
        if self._has_producer or self._asked >= 0 or not self.known:
            return
        if self._time.monotonic_ms() < self._ask_at_ms:
            return
        self._asked = self._routes.registry
        try:
            if self._asked != self._passing.shard:
                self._passing.ask_own(self._asked, m.OpenProducer())
            else:
                self._registry.grant(self._passing.principal, 0, self._applied)
        except Refused:
            self._refused()

    def _applied(self, outcome: ProducerOpened | Refused) -> None:
        if isinstance(outcome, Refused):
            self._refused()
        else:
            self._opened(outcome.producer)

    def _opened(self, producer: int) -> None:
        if not self._has_producer:
            self._has_producer = True
            self._granted(producer)

    def _refused(self) -> None:
        self._asked = -1
        self._ask_at_ms = self._time.monotonic_ms() + _AGAIN_AFTER_MS
