"""Spark Connect and Spark Declarative Pipelines, each in a process of its own: the programs of the
docs read every message once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from weir import sync
from weir.server.interpreter import environment
from weir.spark.session import use_java
from weir.testing.nodes import Node, running_node

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples"
URL = "weir://localhost:6800"
SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A broker with a topic of five messages in two partitions."""
    with running_node(tmp_path / "node") as running:
        send(running, b"a", b"b", b"c", b"d", b"e")
        yield running


def send(node: Node, *values: bytes) -> None:
    with sync.connect(node.url) as client:
        client.create_topic("locks", 2)
        for value in values:
            client.publish("locks", value, partition=0 if value in b"ab" else 1)


def run(*command: str, cwd: Path) -> str:
    """Run a command with a Java and a weir; return what it printed."""
    use_java()
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=cwd, env={**environment(), **variables}, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
    return done.stdout


def test_a_program_reads_over_spark_connect(node: Node, tmp_path: Path) -> None:
    program = EXAMPLES / "spark_connect" / "read.py"
    text = program.read_text(encoding="utf-8").replace(URL, node.url)
    # A server of this process's own, which the same client talks to over a socket.
    (tmp_path / "read.py").write_text(text.replace("sc://localhost:15002", "local[2]"))
    said = run(sys.executable, "read.py", cwd=tmp_path)
    assert said == program.with_suffix(".txt").read_text(encoding="utf-8")


def test_a_pipeline_continues_where_its_last_run_ended(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "spark_pipeline", folder)
    for path in (folder / "spark-pipeline.yml", folder / "transformations" / "locks.py"):
        text = path.read_text(encoding="utf-8").replace(URL, node.url)
        path.write_text(text.replace("/var/lib/weir/pipeline", str(tmp_path / "storage")))
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")
    tables = folder / "spark-warehouse"

    def ran() -> list[bytes]:
        # A catalog that is kept from run to run: Spark's own forgets the tables.
        kept = "spark.sql.catalogImplementation=hive"
        run(program, "run", "--conf", kept, "--spec", "spark-pipeline.yml", cwd=folder)
        return sorted(value.as_py() for value in pq.read_table(tables / "bronze")["value"])

    assert ran() == [b"a", b"b", b"c", b"d", b"e"]
    send(node, b"f")
    assert ran() == [b"a", b"b", b"c", b"d", b"e", b"f"]
    counts = pq.read_table(tables / "per_partition").sort_by("partition")
    assert counts.to_pydict() == {"partition": [0, 1], "count": [2, 4]}
    assert os.listdir(tmp_path / "storage")
