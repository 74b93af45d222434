"""The weather's part of the demo's page: delays over wind and visibility."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weir.spark.jobs.drawing import Axis, Curve, chart, heat
from weir_lab.demo.flights import ORIGINS
from weir_lab.demo.weather.cells import (
    VISIBILITY_LAST,
    WIND_BAND,
    WIND_LAST,
    Cell,
    Cells,
    Delayed,
    added_up,
)

#: With fewer flights a mean says more about luck than about the weather.
FLIGHTS_MIN = 100
_HEIGHT = 220
_WINDS = range(0, WIND_LAST + 1, WIND_BAND)
_MILES = range(VISIBILITY_LAST + 1)


def picture(cells: Cells) -> list[str]:
    """Return drawings as SVG: by wind and by visibility a curve an airport, then by both."""
    delay = Axis("mean departure delay, min")
    lost = Axis("cancelled, %")
    wind = Axis(f"wind, mph, by {WIND_BAND}, {WIND_LAST} and more as one")
    sight = Axis(f"visibility, miles, {VISIBILITY_LAST} and more as one")
    return [
        chart(wind, delay, _curves(cells, _WINDS, lambda cell: cell.wind, _mean), _HEIGHT),
        chart(sight, delay, _curves(cells, _MILES, lambda cell: cell.visibility, _mean), _HEIGHT),
        chart(wind, lost, _curves(cells, _WINDS, lambda cell: cell.wind, _cancelled), _HEIGHT),
        chart(
            sight, lost, _curves(cells, _MILES, lambda cell: cell.visibility, _cancelled), _HEIGHT
        ),
        _both(cells),
    ]


def _mean(delayed: Delayed) -> float | None:
    return delayed.mean if delayed.departed >= FLIGHTS_MIN else None


def _cancelled(delayed: Delayed) -> float | None:
    enough = delayed.flights >= FLIGHTS_MIN
    return 100 * delayed.cancelled / delayed.flights if enough else None


def _curves(
    cells: Cells,
    bands: Iterable[int],
    band: Callable[[Cell], int | None],
    value: Callable[[Delayed], float | None],
) -> list[Curve]:
    sums = added_up(cells, lambda cell: (cell.origin, band(cell)))
    curves = []
    for colour, origin in enumerate(ORIGINS):
        known = ((at, value(sums.get((origin, at), Delayed()))) for at in bands)
        points = [(float(at), y) for at, y in known if y is not None]
        if points:
            curves.append(Curve(origin, points, colour))
    return curves


def _both(cells: Cells) -> str:
    sums = added_up(cells, lambda cell: (cell.visibility, cell.wind))
    lines = [[_mean(sums.get((miles, wind), Delayed())) for wind in _WINDS] for miles in _MILES]
    rows = [f"{_from(miles, 1, VISIBILITY_LAST)} miles" for miles in _MILES]
    return heat(rows, [f"{_from(wind, WIND_BAND, WIND_LAST)} mph" for wind in _WINDS], lines, "min")


def _from(least: int, band: int, last: int) -> str:
    return f"{least}+" if least == last else f"{least}-{least + band}"
