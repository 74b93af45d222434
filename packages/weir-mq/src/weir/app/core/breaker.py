"""A circuit breaker: when most messages fail it is not the messages, so handling pauses.

Closed: all may begin. Most of the last `window` failed: it opens, and nothing begins for a while.
Then one message is tried; if it succeeds the breaker closes, else it opens for longer.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from weir.client.core.retries import Backoff

#: Outcomes that it looks at, and how many it needs to judge.
WINDOW = 20
JUDGED_FROM = 10
#: Seconds that it stays open, first and at most. No jitter: `dice` is not for what is to be told.
PAUSES = Backoff(first=1.0, most=60.0, factor=2.0, jitter=0.0)


class State(Enum):
    """Whether messages may begin."""

    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


class Breaker:
    """Decides whether a message may begin; told of outcomes. Times are seconds of one clock."""

    __slots__ = (
        "_era",
        "_forgiving",
        "_outcomes",
        "_pauses",
        "_reopened",
        "_until",
        "state",
        "why",
    )

    def __init__(self, window: int = WINDOW, pauses: Backoff = PAUSES) -> None:
        """Begin closed, with nothing known."""
        self.state = State.CLOSED
        #: A sentence that says why it is as it is, for people.
        self.why = "no message has failed"
        self._outcomes: deque[bool] = deque(maxlen=window)
        self._pauses = pauses
        self._until = 0.0
        self._forgiving = 0.0
        # Outcomes of messages that began before the last change say nothing about what is now.
        self._era = 0
        self._reopened = 0

    def begin(self, now: float) -> int | None:
        """Return a ticket for one message that begins now, or None if none may."""
        if self.state is State.CLOSED:
            return self._era
        if self.state is State.TRYING or now < self._until:
            return None
        self.state = State.TRYING
        self.why = "one message is tried"
        return self._era

    def give_up(self, ticket: int) -> None:
        """Take back a ticket whose message was not handled after all: it says nothing."""
        if ticket == self._era and self.state is State.TRYING:
            self.state = State.OPEN

    def wait(self, now: float) -> float | None:
        """Return the seconds until `begin` may say yes; None: not before some outcome is known."""
        if self.state is State.TRYING:
            return None
        return max(self._until - now, 0.0) if self.state is State.OPEN else 0.0

    def forgives(self, now: float) -> bool:
        """Tell whether failures are not to be counted against messages.

        While it is not closed, and for as long after as what failed meanwhile may stay away: see
        `forgive_until`.
        """
        return self.state is not State.CLOSED or now < self._forgiving

    def forgive_until(self, when: float) -> None:
        """Forgive until then: a message that failed while this was not closed comes again by it."""
        self._forgiving = max(self._forgiving, when)

    def succeeded(self, ticket: int) -> bool:
        """Count a success; return whether that changed the state."""
        if ticket != self._era:
            return False
        self._outcomes.append(True)
        if self.state is State.CLOSED:
            return False
        self._change(State.CLOSED, "the message that was tried succeeded")
        self._reopened = 0
        return True

    def failed(self, ticket: int, now: float, error: str) -> bool:
        """Count a failure; return whether that changed the state."""
        if ticket != self._era:
            return False
        if self.state is State.TRYING:
            return self._open(now, f"the message that was tried failed ({error})")
        outcomes = self._outcomes
        outcomes.append(False)
        bad = outcomes.count(False)
        judged = len(outcomes) >= min(JUDGED_FROM, outcomes.maxlen or JUDGED_FROM)
        if not judged or 2 * bad <= len(outcomes):
            return False
        return self._open(
            now, f"{bad} of the last {len(outcomes)} messages failed (the last by {error})"
        )

    def _open(self, now: float, why: str) -> bool:
        self._reopened += 1
        pause = self._pauses.delay(self._reopened, 0.0)
        self._until = now + pause
        self._change(State.OPEN, f"{why}: none is begun for {pause:g} s, then one is tried")
        return True

    def _change(self, state: State, why: str) -> None:
        self.state, self.why = state, why
        self._outcomes.clear()
        self._era += 1
