"""A node and a Spark session for the tests of this folder: one of each a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import weir
from rigs.spark_home import use_quick_spark
from rigs.spark_node import Node, Stream
from weir.spark.session import session

NODE = """
import sys
from weir.server.config import Config, NodeConfig
from weir.server.processes.node import run
run(Config(node=NodeConfig(data=sys.argv[1], port=0)), lambda host, port: print(port, flush=True))
"""


@pytest.fixture(scope="session", autouse=True)
def quick_spark(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sparks of this folder's tests, and of the programs that they start, take less time."""
    use_quick_spark(tmp_path_factory.mktemp("spark-home"))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker that all tests share, each with topics of its own."""
    folder = tmp_path_factory.mktemp("node")
    source = Path(weir.__file__).parents[1]
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(folder / "data")],
            env={"PYTHONPATH": str(source)},
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the node did not start: {(folder / 'node.log').read_text()}"
        yield Node(int(line))
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="session")
def spark(quick_spark: None) -> Iterator[SparkSession]:
    """Spark takes ten seconds to start, so there is one."""
    started = session("weir-tests", cores=2, memory="1g")
    yield started
    started.stop()


@pytest.fixture
def stream(
    spark: SparkSession, node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> Stream:
    """A stream over a topic named after the test; the test creates it."""
    return Stream(spark, node.url, request.node.name.replace("[", "-").strip("]"), tmp_path)
