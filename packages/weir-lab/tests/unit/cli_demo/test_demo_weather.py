"""The weather of the demo: told in order, banded, and counted from the files alone."""

from __future__ import annotations

import zipfile
from pathlib import Path

import msgspec
import pandas
import pytest

from weir_lab.demo import flights
from weir_lab.demo.flights import ORIGINS
from weir_lab.demo.weather import cells, observations, source
from weir_lab.demo.weather.cells import Cell, Delayed
from weir_lab.demo.weather.observations import Observation

FOREVER = 1 << 62


def test_every_hour_of_every_airport_is_told_in_order() -> None:
    every = [observations.load(origin, FOREVER) for origin in ORIGINS]
    assert sum(map(len, every)) == observations.count(FOREVER) == 26_115
    assert all(its.times == sorted(set(its.times)) for its in every)
    first = msgspec.json.decode(every[0].values[0], type=Observation)
    assert first.origin == "EWR"
    assert (first.hour, first.visib, first.gust) == ("2013-01-01T06:00", 10.0, None)
    assert every[0].times[0] == 1_357_020_000_000_000


def test_the_weather_ends_with_the_flights() -> None:
    until = flights.load("JFK", limit=500).until
    weather = [observations.load(origin, until) for origin in ORIGINS]
    last = max(its.times[-1] for its in weather)
    assert last <= until < last + 3_600_000_000
    assert observations.count(until) == sum(map(len, weather)) < 500


def test_an_hour_is_told_from_its_first_moment_on() -> None:
    weather = observations.load("LGA", FOREVER)
    third = weather.times[2]
    assert [weather.told_by(time) for time in (0, third - 1, third, third + 1)] == [0, 2, 3, 3]


def test_the_files_are_counted_as_pandas_does() -> None:
    paths = flights.file(flights.FILE), flights.file(observations.FILE)
    counted = source.count(*paths)
    with zipfile.ZipFile(paths[0]) as archive, archive.open("flights.csv") as file:
        due = pandas.read_csv(file)
    seen = pandas.read_csv(paths[1])
    met = due.merge(seen, how="left", on=["origin", "time_hour"], indicator=True)
    assert counted.flights == len(due) == len(met) == 336_776
    assert counted.observations == len(seen) == 26_115
    assert counted.joined == int((met["_merge"] == "both").sum()) == 335_220
    wind = met["wind_speed"].where(met["wind_speed"].between(0, 250))
    met["wind"] = (wind // 5 * 5).clip(upper=30).fillna(-1)
    met["visibility"] = met["visib"].floordiv(1).clip(upper=10).fillna(-1)
    grouped = met.groupby(["origin", "wind", "visibility"])["dep_delay"]
    expected = {}
    for (origin, band, miles), delays in grouped:
        cell = Cell(origin, *(None if known < 0 else int(known) for known in (band, miles)))
        departed = int(delays.count())
        expected[cell] = Delayed(len(delays), departed, len(delays) - departed, delays.sum())
    assert cells.differing(counted.cells, expected) == 0
    assert len(expected) == len(counted.cells)
    assert any(cell.wind is None and cell.visibility is not None for cell in expected)


def test_a_limit_counts_the_flights_that_are_sent() -> None:
    paths = flights.file(flights.FILE), flights.file(observations.FILE)
    counted = source.count(*paths, limit=500)
    loaded = [flights.load(origin, limit=500) for origin in ORIGINS]
    assert counted.flights == sum(map(len, loaded)) == 500
    assert counted.observations == observations.count(loaded[0].until)
    by_airport = cells.added_up(counted.cells, lambda cell: cell.origin)
    assert [by_airport[origin].flights for origin in ORIGINS] == [len(its) for its in loaded]


@pytest.mark.parametrize(
    ("other", "count"),
    [
        ({Cell("EWR", 5, 10): Delayed(2, 1, 1, 3.0)}, 0),
        ({Cell("EWR", 5, 10): Delayed(2, 1, 1, 3.5)}, 1),
        ({Cell("EWR", 5, None): Delayed(2, 1, 1, 3.0)}, 2),
        ({}, 1),
    ],
)
def test_each_cell_that_differs_is_counted(other: cells.Cells, count: int) -> None:
    mine = {Cell("EWR", 5, 10): Delayed(2, 1, 1, 3.0)}
    assert cells.differing(mine, other) == cells.differing(other, mine) == count


def test_a_table_of_spark_is_read_as_cells(tmp_path: Path) -> None:
    row = {"origin": "LGA", "wind": None, "visibility": 3, "flights": 3, "departed": 0,
           "cancelled": 3, "minutes": 0.0}  # fmt: skip
    pandas.DataFrame([row]).astype({"wind": "Int32"}).to_parquet(tmp_path / "part.parquet")
    (cell,) = cells.load(tmp_path).items()
    assert cell == (Cell("LGA", None, 3), Delayed(3, 0, 3, 0.0))
    assert cell[1].mean is None
