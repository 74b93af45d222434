"""What becomes of a message that failed: again after a while, or to the dead-letter topic.

How often it was tried is replicated (its attempts, the grants it took), so it is the same whoever
asks: a crashed handler, another process, a new leader.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.client.core.durations import Backoff
from weir.errors import Reject


@dataclass(frozen=True, slots=True)
class Again:
    """Give it back; it is delivered again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Dead:
    """Publish it to the dead-letter topic for this reason, then ack it."""

    reason: str


Verdict = Again | Dead

#: What is tried for ever, or where a dead-letter topic is named, so often.
FOR_EVER = Backoff(first=1.0, most=300.0, factor=2.0, jitter=0.1)
SOME = Backoff(first=1.0, most=300.0, factor=2.0, attempts=5, jitter=0.1)


def policy_of(retry: Backoff | None, dead_letter: str | None) -> Policy:
    """Return how failures are judged; without `retry` by what fits the dead-letter topic."""
    return Policy(retry or (SOME if dead_letter is not None else FOR_EVER), dead_letter)


@dataclass(frozen=True, slots=True)
class Policy:
    """Decides by `retry`: its attempts are how often a message is tried in all."""

    retry: Backoff
    dead_letter: str | None

    def __post_init__(self) -> None:
        """Raise `ValueError` for attempts that lead nowhere."""
        if self.retry.attempts is not None and self.dead_letter is None:
            raise ValueError(
                f"attempts={self.retry.attempts} without dead_letter=: say which topic takes the "
                "messages that failed so often, or give no attempts to try them for ever"
            )

    def is_last(self, attempts: int) -> bool:
        """Tell whether a message failed before, and in its attempt 2, 3, ... fails for good."""
        spent = self.retry.spent
        return attempts > 1 and spent(attempts + 1) and not spent(attempts)

    def delivered(self, attempts: int, forgiven: bool) -> Dead | None:
        """Judge a message before it is handled, in its attempt 1, 2, ...

        One that was granted more often than it may be tried ended its handlers' processes before
        they could say anything. Not so if failures are `forgiven`.
        """
        if self.retry.spent(attempts) and not forgiven:
            return Dead(f"delivered {attempts - 1} times, and none of its handlers came to an end")
        return None

    def failed(self, attempts: int, error: BaseException, dice: float, forgiven: bool) -> Verdict:
        """Judge a message whose attempt 1, 2, ... failed; `dice` is uniform in [0, 1).

        While failures are `forgiven`, none is dead for its attempts, only for what it is.
        """
        if isinstance(error, Reject) and self.dead_letter is not None:
            return Dead(" ".join(str(error).split()) or "rejected")
        if self.retry.spent(attempts + 1) and not forgiven:
            return Dead(told(error))
        return Again(self.retry.delay(attempts, dice))


def told(error: BaseException) -> str:
    """Return an error in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
