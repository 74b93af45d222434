"""How long to wait before trying again: exponential, with full jitter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits grow from `first` seconds by `factor` up to `most`; `attempts` None: for ever."""

    first: float = 0.05
    most: float = 5.0
    factor: float = 2.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for waits that cannot be."""
        if not 0 <= self.first <= self.most or self.factor < 1:
            raise ValueError(f"{self}: give 0 <= first <= most in seconds, and factor from 1 on")
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: give 1 or more, or None for no end")

    def delay(self, attempt: int, dice: float) -> float:
        """Return the seconds to wait before attempt 1, 2, ...; `dice` is uniform in [0, 1).

        Full jitter: clients that lost the same broker do not come back in one wave.
        """
        # The exponent is capped, because a float overflows long before a broker is given up.
        return dice * min(self.most, self.first * self.factor ** min(attempt - 1, 64))

    def spent(self, attempt: int) -> bool:
        """Tell whether attempt 1, 2, ... is one too many."""
        return self.attempts is not None and attempt > self.attempts
