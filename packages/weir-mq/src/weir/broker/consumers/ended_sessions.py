"""Sessions of consumers that have ended, and those whose consumers may come back by another one."""

from __future__ import annotations

from weir.model.limits import GRANTS_KEPT_MS
from weir.order.clock import Time


class EndedSessions:
    """Which sessions of consumers have ended: what they held is released, or kept for a while for
    another session of the same consumer, which shows the same token.
    """

    __slots__ = ("_kept", "_sessions", "_time", "_tokens", "gone")

    def __init__(self, time: Time) -> None:
        """Begin to lead; nobody has shown a token yet."""
        #: Those that are gone, until it is committed that they hold nothing any more.
        self.gone: set[int] = set()
        self._time = time
        self._tokens: dict[int, bytes] = {}
        self._sessions: dict[bytes, list[int]] = {}
        #: Until which monotonic time, in ms, what a session held is kept; the oldest first.
        self._kept: dict[int, int] = {}

    def __contains__(self, session: int) -> bool:
        return session in self._kept

    @property
    def due_ms(self) -> int | None:
        """When the first one is given up; None if none is kept."""
        return next(iter(self._kept.values()), None)

    def show(self, session: int, token: bytes) -> list[int]:
        """A session is of the consumer that has a token; return its other ones."""
        if self._tokens.get(session) != token:
            self.forget(session)
            self._tokens[session] = token
            self._sessions.setdefault(token, []).append(session)
        return [one for one in self._sessions[token] if one != session]

    def keep(self, session: int) -> bool:
        """A session has ended; return whether what it holds is kept."""
        if session in self._tokens:
            self._kept.setdefault(session, self._time.monotonic_ms() + GRANTS_KEPT_MS)
        return session in self._kept

    def given_up(self) -> list[int]:
        """Return the sessions whose consumers have not come back in time."""
        now_ms = self._time.monotonic_ms()
        return [session for session, until_ms in self._kept.items() if until_ms <= now_ms]

    def forget(self, session: int) -> None:
        """Nothing of a session is kept any more."""
        self._kept.pop(session, None)
        token = self._tokens.pop(session, None)
        if token is not None:
            self._sessions[token].remove(session)
            if not self._sessions[token]:
                del self._sessions[token]
