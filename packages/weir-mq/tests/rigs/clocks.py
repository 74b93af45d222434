"""Time that obeys: the clock of several nodes in one process, and what each makes of it."""

from __future__ import annotations


class Clock:
    """The time of all nodes, moved by hand."""

    def __init__(self) -> None:
        """Begin at some moment, with 0 on the clock that never jumps."""
        self.wall = 1_700_000_000_000
        self.monotonic = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.wall

    def monotonic_ms(self) -> int:
        """Milliseconds since the beginning."""
        return self.monotonic


class Skewed:
    """The time as one node tells it: its wall clock is `ahead_ms` ahead of that of all."""

    def __init__(self, clock: Clock) -> None:
        """Be right."""
        self._clock = clock
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970, right or wrong."""
        return self._clock.wall + self.ahead_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since the beginning."""
        return self._clock.monotonic
