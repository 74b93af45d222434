"""Durations as people write them ("5ms", "2s", "1h"), and how long to wait before trying again.

A message that failed comes again after a while, or goes to the dead-letter topic. How often it was
tried is replicated (its attempts, the grants it took), so every process gets the same number, also
after a crash of a handler or under a new leader.
"""

from __future__ import annotations

import math
import re

import msgspec

from weir.errors import Reject

_UNITS = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0
}  # fmt: skip
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def seconds(duration: str | float) -> float:
    """Return a duration in seconds. Raises `ValueError` naming the units for anything else."""
    if isinstance(duration, str):
        text = duration.strip().replace("_", "")
        if found := _DURATION.fullmatch(text):
            return float(found[1]) * _UNITS[found[2]]
        if _NUMBER.fullmatch(text):
            raise ValueError(
                f"{duration!r} has no unit: write {text}s, {text}m, {text}h or {text}d "
                f"(seconds, minutes, hours, days), or {text}ms"
            )
    elif math.isfinite(duration) and duration >= 0:
        return float(duration)
    raise ValueError(
        f"{duration!r} is no duration: write a number and one of {', '.join(_UNITS)} "
        'as in "5ms", or seconds from 0 on'
    )


class Backoff(msgspec.Struct, frozen=True):
    """Waits grow from `first` ("1s", or seconds) by `factor` up to `most`.

    `attempts` None: for ever. `jitter` is the random part of a wait: 1, all of it.
    """

    first: float | str = 0.05
    most: float | str = 5.0
    factor: float = 2.0
    attempts: int | None = None
    jitter: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ValueError` for waits that cannot be."""
        if not 0 <= seconds(self.first) <= seconds(self.most) or self.factor < 1:
            raise ValueError(f"{self}: give 0 <= first <= most in seconds, and factor from 1 on")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter}: give 0 (none) to 1 (all of a wait)")
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: give 1 or more, or None for no end")

    def delay(self, attempt: int, dice: float) -> float:
        """Return the seconds to wait before attempt 1, 2, ...; `dice` is uniform in [0, 1).

        With jitter, clients that lost the same broker do not return at the same moment.
        """
        # The exponent is capped, because a float overflows long before a broker is given up.
        whole = seconds(self.first) * self.factor ** min(attempt - 1, 64)
        return min(seconds(self.most), whole) * (1.0 - self.jitter * (1.0 - dice))

    def spent(self, attempt: int) -> bool:
        """Tell whether attempt 1, 2, ... is one too many."""
        return self.attempts is not None and attempt > self.attempts


class Again(msgspec.Struct, frozen=True):
    """Give it back; it is delivered again after `delay` seconds."""

    delay: float


class Dead(msgspec.Struct, frozen=True):
    """Publish it to the dead-letter topic for this reason, then ack it."""

    reason: str


Verdict = Again | Dead

#: What is tried for ever, or where a dead-letter topic is named, so often.
FOR_EVER = Backoff(first=1.0, most=300.0, factor=2.0, jitter=0.1)
SOME = Backoff(first=1.0, most=300.0, factor=2.0, attempts=5, jitter=0.1)


def check_retry(retry: object) -> None:
    """Raise `TypeError` for what is no `Backoff`, as a number of attempts."""
    if not isinstance(retry, Backoff):
        attempts = retry if type(retry) is int and retry > 0 else 3
        raise TypeError(
            f"retry={retry!r}: give weir.Backoff(attempts={attempts}), which says how often and "
            "how long to wait"
        )


def policy_of(retry: Backoff | None, dead_letter: str | None) -> Policy:
    """Return how failures are judged; without `retry` by what fits the dead-letter topic. Raises
    `TypeError` for a `retry` of another type, `ValueError` for attempts that lead nowhere.
    """
    if retry is None:
        retry = SOME if dead_letter is not None else FOR_EVER
    check_retry(retry)
    return Policy(retry, dead_letter)


class Policy(msgspec.Struct, frozen=True):
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
