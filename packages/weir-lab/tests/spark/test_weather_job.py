"""The demo's Spark job: flights meet their weather at barriers, whatever a micro-batch holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir import sync
from weir.testing.nodes import Node, running_node
from weir_lab.demo.flights import ORIGINS
from weir_lab.demo.tasks import Counted
from weir_lab.demo.weather import cells, job
from weir_lab.demo.weather.cells import Cell, Delayed


def observation(origin: str, hour: str, wind: float | None, visib: float | None) -> tuple[str, str]:
    told = {"origin": origin, "hour": hour, "wind": wind, "visib": visib, "temp": 39.02}
    return "weather", json.dumps(told)


def flight(origin: str, sched: str, dep_delay: float | None) -> tuple[str, str]:
    told = {"carrier": "UA", "sched": sched, "dep_delay": dep_delay, "origin": origin}
    return "flights", json.dumps(told)


#: New York is five hours behind in winter, and four in summer.
TOLD = [
    observation("EWR", "2013-01-01T10:00", 10.4, 10.0),
    flight("EWR", "2013-01-01T05:15", 2.0),
    flight("EWR", "2013-01-01T05:59", None),
    observation("JFK", "2013-01-01T10:00", 42.6, 0.5),
    ("weather", "no weather"),
    flight("JFK", "2013-01-01T05:40", -1.0),
    observation("EWR", "2013-01-01T11:00", 1_048.4, None),
    flight("EWR", "2013-01-01T06:00", 5.0),
    # Nobody has seen the weather of that hour at LGA.
    flight("LGA", "2013-01-01T05:00", 7.0),
    ("flights", '{"origin": "EWR"}'),
    observation("EWR", "2013-07-01T09:00", None, 2.5),
    flight("EWR", "2013-07-01T05:00", 1.0),
    # Weather of long before: no micro-batch but the last has this flight.
    flight("EWR", "2013-01-01T05:20", 4.0),
]
CELLS = {
    Cell("EWR", 10, 10): Delayed(3, 2, 1, 6.0),
    Cell("JFK", 30, 0): Delayed(1, 1, 0, -1.0),
    Cell("EWR", None, None): Delayed(1, 1, 0, 5.0),
    Cell("LGA", None, None): Delayed(1, 1, 0, 7.0),
    Cell("EWR", None, 2): Delayed(1, 1, 0, 1.0),
}


@pytest.fixture
def node() -> Iterator[Node]:
    with running_node() as node:
        yield node


def tell(node: Node, told: Sequence[tuple[str, str]]) -> None:
    """Publish to both topics, each message once the one before is confirmed."""
    with sync.connect(node.url) as client:
        for topic in ("flights", "weather"):
            client.create_topic(topic, partitions=len(ORIGINS), order="total")
        for topic, text in told:
            origin = json.loads(text).get("origin", "EWR") if text[0] == "{" else "EWR"
            client.publish(topic, text, partition=ORIGINS.index(origin))


def counted(node: Node, spark: SparkSession, folder: Path, rows: int) -> Counted:
    out, checkpoint = str(folder / "out"), str(folder / "checkpoint")
    return job.join(spark, node.url, out, checkpoint, rows_per_batch=rows)


def test_flights_meet_their_weather_across_micro_batches(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    tell(node, TOLD)
    told = counted(node, spark, tmp_path, 4)
    commits = tmp_path / "checkpoint/commits"
    batches = sorted(int(path.name) for path in commits.glob("[0-9]*"))
    assert len(batches) > 2
    assert (told.flights, told.cancelled, told.rows) == (7, 1, 2)
    assert (told.observations, told.joined, told.bad) == (4, 6, 2)
    found = cells.load(Path(told.weather_path))
    assert cells.differing(found, CELLS) == 0, found
    # As after a crash between a micro-batch and its commit: Spark runs the last one again.
    (commits / str(batches[-1])).unlink()
    (commits / f".{batches[-1]}.crc").unlink()
    again = counted(node, spark, tmp_path, 4)
    assert (again.flights, again.observations, again.joined, again.bad) == (7, 4, 6, 2)


def test_weather_that_is_told_too_late_is_met_by_no_flight(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    tell(node, [flight("EWR", "2013-01-01T05:15", 2.0)])
    assert counted(node, spark, tmp_path, 1).joined == 0
    with sync.connect(node.url) as client:
        late = observation("EWR", "2013-01-01T10:00", 10.4, 10.0)[1]
        client.publish("weather", late, partition=ORIGINS.index("EWR"))
    told = counted(node, spark, tmp_path, 1)
    assert (told.flights, told.observations, told.joined) == (1, 1, 0)
