"""How long to wait before trying again: exponential, with jitter."""

from __future__ import annotations

from dataclasses import dataclass

from weir.client.core.duration import seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits grow from `first` ("1s", or seconds) by `factor` up to `most`.

    `attempts` None: for ever. `jitter` is the part of a wait that dice decide: 1, all of it.
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

        Jitter: clients that lost the same broker do not come back in one wave.
        """
        # The exponent is capped, because a float overflows long before a broker is given up.
        whole = seconds(self.first) * self.factor ** min(attempt - 1, 64)
        return min(seconds(self.most), whole) * (1.0 - self.jitter * (1.0 - dice))

    def spent(self, attempt: int) -> bool:
        """Tell whether attempt 1, 2, ... is one too many."""
        return self.attempts is not None and attempt > self.attempts
