"""What the shards of the set use, as the leader of the registry hears it, and what it deals."""

from __future__ import annotations

from typing import Protocol

from weir.broker.metadata.quotas import RATES, Quotas
from weir.broker.metadata.shares import GONE_MS, MILLI, Demand, SharedRate
from weir.order.clock import Time
from weir.protocol.client import quotas as q

#: Counts that shards report, by the names of their quotas.
_COUNTS = ("connections", "clusters", "storage_bytes")


class QuotaFacts(Protocol):
    """What the registry says."""

    quotas: Quotas


class _Entity:
    """What is known of the use of one entity."""

    __slots__ = ("counts", "rates", "throttled")

    def __init__(self) -> None:
        self.rates: dict[str, SharedRate] = {}
        #: By shard: when it reported, and its counts in the order of `_COUNTS`.
        self.counts: dict[str, tuple[int, tuple[int, int, int]]] = {}
        #: By shard, for how long its peers were throttled since it started.
        self.throttled: dict[str, int] = {}

    def others(self, shard: str, now_ms: int) -> tuple[int, int, int]:
        """Return the counts of all shards but this one."""
        rows = [
            row for name, (at_ms, row) in self.counts.items()
            if name != shard and now_ms - at_ms <= GONE_MS
        ]  # fmt: skip
        connections, clusters, stored = (
            sum(column) for column in zip((0, 0, 0), *rows, strict=True)
        )
        return connections, clusters, stored


class Dealer:
    """Deals shares of rates, and sums up counts. It knows nothing after a change of leaders, and
    learns it within some seconds from the reports.
    """

    __slots__ = ("_catalog", "_entities", "_time")

    def __init__(self, catalog: QuotaFacts, time: Time) -> None:
        """Deal what `catalog` says that entities may use."""
        self._catalog = catalog
        self._time = time
        self._entities: dict[str, _Entity] = {}

    def forget(self) -> None:
        """This node leads no more, or has begun to: what it knew is old."""
        self._entities.clear()

    def report(self, shard: str, request: q.ReportUsage, members: int) -> q.UsageShares:
        """Take what a shard of a set of so many uses; return what it is to hold."""
        now_ms, quotas = self._time.monotonic_ms(), self._catalog.quotas
        for entity in [name for name in self._entities if quotas.of(name) is None]:
            del self._entities[entity]
        rows: list[q.ShareRow] = []
        for row in request.rows:
            limits = quotas.of(row.entity)
            if limits is None:
                continue
            known = self._entities.get(row.entity)
            if known is None:
                known = self._entities[row.entity] = _Entity()
            known.counts[shard] = now_ms, (row.connections, row.clusters, row.storage_bytes)
            known.throttled[shard] = row.throttled_ms
            shares: list[int | None] = []
            for quota, said in zip(RATES, row.rates, strict=True):
                limit = limits.get(quota)
                if limit is None or said is None:
                    if limit is None:
                        known.rates.pop(quota, None)
                    shares.append(None)
                    continue
                rate = known.rates.get(quota)
                if rate is None:
                    rate = known.rates[quota] = SharedRate(limit * MILLI, now_ms)
                rate.limit = limit * MILLI
                shares.append(rate.report(shard, Demand(*said), members, now_ms))
            others = known.others(shard, now_ms)
            rows.append(q.ShareRow(row.entity, *others, (shares[0], shares[1], shares[2])))
        return q.UsageShares(tuple(rows))

    def used(self, entity: str) -> tuple[dict[str, int], int]:
        """Return by quota how much an entity uses, as far as shards said; and for how many
        milliseconds its peers were throttled, all together.
        """
        known = self._entities.get(entity)
        if known is None:
            return {}, 0
        counts = known.others("", self._time.monotonic_ms())
        used = dict(zip(_COUNTS, counts, strict=True))
        used.update((quota, rate.used) for quota, rate in known.rates.items())
        return used, sum(known.throttled.values())
