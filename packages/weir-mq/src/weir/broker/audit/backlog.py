"""Requests that change something, and wait until the audit topic takes what was changed before."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from weir.broker.metadata.audit import AuditGate
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import Unavailable
from weir.model.limits import AUDIT_WAITING_MAX
from weir.model.topic import AUDIT_TOPIC, RESERVED_NAMESPACE
from weir.order.clock import Time
from weir.protocol.frame import ClientFrame

#: Nobody waits longer.
_WITHIN_MS = 5_000


class _Wait(NamedTuple):
    session: Session
    caller: Caller
    frame: ClientFrame
    until_ms: int


class Backlog:
    """Requests in line, the oldest first."""

    __slots__ = ("_gate", "_outbox", "_time", "_waits")

    def __init__(self, gate: AuditGate, outbox: Outbox, time: Time) -> None:
        """Let them wait as long as `gate` is closed."""
        self._gate = gate
        self._outbox = outbox
        self._time = time
        self._waits: deque[_Wait] = deque()

    def keep(self, session: Session, caller: Caller, frame: ClientFrame) -> None:
        """Let a request wait, or refuse it where too many do."""
        if len(self._waits) >= AUDIT_WAITING_MAX:
            self._refuse(caller)
            return
        until_ms = self._time.monotonic_ms() + _WITHIN_MS
        self._waits.append(_Wait(session, caller, frame, until_ms))

    def take(self) -> list[tuple[Session, ClientFrame]]:
        """Return what goes on now; what has waited for too long is refused."""
        if not self._waits:
            return []
        waits, now = self._waits, self._time.monotonic_ms()
        self._waits = deque(one for one in waits if self._outbox.knows(one.session.id))
        if not self._gate.closed_by:
            waits, self._waits = self._waits, deque()
            return [(one.session, one.frame) for one in waits]
        while self._waits and self._waits[0].until_ms <= now:
            self._refuse(self._waits.popleft().caller)
        return []

    def _refuse(self, caller: Caller) -> None:
        why = self._gate.closed_by or "too much waits already"
        error = Unavailable(
            f"nothing was changed: topic {RESERVED_NAMESPACE}/{AUDIT_TOPIC} takes no messages, and "
            f"administration waits for it ({why}). `weir topic describe "
            f"{RESERVED_NAMESPACE}/{AUDIT_TOPIC}` tells where it lies; try again once it is well"
        )
        self._outbox.refuse(caller, error)
