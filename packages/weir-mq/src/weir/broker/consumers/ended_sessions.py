"""Sessions of consumers that have ended, and those whose consumers may come back by another one."""

from __future__ import annotations

from weir.errors import StaleGrant
from weir.model.limits import GRANTS_KEPT_MS
from weir.order.clock import Time


class EndedSessions:
    """Which sessions of consumers have ended: what they held is released, or kept for a while for
    another session of the same consumer, which shows the same token.
    """

    __slots__ = ("_behind_relays", "_kept", "_leaving", "_moves", "_sessions", "_time", "_tokens",
                 "gone")  # fmt: skip

    def __init__(self, time: Time) -> None:
        """Begin to lead; nobody has shown a token yet."""
        #: Those that are gone, until it is committed that they hold nothing any more.
        self.gone: set[int] = set()
        self._time = time
        self._tokens: dict[int, bytes] = {}
        self._sessions: dict[bytes, list[int]] = {}
        #: Those that came by a relay: what others held goes to others at once.
        self._behind_relays: set[int] = set()
        #: Those whose consumers have said that they do not come back, until these sessions end.
        self._leaving: set[int] = set()
        #: The greatest number of a move, by token, while a session of it is there.
        self._moves: dict[bytes, int] = {}
        #: Until which monotonic time, in ms, what a session held is kept; the oldest first.
        self._kept: dict[int, int] = {}

    def __contains__(self, session: int) -> bool:
        return session in self._kept

    @property
    def due_ms(self) -> int | None:
        """When the first one is given up; None if none is kept."""
        return next(iter(self._kept.values()), None)

    def show(self, session: int, token: bytes, behind_relay: bool) -> None:
        """A session is of the consumer that has a token. What it holds is kept when it ends, if it
        is `behind_relay`: without one it has nowhere to go. A pull of no message that is not of
        offsets only says neither.
        """
        if session in self._leaving:
            return  # a pull was under way, or the relay tells what was begun
        if behind_relay:
            self._note(session, token)
            self._behind_relays.add(session)
        else:  # it may have moved here from a relay
            self._behind_relays.discard(session)

    def move(self, session: int, token: bytes, number: int) -> list[int]:
        """A consumer goes on by a session; return its other ones that came by relays. Its moves
        have rising numbers.

        Raises `StaleGrant` if a later one came before.
        """
        if number < self._moves.get(token, 0):
            raise StaleGrant(f"move {number} came late: the consumer has moved on since")
        self._note(session, token)
        self._moves[token] = number
        former = [one for one in self._sessions[token] if one in self._behind_relays]
        if former and session not in self._leaving:
            self._behind_relays.add(session)
        return [one for one in former if one != session]

    def leave(self, session: int) -> None:
        """The consumer of a session does not come back: what it holds goes to others at its end,
        whatever its relay says of it until then.
        """
        self._leaving.add(session)
        self._behind_relays.discard(session)

    def _note(self, session: int, token: bytes) -> None:
        if self._tokens.get(session) != token:
            self._forget_token(session)
            self._tokens[session] = token
            self._sessions.setdefault(token, []).append(session)

    def keep(self, session: int) -> bool:
        """A session has ended; return whether what it holds is kept."""
        if session in self._behind_relays:
            self._kept.setdefault(session, self._time.monotonic_ms() + GRANTS_KEPT_MS)
        return session in self._kept

    def given_up(self) -> list[int]:
        """Return the sessions whose consumers have not come back in time."""
        now_ms = self._time.monotonic_ms()
        return [session for session, until_ms in self._kept.items() if until_ms <= now_ms]

    def forget(self, session: int) -> None:
        """Nothing of a session is kept any more."""
        self._leaving.discard(session)
        self._forget_token(session)

    def _forget_token(self, session: int) -> None:
        self._kept.pop(session, None)
        self._behind_relays.discard(session)
        token = self._tokens.pop(session, None)
        if token is not None:
            self._sessions[token].remove(session)
            if not self._sessions[token]:
                del self._sessions[token]
                self._moves.pop(token, None)
