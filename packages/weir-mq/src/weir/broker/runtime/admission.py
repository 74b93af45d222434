"""Who may do what, and how much may be in memory (DESIGN §8)."""

from __future__ import annotations

from collections.abc import Callable

from weir.errors import Overloaded
from weir.model.limits import BUDGET_BYTES_DEFAULT, RETRY_AFTER_MS

#: Raises `Unauthorized` unless the principal may do the verb on the resource.
Authorize = Callable[[str, str, str], None]
ANONYMOUS = "anonymous"


def allow_all(principal: str, verb: str, resource: str) -> None:
    """Let everybody do everything, until access control comes."""


class Budget:
    """The bytes of one shard: charged while in memory, from the socket to the commit, and from the
    log to the peer. Above three quarters reading stops; above all of it publishes are refused.
    """

    __slots__ = ("_high", "_little", "_low", "limit", "used")

    def __init__(self, limit: int = BUDGET_BYTES_DEFAULT) -> None:
        """Allow `limit` bytes."""
        self.limit = limit
        self.used = 0
        self._little = limit // 4
        self._high = limit // 4 * 3
        self._low = limit // 2

    def charge(self, size: int) -> None:
        """Take `size` bytes, or raise `Overloaded`: try again after a pause, nothing is lost.

        While little is in use anything passes: what is larger than the limit never would else.
        """
        used = self.used
        if used > self._little and used + size > self.limit:
            self.check(size)
        self.used = used + size

    def check(self, size: int) -> None:
        """Raise `Overloaded` if `charge` would; take nothing."""
        if self.used > self._little and self.used + size > self.limit:
            raise Overloaded(
                f"this shard holds {self.used:,} of {self.limit:,} bytes: try again shortly",
                RETRY_AFTER_MS,
            )

    def fits(self, size: int) -> bool:
        """Return whether `size` bytes are within the limit, however little is in use."""
        return self.used + size <= self.limit

    def has_room(self, size: int) -> bool:
        """Return whether `size` bytes may be taken now."""
        return self.used <= self._little or self.used + size <= self.limit

    def take(self, size: int) -> None:
        """Take `size` bytes that are in memory already and cannot be refused any more."""
        self.used += size

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self.used -= size

    def should_hold(self, holding: bool) -> bool:
        """Return whether to stop reading from peers, given whether reading is stopped now."""
        return self.used > (self._low if holding else self._high)

    def is_news(self, holding: bool) -> bool:
        """Return whether `should_hold` says something else than it did last."""
        return (self.used > (self._low if holding else self._high)) != holding
