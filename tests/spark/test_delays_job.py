"""The delays job: right sums, and the same ones after any number of runs and replays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from weir.spark.jobs import delays

if TYPE_CHECKING:
    from conftest import Node, Stream


def flight(carrier: str, sched: str, dep_delay: float | None) -> dict[str, bytes]:
    told = {"carrier": carrier, "sched": sched, "dep_delay": dep_delay, "origin": "EWR"}
    return {"value": json.dumps(told).encode()}


FIRST = [
    flight("UA", "2013-01-01T05:15", 2.0),
    flight("UA", "2013-01-02T05:59", 5.0),
    flight("UA", "2013-01-01T06:00", None),
    flight("AA", "2013-01-01T05:40", -1.0),
    {"value": b"no flight"},
]
LATER = [flight("UA", "2013-12-31T05:00", -4.0), flight("AA", "2013-01-01T23:59", 8.0)]


def test_delays_are_counted_once(stream: Stream, node: Node, tmp_path: Path) -> None:
    node.create(stream.topic, partitions=2)
    node.send(stream.topic, FIRST)
    out, checkpoint = str(tmp_path / "out"), tmp_path / "checkpoint"
    seen: list[int] = []

    def run() -> delays.Result:
        return delays.run(
            stream.spark, node.url, stream.topic, out, str(checkpoint),
            progress=seen.append, rows_per_batch=3,
        )  # fmt: skip

    def table(result: delays.Result) -> list[Iterable[object]]:
        found = stream.spark.read.parquet(result.path).orderBy("carrier", "hour").collect()
        return [tuple(row) for row in found]

    assert run() == delays.Result(5, 1, 4, f"{out}/delays")
    assert seen[-1] == 5

    # As after a crash between a batch and its commit: Spark runs the last batch again.
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()
    node.send(stream.topic, LATER)
    result = run()
    assert result == delays.Result(7, 1, 5, f"{out}/delays")
    expected = [
        (None, None, 1, 0, None, None),
        ("AA", 5, 1, 0, -1.0, -1.0),
        ("AA", 23, 1, 0, 8.0, 8.0),
        ("UA", 5, 3, 0, 1.0, 5.0),
        ("UA", 6, 1, 1, None, None),
    ]
    assert table(result) == expected

    # A new checkpoint is a new count, whatever the folder holds.
    shutil.rmtree(checkpoint)
    assert run() == result


def test_an_empty_topic_has_no_delays(stream: Stream, node: Node, tmp_path: Path) -> None:
    node.create(stream.topic)
    out = str(tmp_path / "out")
    result = delays.run(stream.spark, node.url, stream.topic, out, str(tmp_path / "checkpoint"))
    assert (result.flights, result.cancelled, result.rows) == (0, 0, 0)
