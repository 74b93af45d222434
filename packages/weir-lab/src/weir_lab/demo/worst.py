"""The worst delays, read back from the Parquet that Spark wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

#: An hour of day with fewer flights than this says more about luck than about the hour.
HOUR_FLIGHTS_MIN = 100


class Delays(msgspec.Struct, frozen=True):
    """One carrier's year: means and the longest are minutes; cancelled flights have no delay."""

    carrier: str
    flights: int
    cancelled: int
    mean_delay: float
    max_delay: float
    worst_hour: int | None
    worst_hour_delay: float | None


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the table: carrier, hour, flights, cancelled, mean_delay, max_delay."""
    from pyarrow import parquet

    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def by_carrier(rows: Iterable[Mapping[str, Any]]) -> list[Delays]:
    """Sum up each carrier's hours; the worst mean delay comes first."""
    hours: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        hours.setdefault(row["carrier"], []).append(row)
    carriers = [_sum_up(carrier, its) for carrier, its in hours.items()]
    return sorted(carriers, key=lambda carrier: -carrier.mean_delay)


def _sum_up(carrier: str, hours: list[Mapping[str, Any]]) -> Delays:
    flown = [row for row in hours if row["mean_delay"] is not None]
    # A mean of means would give a lone night flight the weight of a morning's hundreds.
    departed = sum(row["flights"] - row["cancelled"] for row in flown)
    minutes = sum(row["mean_delay"] * (row["flights"] - row["cancelled"]) for row in flown)
    busy = [row for row in flown if row["flights"] >= HOUR_FLIGHTS_MIN]
    worst = max(busy, key=lambda row: row["mean_delay"], default=None)
    return Delays(
        carrier,
        sum(row["flights"] for row in hours),
        sum(row["cancelled"] for row in hours),
        minutes / departed if departed else 0.0,
        max((row["max_delay"] for row in flown), default=0.0),
        None if worst is None else worst["hour"],
        None if worst is None else worst["mean_delay"],
    )
