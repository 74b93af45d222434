"""The delays job: right sums, and the same ones after any number of runs and replays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from weir.cli.spark import verbs
from weir.server.interpreter import environment
from weir.spark.jobs import delays

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream


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
#: Messages that are no flights, each for a reason of its own.
OTHERS = [
    b'{"origin": "EWR", "time_hour": "2013-01-01T05:00", "temp": 39.02}',
    b'{"carrier": "UA", "sched": "2013-01-01T05:15"}',
    b'{"carrier": "UA", "sched": "2013-01-01T05:15", "dep_delay": "late"}',
    b'{"carrier": "UA", "sched": "2013-01-01T05:15", "dep_delay": "NaN"}',
    b'{"carrier": "UA", "sched": "2013-01-01T05:15", "dep_delay": 1e999}',
    b'{"carrier": "UA", "sched": "2013-13-01T05:15", "dep_delay": 1.0}',
    b'{"carrier": "UA", "sched": "2013", "dep_delay": 1.0}',
    b'{"carrier": null, "sched": "2013-01-01T05:15", "dep_delay": 1.0}',
    b'{"carrier": "United", "sched": "2013-01-01T05:15", "dep_delay": 1.0}',
    b'{"sched": "2013-01-01T05:15", "dep_delay": 1.0}',
    b'{"carrier": "UA", "sched": "2013-01-01T05:15", "dep_delay": 1.0',
    b'["UA", "2013-01-01T05:15", 1.0]',
    b"null",
    b"",
    b"\xff\x00\xfe",
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

    assert run() == delays.Result(4, 1, 3, f"{out}/delays", left_out=1)
    assert seen[-1] == 5

    # As after a crash between a batch and its commit: Spark runs the last batch again.
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()
    node.send(stream.topic, LATER)
    result = run()
    assert result == delays.Result(6, 1, 4, f"{out}/delays", left_out=1)
    expected = [
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


def test_what_is_no_flight_is_left_out(stream: Stream, node: Node, tmp_path: Path) -> None:
    node.create(stream.topic)
    node.send(stream.topic, [*FIRST, *({"value": value} for value in OTHERS)])
    out = str(tmp_path / "out")
    result = delays.run(stream.spark, node.url, stream.topic, out, str(tmp_path / "checkpoint"))
    assert result == delays.Result(4, 1, 3, f"{out}/delays", left_out=1 + len(OTHERS))
    # A topic without flights is no table of one row.
    none = f"{stream.topic}-none"
    node.create(none)
    node.send(none, [{"value": value} for value in OTHERS])
    out = str(tmp_path / "none")
    result = delays.run(stream.spark, node.url, none, out, str(tmp_path / "of-none"))
    assert result == delays.Result(0, 0, 0, f"{out}/delays", left_out=len(OTHERS))


def test_it_is_a_program_by_itself(
    stream: Stream,
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node.create(stream.topic)
    node.send(stream.topic, [*FIRST, *LATER])
    folders = [str(tmp_path / "out"), str(tmp_path / "checkpoint")]
    monkeypatch.setattr(sys, "argv", ["delays", node.url, stream.topic, *folders])
    delays.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Spark {pyspark.__version__} at local[2")
    assert lines[-2] == f"6 flights (1 cancelled) in 4 rows: {folders[0]}/delays"
    assert lines[-1] == f"1 messages of {stream.topic} are no flights and were left out"


@pytest.mark.slow  # a JVM of its own; what the job reads is tested above
@pytest.mark.timeout(240)
def test_spark_submit_decides_the_master(node: Node, stream: Stream, tmp_path: Path) -> None:
    node.create(stream.topic)
    node.send(stream.topic, [*FIRST, *LATER])
    home = Path(pyspark.__file__).parent
    out = tmp_path / "out"
    done = subprocess.run(
        [home / "bin" / "spark-submit", "--master", "local[1,3]", "--name", "given",
         "--conf", "spark.ui.enabled=false", "--driver-java-options", "-XX:TieredStopAtLevel=1",
         verbs.__file__, "delays", stream.topic, out, "--url", node.url, "--json"],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "PYTHONPATH": environment()["PYTHONPATH"],
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True, text=True, timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # spark-submit joins both streams of the program, and there is nothing but the object.
    told = json.loads(done.stdout)
    assert (told["schema"], told["master"]) == ("weir.spark.delays/1", "local[1,3]")
    assert (told["messages"], told["good"], told["bad"], told["cancelled"]) == (7, 6, 1, 1)
    assert told["rows"] == 4
