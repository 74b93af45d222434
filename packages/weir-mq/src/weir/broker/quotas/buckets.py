"""A token bucket that may be overdrawn: what came cannot be sent back, so the next waits longer."""

from __future__ import annotations

#: A bucket holds what so many milliseconds give: what was not used in the second before last is
#: not used later.
BURST_MS = 200


class Bucket:
    """So many units a second. Times are monotonic, in milliseconds."""

    __slots__ = ("_at_ms", "level", "rate")

    def __init__(self, rate: float, now_ms: int) -> None:
        """Begin full; `rate` is in units a second, above 0."""
        self.rate = rate
        self._at_ms = now_ms
        #: What is left; below 0 it is overdrawn.
        self.level = self._most

    @property
    def _most(self) -> float:
        return self.rate * BURST_MS / 1_000

    @property
    def is_short(self) -> bool:
        """Whether more was taken than there was."""
        return self.level < 0

    @property
    def wait_ms(self) -> int:
        """In how many milliseconds it is overdrawn no more; 0 if it is not."""
        return int(-self.level / self.rate * 1_000) + 1 if self.level < 0 else 0

    def take(self, size: int) -> None:
        """Take so many units, whether they are there or not."""
        self.level -= size

    def refill(self, now_ms: int) -> None:
        """Add what time gave since the last call."""
        passed = max(now_ms - self._at_ms, 0)
        self._at_ms = now_ms
        self.level = min(self._most, self.level + self.rate * passed / 1_000)

    def change(self, rate: float) -> None:
        """Give so many units a second from now on; what is overdrawn stays so."""
        self.rate = rate
        self.level = min(self.level, self._most)
