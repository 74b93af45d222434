"""Congestion: marks of a phantom queue, windows of DCTCP, and how long to wait for an ACK.

A phantom queue is a number: the bytes that a queue would hold if its link were a little slower. An
output marks packets while it is above a threshold. It needs no queue that can be read, so the same
arithmetic runs in Python, in an XDP program and on a switch.
"""

from __future__ import annotations

#: Drain rates are bytes in so many nanoseconds, about one millisecond: a shift divides by it.
RATE_SHIFT = 20
#: The threshold of a phantom queue in bytes, where nobody says another one.
MARK_ABOVE = 100_000


def rate_of(mbit: float) -> int:
    """Return a drain rate of so many 10^6 bits a second in bytes per 2^20 ns."""
    return round(mbit * 1e6 / 8 * (1 << RATE_SHIFT) / 1e9)


def mbit_of(rate: int) -> float:
    """Return a drain rate of bytes per 2^20 ns in 10^6 bits a second."""
    return rate * 8 * 1e9 / (1 << RATE_SHIFT) / 1e6


class PhantomQueue:
    """The bytes that one output would hold if it drained at `rate`."""

    __slots__ = ("_at", "_bytes", "_rate", "_threshold")

    def __init__(self, rate: int, threshold: int) -> None:
        """`rate` is in bytes per 2^20 ns, `threshold` in bytes; a rate of 0 never marks."""
        self._rate = rate
        self._threshold = threshold
        self._bytes = 0
        self._at = 0

    def add(self, now: int, size: int) -> bool:
        """Count a packet of `size` bytes; return whether it must be marked."""
        return self._rate > 0 and self.add_run(now, size, 1) > 0

    def add_run(self, now: int, size: int, count: int) -> int:
        """Count packets of `size` bytes each; return how many of them, the last ones, must be
        marked: as many as if they came one by one.
        """
        if not self._rate:
            return 0
        elapsed = max(0, now - self._at)
        self._at = max(self._at, now)
        left = max(0, self._bytes - (elapsed * self._rate >> RATE_SHIFT))
        self._bytes = left + size * count
        return count - min(count, max(0, self._threshold - left) // size)


class CongestionWindow:
    """A window of DCTCP in bytes: it shrinks by the share of packets that were marked.

    RFC 8257, with g = 1/16 in integers: the share is counted in 1/1024.
    """

    __slots__ = ("_acked", "_floor", "_limit", "_marked", "_packets", "_share", "_shrank_at",
                 "_threshold", "bytes", "under_way")  # fmt: skip

    def __init__(self, floor: int, limit: int) -> None:
        self._floor = floor
        self._limit = limit
        self._share = 0
        self._packets = 0
        self._marked = 0
        self._acked = 0
        self._threshold = limit
        #: When it shrank last by a loss.
        self._shrank_at = 0
        #: So many bytes may be in the network, and so many are: its owner counts them.
        self.bytes = min(limit, 4 * floor)
        self.under_way = 0

    @property
    def free(self) -> int:
        """How many bytes more may leave; below 0 after the window shrank."""
        return self.bytes - self.under_way

    def acknowledged(self, size: int, packets: int, marked: int) -> None:
        """Count an ACK of `size` bytes whose receiver saw `marked` of `packets` marked."""
        self._packets += packets
        self._marked += marked
        self._acked += size
        if self.bytes < self._threshold and not self._marked:
            self.bytes = min(self._limit, self.bytes + size)  # slow start
        if self._acked < self.bytes or not self._packets:
            return
        share = 1024 * self._marked // self._packets
        self._share += (share - self._share) // 16 if share < self._share else (
            (share - self._share + 15) // 16
        )  # fmt: skip
        if self._marked:
            self.bytes = max(self._floor, self.bytes - self.bytes * self._share // 2048)
            self._threshold = self.bytes
        else:
            self.bytes = min(self._limit, self.bytes + self._floor // 8)
        self._packets = self._marked = self._acked = 0

    def lost(self, now: int, sent_at: int) -> None:
        """Halve the window: a packet that was sent then is lost.

        Once for all that was under way at a time: what was sent before it shrank tells no more.
        """
        if sent_at > self._shrank_at:
            self._shrank_at = now
            self.bytes = max(self._floor, self.bytes // 2)
            self._threshold = self.bytes


class RoundTrips:
    """Smoothed round trips and the time after which an unacknowledged packet is sent again.

    RFC 6298 in nanoseconds, with the limits that a caller gives instead of a second.
    """

    __slots__ = ("_backoff", "_least", "_most", "_variation", "smoothed")

    def __init__(self, first: int, least: int, most: int) -> None:
        self.smoothed = first // 2
        self._variation = first // 8
        self._least = least
        self._most = most
        self._backoff = 1

    @property
    def timeout(self) -> int:
        """How long to wait for an ACK, in nanoseconds."""
        timeout = max(self._least, self.smoothed + 4 * self._variation) * self._backoff
        return min(self._most, timeout)

    def lasting(self, count: int) -> int:
        """How long so many timeouts in a row last, each twice as long as the one before."""
        first = max(self._least, self.smoothed + 4 * self._variation)
        if first << count <= self._most:
            return (first << count) - first
        return sum([min(self._most, first << number) for number in range(count)])

    def measured(self, round_trip: int) -> None:
        """Take the round trip of a packet that was sent once."""
        self._variation += (abs(round_trip - self.smoothed) - self._variation) // 4
        self.smoothed += (round_trip - self.smoothed) // 8

    def answered(self) -> None:
        """Wait no longer than at first: an ACK of something new shows that packets arrive."""
        self._backoff = 1

    def expired(self) -> None:
        """Wait twice as long from now on, until something new is acknowledged."""
        if self.timeout < self._most:
            self._backoff *= 2
