"""What is old makes way for what is live: how long it rests after each piece of work."""

from __future__ import annotations

from weir.order.clock import Time

#: So long after an entry that somebody waits for, more of them are expected.
LIVE_MS = 100
#: What took one unit of time is followed by so many for live traffic, but by `REST_MS` at most.
REST = 2
REST_MS = 50


class LiveTraffic:
    """Whether clients, or other nodes for them, write to the groups of one shard just now.

    A component that writes for one sets `came`, which costs nothing; it counts from the next look,
    and each tick looks.
    """

    __slots__ = ("_time", "_until_ms", "came")

    def __init__(self, time: Time) -> None:
        """Begin without any."""
        self._time = time
        self._until_ms = 0
        #: Whether an entry was proposed, or came from a leader, since the last look.
        self.came = False

    def look(self) -> bool:
        """Return whether there is live traffic."""
        now = self._time.monotonic_ms()
        if self.came:
            self.came = False
            self._until_ms = now + LIVE_MS
        return now < self._until_ms

    def rest_ms(self, took_ms: int) -> int:
        """Return for how long to rest after work on old entries that took so long."""
        return min(REST * max(took_ms, 1), REST_MS) if self.look() else 0
