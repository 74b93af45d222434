"""Durations as people write them ("5ms", "2s", "1h"), and how long to wait before trying again."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Backoff:
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
