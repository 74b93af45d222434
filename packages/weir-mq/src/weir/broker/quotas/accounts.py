"""The usage of one entity at this shard, and the peers that wait because it exceeds a quota."""

from __future__ import annotations

from collections.abc import Mapping

from weir.broker.metadata.quotas import RATES
from weir.broker.metadata.shares import MILLI, Demand, even_share

#: In units a second: with none at all, waiting peers would wait for ever.
_LEAST = 0.1

BYTES_IN, BYTES_OUT, REQUESTS = range(len(RATES))


#: A bucket holds what so many milliseconds give: what was not used in the second before last is
#: not used later.
BURST_MS = 200


class Bucket:
    """A token bucket, of so many units a second, that may be overdrawn: what came cannot be sent
    back, so the next waits longer. Times are monotonic, in milliseconds.
    """

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


class Account:
    """The limits of one entity at this shard. Times are monotonic, in milliseconds."""

    __slots__ = ("_promised_bytes", "_promised_requests", "_reported_ms", "_short", "buckets",
                 "connections", "entity", "limits", "parked_bytes", "shares", "totals",
                 "used")  # fmt: skip

    def __init__(self, entity: str, now_ms: int) -> None:
        """Have no limits yet."""
        self.entity = entity
        self.limits: Mapping[str, int] = {}
        #: By rate; None where there is no limit.
        self.buckets: list[Bucket | None] = [None] * len(RATES)
        #: By rate, what this shard was dealt, in thousandths.
        self.shares = [0] * len(RATES)
        #: By rate, units since the last report, and whether somebody had to wait for more.
        self.used = [0] * len(RATES)
        self._short = [False] * len(RATES)
        self._reported_ms = now_ms
        #: Bytes of requests that wait in memory for one of its rates.
        self.parked_bytes = 0
        #: What is kept for peers whose turn it is now, beside those who come.
        self._promised_bytes = self._promised_requests = 0
        #: Connections here.
        self.connections = 0
        #: By quota, how much the other shards have, as the leader of the registry told last.
        self.totals: dict[str, int] = {}

    def change(self, limits: Mapping[str, int], shards: int, now_ms: int) -> None:
        """Keep to these limits; of a rate that is new or has changed, to an even share at first."""
        for rate, quota in enumerate(RATES):
            limit = limits.get(quota)
            if limit is None:
                self.buckets[rate] = None
            elif limit != self.limits.get(quota):
                if self.buckets[rate] is None:
                    self.buckets[rate] = Bucket(limit, now_ms)
                self.hold(rate, even_share(limit * MILLI, shards))
        self.limits = dict(limits)

    def take(self, rate: int, size: int) -> bool:
        """Take so many units of a rate; return whether there were less."""
        bucket = self.buckets[rate]
        if bucket is None:
            return False
        self.used[rate] += size
        bucket.take(size)
        if bucket.is_short:
            self._short[rate] = True
            return True
        return False

    def refill(self, now_ms: int) -> None:
        """Add what time gave."""
        for bucket in self.buckets:
            if bucket is not None:
                bucket.refill(now_ms)

    @property
    def is_short(self) -> bool:
        """Whether any rate is overdrawn."""
        return any(bucket is not None and bucket.is_short for bucket in self.buckets)

    def promise(self, size: int, requests: int) -> None:
        """Keep so much for a peer; with negative numbers, keep it no more."""
        self._promised_bytes += size
        self._promised_requests += requests

    def leaves_promised(self, size: int, own_bytes: int, own_requests: int) -> bool:
        """Return whether a request of `size` bytes leaves what is promised, to others than one who
        is promised so much itself.
        """
        came, asked = self.buckets[BYTES_IN], self.buckets[REQUESTS]
        others = self._promised_bytes - own_bytes
        if came is not None and others > 0 and came.level - size < others:
            return False
        others = self._promised_requests - own_requests
        return asked is None or others <= 0 or asked.level - 1 >= others

    @property
    def wait_ms(self) -> int:
        """In how many milliseconds no rate is overdrawn any more; 0 if none is."""
        return max((bucket.wait_ms for bucket in self.buckets if bucket is not None), default=0)

    def demands(self, now_ms: int) -> list[Demand | None]:
        """Return what to report of each rate, and begin to count anew; None without a limit."""
        passed_ms = max(now_ms - self._reported_ms, 1)
        found: list[Demand | None] = []
        for rate, bucket in enumerate(self.buckets):
            if bucket is None:
                found.append(None)
            else:
                used = self.used[rate] * 1_000 * MILLI // passed_ms
                # A burst that is over by now is no reason to have more.
                is_used = used * 10 >= self.shares[rate] * 9
                short = bucket.is_short or (self._short[rate] and is_used)
                found.append(Demand(used, short, self.shares[rate]))
        self.used, self._short = [0] * len(RATES), [False] * len(RATES)
        self._reported_ms = now_ms
        return found

    def hold(self, rate: int, share: int) -> None:
        """Keep to this share of a rate, in thousandths, from now on."""
        if (bucket := self.buckets[rate]) is not None:
            self.shares[rate] = share
            bucket.change(max(share / MILLI, _LEAST))
