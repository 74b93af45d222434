"""Delays by airport, wind and visibility: the cells of a table, and how two tables differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: Bands of the wind, in mph, each named by its least; the last one has no end.
WIND_BAND, WIND_LAST = 5, 30
#: No wind on the ground was ever so strong: one hour of 2013 is noted with 1,048 mph.
WIND_MAX = 250.0
#: Visibility is told in miles up to this: what is more is this.
VISIBILITY_LAST = 10


class Cell(NamedTuple):
    """An airport, and the lower ends of bands of wind (mph) and of visibility (miles).

    A band is None where nothing is known of it, and both are where the hour has no observation.
    """

    origin: str
    wind: int | None
    visibility: int | None


class Delayed(NamedTuple):
    """The flights of a cell: `departed` ones have a delay; `minutes` is the sum of the delays."""

    flights: int = 0
    departed: int = 0
    cancelled: int = 0
    minutes: float = 0.0

    def plus(self, other: Delayed) -> Delayed:
        """Return both together."""
        return Delayed(
            self.flights + other.flights,
            self.departed + other.departed,
            self.cancelled + other.cancelled,
            self.minutes + other.minutes,
        )

    @property
    def mean(self) -> float | None:
        """The mean delay in minutes; None where no flight departed."""
        return self.minutes / self.departed if self.departed else None


Cells = Mapping[Cell, Delayed]


def load(path: Path) -> dict[Cell, Delayed]:
    """Return the table that Spark wrote as cells."""
    from pyarrow import parquet

    return of(parquet.read_table(path).to_pylist())


def of(rows: Iterable[Mapping[str, Any]]) -> dict[Cell, Delayed]:
    """Return rows with the columns of `Cell` and `Delayed` as cells."""
    return {
        Cell(*(row[name] for name in Cell._fields)): Delayed(
            *(row[name] for name in Delayed._fields)
        )
        for row in rows
    }


def differing(one: Cells, other: Cells) -> int:
    """Return how many cells are not the same in both."""
    nothing = Delayed()
    cells = one.keys() | other.keys()
    return sum(one.get(cell, nothing) != other.get(cell, nothing) for cell in cells)


def added_up(cells: Cells, key: Callable[[Cell], Any]) -> dict[Any, Delayed]:
    """Return the flights of all cells that have a key in common, by that key."""
    sums: dict[Any, Delayed] = {}
    for cell, delayed in cells.items():
        sums[key(cell)] = sums.get(key(cell), Delayed()).plus(delayed)
    return sums
