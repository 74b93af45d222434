"""When sessions end by themselves: with the tokens that they came by, or without news for too long.

Ends are monotonic, so a wall clock that is set moves none. A renewal of a token is an entry of the
registry; a session whose end has come looks there once for one, and goes on if it finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from weir.access.tokens import LEEWAY_SECONDS
from weir.broker.access.authorizer import Authorizer
from weir.broker.metadata.security.access import RESCUER
from weir.broker.metadata.security.cutoff import Cutoff
from weir.broker.runtime.session import ANONYMOUS, Session
from weir.errors import AccessRevoked, Refused
from weir.order.clock import Time

_NEVER = 1 << 62
_EXPIRED = "the token of this connection has expired: get a new one"
#: Ends that are over may stay in the queue, up to so many beyond the live ones.
_SLACK = 1_024


class SessionEnds:
    """The ends of sessions, whose comes first in front."""

    __slots__ = ("_authorizer", "_cutoff", "_queue", "_sessions", "_time")

    def __init__(
        self, sessions: Mapping[int, Session], authorizer: Authorizer, time: Time, cutoff: Cutoff
    ) -> None:
        """Watch over those of `sessions` that are set; renewals are as `authorizer` knows them. All
        end with the time that `cutoff` gives them.
        """
        self._cutoff = cutoff
        self._sessions = sessions
        self._authorizer = authorizer
        self._time = time
        #: By when, in monotonic milliseconds, a session is to be looked at.
        self._queue: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def set(self, session: Session, expires: float) -> None:
        """Let a session end with a token that ends at `expires`, in seconds since 1970."""
        left_ms = int((expires + LEEWAY_SECONDS) * 1_000) - self._time.wall_ms()
        session.ends_ms = min(self._time.monotonic_ms() + max(left_ms, 0), _NEVER)
        if len(self._queue) >= 2 * len(self._sessions) + _SLACK:
            self._forget_gone()
        heappush(self._queue, (session.ends_ms, session.id))

    def due(self) -> Iterator[tuple[Session, Refused]]:
        """Yield the sessions that end now, and why: their tokens have expired, and none renewed
        them; or this shard was without news for too long, and let them in itself. Those that other
        shards let in are ended by these.
        """
        if self._cutoff.is_over:
            yield from [
                (session, self._cutoff.why_ended()) for session in self._sessions.values()
                if not session.passed and (session.greeted or session.principal != ANONYMOUS)
                and session.principal != RESCUER  # the registry cannot revoke it
            ]  # fmt: skip
        now = self._time.monotonic_ms()
        while self._queue and self._queue[0][0] <= now:
            at, number = heappop(self._queue)
            session = self._sessions.get(number)
            if session is None or session.ends_ms != at:
                continue  # it is gone, or was renewed
            expires = self._renewed_until(session)
            if expires:
                self.set(session, expires)
                if session.ends_ms > now:
                    continue
            yield session, AccessRevoked(_EXPIRED)

    def _forget_gone(self) -> None:
        """Forget sessions that are gone, and ends that were moved: they may be years away."""
        live = self._sessions
        self._queue = [
            (at, number) for at, number in set(self._queue)
            if number in live and live[number].ends_ms == at
        ]  # fmt: skip
        heapify(self._queue)

    def _renewed_until(self, session: Session) -> float:
        """Return until when others renewed the token of a session; 0 if nobody did."""
        token = session.token
        if token is None or not token.id:
            return 0
        issuers = self._authorizer.access.issuers
        return issuers.renewed_until(session.principal, token.issuer, token.id)
