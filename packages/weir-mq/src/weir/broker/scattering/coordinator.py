"""The scatterings that a shard coordinates, and those of others that it finishes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from weir.broker.runtime.admission import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.scattering.attempts import Scattering, Surface
from weir.broker.scattering.queries import Asks, Ways
from weir.broker.scattering.recovery import Recovery
from weir.errors import Overloaded, Refused, refusal
from weir.model.limits import RETRY_AFTER_MS, SCATTERINGS_MAX
from weir.model.scattering import Attempt
from weir.order.clock import Highest, HybridClock, Time
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.messages import Refusal
from weir.protocol.client.scattering import Part, PartState, Scatter, ScatterConfirm
from weir.protocol.frame import ClientFrame


class Coordinator:
    """Takes whole scatterings of clients, and attempts that are left over."""

    __slots__ = ("_asks", "_budget", "_outbox", "_recovering", "_running", "_surface", "_time")

    def __init__(
        self, ways: Ways, highest: Highest, time: Time, outbox: Outbox, budget: Budget
    ) -> None:
        """Begin with none."""
        self._asks = Asks(ways, time)
        self._time = time
        self._outbox = outbox
        self._budget = budget
        self._surface = Surface(self._asks, highest, time)
        self._running: list[Scattering] = []
        self._recovering: set[Attempt] = set()

    def scatter(self, caller: Caller, request: Scatter, parts: Mapping[int, Part]) -> None:
        """Coordinate a scattering; its caller is told what became of it.

        Raises `Overloaded`, and `StampTooFar` for a client that has seen too much.
        """
        HybridClock(0, self._surface.highest).check_seen(self._time.wall_ms(), request.seen)
        if len(self._running) >= SCATTERINGS_MAX:
            raise Overloaded(
                f"{SCATTERINGS_MAX:,} scatterings are under way here: try again shortly",
                RETRY_AFTER_MS,
            )
        size = sum(len(part.batch) for part in parts.values())
        self._budget.charge(size)

        def tell(outcome: ScatterConfirm | Refused) -> None:
            self._budget.release(size)
            self._running.remove(one)
            if isinstance(outcome, Refused):
                self._outbox.refuse(caller, outcome)
            else:
                self._outbox.reply(caller, outcome)

        for other in self._running:
            if other.producer == request.producer:
                other.abandon()
        is_wanted = partial(self._outbox.knows, caller.session)
        one = Scattering(self._surface, request, parts, tell, is_wanted)
        self._running.append(one)
        one.begin()

    def recover(self, attempt: Attempt, parts: tuple[int, ...], is_committed: bool) -> None:
        """Finish an attempt that nobody else does; who asks again later is not put in line."""
        if attempt not in self._recovering and len(self._recovering) < SCATTERINGS_MAX:
            self._recovering.add(attempt)
            one = Recovery(self._asks, attempt, parts, self._time, self._recovering.discard)
            one.begin(is_committed)

    def answered(self, frame: ClientFrame) -> None:
        """Take what another shard answered."""
        reply = decode_reply(frame)
        if isinstance(reply, Refusal):
            self._asks.answered(frame.correlation, refusal(reply.code, reply.message, reply.detail))
        elif isinstance(reply, PartState):
            self._asks.answered(frame.correlation, reply)

    def closed(self, place: int) -> None:
        """The trunk to a place broke."""
        self._asks.closed(place)

    def tick(self) -> None:
        """Go on with what waits, and end what takes too long."""
        self._asks.tick()
        for one in [*self._running]:
            one.tick()
