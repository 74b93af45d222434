"""Peers of a shard as they come, ask and go; what they ask goes on to who serves it."""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.api.effects import Hangup
from weir.broker.api.events import Arrived, LetGo
from weir.broker.devices.requests import Devices
from weir.broker.forwarding.trunks import ShardTrunks
from weir.broker.partition.topics import Topics
from weir.broker.router.requests import Requests
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.session import NewSessions, Session
from weir.model.limits import HELLO_WITHIN_MS, REQUESTS_PENDING_MAX
from weir.order.clock import Time
from weir.protocol.device.codec import DevicePublishes, DeviceRequest
from weir.protocol.frame import ClientFrame


class Sessions:
    """Lets peers in, keeps what has to wait for news, and forgets who is gone."""

    __slots__ = ("_arrivals", "_budget", "_by_number", "_devices", "_new_sessions", "_outbox",
                 "_requests", "_time", "_topics", "_trunks")  # fmt: skip

    def __init__(
        self, by_number: dict[int, Session], outbox: Outbox, budget: Budget, time: Time,
        topics: Topics, trunks: ShardTrunks, requests: Requests, devices: Devices,
    ) -> None:  # fmt: skip
        """Keep sessions in `by_number`; nobody is there yet."""
        self._by_number = by_number
        self._new_sessions = NewSessions(HELLO_WITHIN_MS)
        self._outbox = outbox
        self._budget = budget
        self._time = time
        self._topics = topics
        self._trunks = trunks
        self._requests = requests
        self._devices = devices
        self._arrivals = devices.arrivals(by_number)

    def opened(self, number: int, principal: str, place: int) -> None:
        """A peer connected; with a `principal` it did so elsewhere, at `place`."""
        session = Session.opened(number, self._time.monotonic_ms(), principal, place)
        self._by_number[number] = session
        self._new_sessions.add(session)
        self._outbox.opened(number)

    def handle(self, event: Arrived | LetGo) -> None:
        """Devices came at once; or the host is done with a peer."""
        if isinstance(event, LetGo):
            self._outbox.put(Hangup(event.session, event.reason))
            return
        principal, place = event.principal, event.place
        for one in self._arrivals.take(event.arrivals, principal, place):
            self.opened(one.session, principal, place)
            self.received(one.session, (one.hello, one.publishes))

    def received(
        self, number: int, frames: Sequence[ClientFrame | DeviceRequest], final: bool = False
    ) -> None:
        """A peer asks. With `final`, what is not known here now is not there."""
        session = self._by_number.get(number)
        if session is None:
            return
        if session.parked is not None:
            self._keep(session, frames)
            return
        for at, frame in enumerate(frames):
            if isinstance(frame, ClientFrame):
                if self._outbox.asked(number) > REQUESTS_PENDING_MAX:
                    reason = f"{REQUESTS_PENDING_MAX} requests wait for their answers"
                    self._outbox.put(Hangup(number, reason))
                    return
                served = self._requests.handle(session, frame, final)
                if not served:
                    self._outbox.answered(number)  # it is counted when it is served again
            else:
                behind = frames[at + 1] if at + 1 < len(frames) else None
                followed = isinstance(behind, DevicePublishes)
                served = self._devices.handle(session, frame, final, followed)
            if not served:
                self._park(session, frames[at:])
                return
            final = False

    def _park(self, session: Session, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Keep what asks for what is not known here until that is sure; and what comes behind."""
        self._keep(session, frames)
        self._trunks.view.park(session.id)

    def _keep(self, session: Session, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        if not session.keep(frames, self._budget):
            self._outbox.put(
                Hangup(session.id, "too much was sent while a request waits for the registry")
            )

    def go_on(self, number: int) -> None:
        """Serve what was parked: what is not known now is not there."""
        session = self._by_number.get(number)
        if session is not None and session.parked is not None:
            self.received(number, session.take_kept(self._budget), final=True)

    def closed(self, number: int) -> None:
        """A peer is gone."""
        session = self._by_number.pop(number, None)
        if session is None:
            return
        session.take_kept(self._budget)
        self._trunks.closed(session)
        touched = self._outbox.closed(number)
        self._devices.receivers.closed(number)
        for group in touched:
            if group in self._topics:
                self._topics.partition(group)[1].closed(number)

    def check_deadlines(self) -> None:
        """Let go of who has not said who it is, and welcomes that wait in vain."""
        now_ms = self._time.monotonic_ms()
        self._outbox.let_out(now_ms)
        for session in self._new_sessions.overdue(now_ms):
            self._outbox.put(Hangup(session.id, f"no hello within {HELLO_WITHIN_MS // 1000} s"))
