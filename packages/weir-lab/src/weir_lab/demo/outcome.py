"""What a run of the demo came to, computed from the ledgers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from weir_lab.demo.flights import ORIGINS
from weir_lab.demo.ledger import (
    Account,
    Columns,
    Latency,
    Numbers,
    Sent,
    compare,
    first_receipts,
    latency,
)
from weir_lab.demo.order import Orders
from weir_lab.demo.tasks import Counted, paced_count
from weir_lab.demo.weather.cells import Cells, differing
from weir_lab.demo.weather.source import Source


class Latencies(msgspec.Struct, frozen=True):
    """From the send to the confirm, and from the send to a consumer."""

    confirm: Latency
    delivery: Latency


class Rates(msgspec.Struct, frozen=True):
    """Messages per second of the part at full speed: each airport's, all confirmed, delivered."""

    airports: dict[str, float]
    confirmed: float
    delivered: float


class Joined(msgspec.Struct, frozen=True):
    """Flights and weather as Spark counted and joined them, and as the files of the data set do."""

    spark: Counted
    cells: Cells
    source: Source

    @property
    def differing(self) -> int:
        """In how many cells of airport, wind and visibility the tables differ."""
        return differing(self.cells, self.source.cells)

    @property
    def faults(self) -> list[str]:
        """What Spark counted differently; nothing if all is the same."""
        told = [
            f"Spark counted {mine:,} {what}, and the files hold {theirs:,}"
            for what, mine, theirs in (
                ("flights", self.spark.flights, self.source.flights),
                ("observations", self.spark.observations, self.source.observations),
                ("flights with weather", self.spark.joined, self.source.joined),
                ("bad messages", self.spark.bad, 0),
            )
            if mine != theirs
        ]
        if count := self.differing:
            told.append(f"{count:,} cells of wind and visibility differ from the files'")
        return told


class Outcome(msgspec.Struct, frozen=True):
    """Everything the report tells; `seconds` since the demo began, by what had happened."""

    airports: list[Account]
    paced: Latencies
    full: Latencies
    rates: Rates
    shares: list[int]
    stale: int
    joined: Joined
    orders: Orders
    seconds: dict[str, float]

    @property
    def spark(self) -> Counted:
        """What Spark counted."""
        return self.joined.spark

    @property
    def sent(self) -> int:
        """Messages sent by all airports."""
        return self.total("sent")

    @property
    def clean(self) -> bool:
        """Whether every message came to the cluster and to Spark exactly once, and to all readers
        in one order, and Spark joined flights and weather as the files do.
        """
        counted = all(a.clean for a in self.airports) and self.spark.flights == self.sent
        return counted and self.orders.kept and not self.joined.faults

    def total(self, field: str) -> int:
        """Return the sum of a field of all airports' accounts."""
        return sum(getattr(account, field) for account in self.airports)


def settle(
    sent: Mapping[str, Sent],
    crew: Columns,
    joined: Joined,
    orders: Orders,
    seconds: dict[str, float],
) -> Outcome:
    """Compare the airports' ledgers with the crew's, whose columns are named `origin.column`."""
    received = by_origin(crew)
    came = {
        origin: first_receipts(received[origin], len(sent[origin].sent_us)) for origin in ORIGINS
    }

    def measure(part: Callable[[Numbers], Numbers]) -> Latencies:
        begun = [part(sent[origin].sent_us) for origin in ORIGINS]
        confirmed = [part(sent[origin].confirmed_us) for origin in ORIGINS]
        delivered = [part(came[origin]) for origin in ORIGINS]
        return Latencies(latency(begun, confirmed), latency(begun, delivered))

    return Outcome(
        airports=[compare(origin, sent[origin], received[origin]) for origin in ORIGINS],
        paced=measure(lambda column: column[: paced_count(len(column))]),
        full=measure(_full),
        rates=_rates(sent, came),
        shares=[int(share) for share in crew["shares"]],
        stale=int(crew["stale"][0]),
        joined=joined,
        orders=orders,
        seconds=seconds,
    )


def _full(column: Numbers) -> Numbers:
    """Return the part of an airport's column that went out at full speed."""
    return column[paced_count(len(column)) :]


def by_origin(crew: Columns) -> dict[str, dict[str, Any]]:
    """Return what the crew received, airport by airport, from columns named `origin.column`."""
    return {
        origin: {
            name.removeprefix(f"{origin}."): crew[name]
            for name in crew
            if name.startswith(f"{origin}.")
        }
        for origin in ORIGINS
    }


def _rates(sent: Mapping[str, Sent], came: Mapping[str, Numbers]) -> Rates:
    spans = []
    rates = {}
    for origin in ORIGINS:
        begun, confirmed = _full(sent[origin].sent_us), _full(sent[origin].confirmed_us)
        if not len(begun):
            continue
        span = (len(begun), int(begun.min()), int(confirmed.max()), int(_full(came[origin]).max()))
        spans.append(span)
        rates[origin] = _per_second(span[0], span[2] - span[1])
    count = sum(span[0] for span in spans)
    first = min((span[1] for span in spans), default=0)
    confirmed_at = max((span[2] for span in spans), default=0)
    delivered_at = max((span[3] for span in spans), default=0)
    return Rates(
        rates,
        _per_second(count, confirmed_at - first),
        _per_second(count, delivered_at - first),
    )


def _per_second(count: int, microseconds: int) -> float:
    return count * 1e6 / microseconds if microseconds > 0 else 0.0
