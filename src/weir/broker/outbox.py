"""Effects on their way to the host, and how a reply finds the one who asked."""

from __future__ import annotations

from typing import NamedTuple

from weir.broker.admission import Budget
from weir.broker.effects import Effect, Send
from weir.codec.fields import Buffer, total
from weir.errors import Refused
from weir.wire.client import encode_reply
from weir.wire.messages import Fetched, Granted, Refusal, Reply


class Caller(NamedTuple):
    """A request of the client dialect that waits for its reply."""

    session: int
    opcode: int
    correlation: int


class Outbox:
    """Collects the effects of one `handle` call, in order, and counts what is not answered yet."""

    __slots__ = ("_budget", "_effects", "_open")

    def __init__(self, budget: Budget) -> None:
        """Begin empty; messages on their way to peers are charged to `budget`."""
        self._budget = budget
        self._effects: list[Effect] = []
        self._open: dict[int, int] = {}

    def opened(self, session: int) -> None:
        """Begin to count the requests of a peer."""
        self._open[session] = 0

    def closed(self, session: int) -> None:
        """Forget a peer."""
        self._open.pop(session, None)

    def knows(self, session: int) -> bool:
        """Return whether a peer is still there."""
        return session in self._open

    def asked(self, session: int) -> int:
        """Count a request; return how many of this peer's are not answered."""
        self._open[session] += 1
        return self._open[session]

    def put(self, effect: Effect) -> None:
        """Append an effect."""
        self._effects.append(effect)

    def send(self, session: int, *buffers: Buffer) -> None:
        """Send bytes to a peer, if it is still there."""
        if session in self._open:
            self._effects.append(Send(session, buffers))

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request; nobody hears it if the peer is gone."""
        if caller.session not in self._open:
            return
        self._open[caller.session] -= 1
        buffers = encode_reply(reply, caller.opcode, caller.correlation)
        charged = total(reply.batches) if isinstance(reply, Fetched | Granted) else 0
        self._budget.take(charged)
        self._effects.append(Send(caller.session, buffers, charged))

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer a request with a numbered refusal."""
        self.reply(caller, Refusal(error.code, str(error), error.detail))

    def take(self) -> list[Effect]:
        """Return all effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects
