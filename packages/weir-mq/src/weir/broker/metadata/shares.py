"""How a rate of the whole set is shared out among its shards: pure, by what they report.

Each shard keeps to a share. It reports what it used in the last second, whether that was short, and
the share that it holds. The leader of the registry answers with the share that it is to hold from
then on. All shares together are never above the limit: what is taken from a shard is given to
another one only once the first has said that it holds less. So a lost answer, a new leader, or a
shard that is cut off costs what could be used, and never lets more through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: A shard that has not reported for so long counts as gone, and its share is dealt to others. A
#: leader that leads for less than this deals nothing that shards may hold that it has not heard of.
GONE_MS = 60_000
#: Rates are shared out in thousandths of a unit, so that small ones have shares as well.
MILLI = 1_000
#: Shards get a part of the limit whether they ask or not, so that new clients are served at once.
_FLOOR_PARTS = 10
#: A shard that was not short gets room to grow.
_GROWTH = 1.25


class Demand(NamedTuple):
    """What a shard reports of one rate: what it used in the last second, whether somebody had to
    wait for more, and the share that it holds; in thousandths of a unit a second.
    """

    used: int
    is_short: bool
    held: int


def even_share(limit: int, shards: int) -> int:
    """Return the share of a shard that nobody has dealt one to yet."""
    return limit // max(shards, 1)


def deal(limit: int, demands: Sequence[Demand]) -> list[float]:
    """Return a share for each of these shards; all of them are the limit together.

    Each gets an even part of a tenth. A shard that was not short then gets what it used, and a
    quarter more; the smallest first, as far as there is enough, and who was short gets the same as
    the others that were. What is left over belongs to all alike.
    """
    if not demands:
        return []
    floor = limit / _FLOOR_PARTS / len(demands)
    wishes = [
        limit if one.is_short else max(min(one.used * _GROWTH, limit) - floor, 0.0)
        for one in demands
    ]
    left, shares = limit - floor * len(demands), [floor] * len(demands)
    order = sorted(range(len(demands)), key=wishes.__getitem__)
    for place, at in enumerate(order):
        given = min(wishes[at], left / (len(order) - place))
        shares[at] += given
        left -= given
    return [share + left / len(demands) for share in shares]


class _Known:
    """What is known of a shard: what it reported last, and when; what it was told last to hold, and
    the most that it may go by until it has heard that.
    """

    __slots__ = ("at_ms", "demand", "in_force", "told")

    def __init__(self) -> None:
        self.at_ms = 0
        self.demand = Demand(0, False, 0)
        self.told = -1
        self.in_force = 0

    def reported(self, demand: Demand, now_ms: int) -> None:
        self.at_ms, self.demand = now_ms, demand
        if demand.held == self.told:
            self.in_force = demand.held
        else:  # what it was told is on its way, or was lost
            self.in_force = max(self.in_force, demand.held)

    def tell(self, share: int) -> None:
        self.told = share
        self.in_force = max(self.in_force, share)


class SharedRate:
    """One rate, as the leader of the registry deals it. Times are monotonic, in milliseconds."""

    __slots__ = ("_known", "_since_ms", "limit")

    def __init__(self, limit: int, now_ms: int) -> None:
        """Deal `limit` thousandths of a unit a second. Nobody has reported yet."""
        self.limit = limit
        self._since_ms = now_ms
        self._known: dict[str, _Known] = {}

    @property
    def used(self) -> int:
        """How many units the shards used, in their last seconds."""
        return sum(one.demand.used for one in self._known.values()) // MILLI

    def report(self, shard: str, demand: Demand, members: int, now_ms: int) -> int:
        """Take what a shard of so many reports; return the share that it is to hold."""
        known = self._known.setdefault(shard, _Known())
        known.reported(demand, now_ms)
        for name in [one for one, row in self._known.items() if now_ms - row.at_ms > GONE_MS]:
            del self._known[name]
        shares = deal(self.limit, [one.demand for one in self._known.values()])
        share = dict(zip(self._known, shares, strict=True))[shard]
        free = self.limit - sum(one.in_force for one in self._known.values() if one is not known)
        if len(self._known) < members and now_ms - self._since_ms < GONE_MS:
            free = min(free, demand.held)  # the others hold something, too
        known.tell(max(min(int(share), free), 0))
        return known.told
