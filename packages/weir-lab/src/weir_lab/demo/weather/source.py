"""What the files say of flights and weather, counted by plain Python: no Arrow, no Spark, no weir.

It shares the bands' numbers with the Spark job, and no line that reads, joins or adds up.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir_lab.demo.weather.cells import (
    VISIBILITY_LAST,
    WIND_BAND,
    WIND_LAST,
    WIND_MAX,
    Cell,
    Delayed,
)


@dataclass(frozen=True, slots=True)
class Source:
    """Flights, observations up to the last flight's hour, and flights whose hour has one."""

    flights: int
    observations: int
    joined: int
    cells: dict[Cell, Delayed]


def count(flights: Path, weather: Path, limit: int | None = None) -> Source:
    """Count what the first `limit` flights by their schedule come to, from the data set's files."""
    due = [
        (row["time_hour"], int(row["minute"]), row["origin"], row["dep_delay"])
        for row in _rows(flights)
    ]
    due.sort(key=lambda flight: flight[:2])
    due = due[:limit]
    last = due[-1][0] if due else ""
    observed = {
        (row["origin"], row["time_hour"]): _bands(row["wind_speed"], row["visib"])
        for row in _rows(weather)
        if row["time_hour"] <= last
    }
    joined = 0
    sums: dict[Cell, list[float]] = {}
    for hour, _, origin, delay in due:
        bands = observed.get((origin, hour))
        joined += bands is not None
        its = sums.setdefault(Cell(origin, *(bands or (None, None))), [0, 0, 0, 0.0])
        is_cancelled = delay in _NOTHING
        its[0] += 1
        its[1] += not is_cancelled
        its[2] += is_cancelled
        its[3] += 0.0 if is_cancelled else float(delay)
    cells = {
        cell: Delayed(int(flights), int(departed), int(cancelled), minutes)
        for cell, (flights, departed, cancelled, minutes) in sums.items()
    }
    return Source(len(due), len(observed), joined, cells)


_NOTHING = ("", "NA")


def _bands(wind: str, visibility: str) -> tuple[int | None, int | None]:
    speed = None if wind in _NOTHING else float(wind)
    if speed is not None and not 0 <= speed <= WIND_MAX:
        speed = None
    miles = None if visibility in _NOTHING else int(float(visibility))
    return (
        None if speed is None else min(int(speed) // WIND_BAND * WIND_BAND, WIND_LAST),
        None if miles is None else min(miles, VISIBILITY_LAST),
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.suffix != ".zip":
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
        return
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as packed:
        yield from csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
