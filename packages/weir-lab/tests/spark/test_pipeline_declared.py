"""A pipeline as a Spark Declarative Pipeline: the same lakes and tables, each row once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import deltalake
import pyspark
import pytest

from weir import sync
from weir.server.interpreter import environment
from weir.spark.lake.layout import read_cut
from weir.spark.lake.tables import Table
from weir.spark.pipeline import declared, plan, standing
from weir.spark.session import use_java
from weir.testing.nodes import Node, running_node

SECONDS = 400
FILES = {
    "pipeline.toml": """
url = "{url}"
rows_per_batch = 4
[bronze.events]
topics = ["numbers"]
[silver.numbers]
topic = "numbers"
schema = "schema.json"
id = "data.id"
[silver.numbers.rules]
small = "data.n < 100"
""",
    "schema.json": '{{"type": "object", "required": ["id", "n"], "properties": '
    '{{"id": {{"type": "string"}}, "n": {{"type": "integer"}}}}}}',
    "silver.py": "def numbers(rows):\n"
    '    return rows.select("topic", "partition", "offset", "stamp", "data.id", "data.n")\n',
}


def publish(node: Node, *values: bytes) -> None:
    with sync.connect(node.url) as client:
        for number, value in enumerate(values):
            client.publish("numbers", value, partition=number % 2)


def value(n: int) -> bytes:
    return json.dumps({"id": str(n), "n": n}).encode()


def kept(folder: Path, *columns: str) -> list[tuple[object, ...]]:
    found = deltalake.DeltaTable(str(folder)).to_pyarrow_table(columns=[*columns]).to_pylist()
    return sorted(tuple(row.values()) for row in found)


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_each_run_adds_what_is_new_to_the_same_tables(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")
    use_java()
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with running_node(tmp_path / "node") as node:
        for name, text in FILES.items():
            (folder / name).write_text(text.format(url=node.url))
        with sync.connect(node.url) as client:
            client.create_topic("numbers", 2)
        specification, _ = declared.write(folder)

        def run(*more: str) -> subprocess.CompletedProcess[str]:
            retries = f"spark.sql.pipelines.maxFlowRetryAttempts={1 if more else 20}"
            done = subprocess.run(
                # A busy machine starts Python workers too late for Spark, which tries again then.
                [program, "run", "--conf", retries,
                 "--spec", str(specification), *more],
                cwd=folder, env={**environment(), **variables}, capture_output=True, text=True,
                timeout=SECONDS, check=False,
            )  # fmt: skip
            assert more or done.returncode == 0, (done.stdout + done.stderr)[-6_000:]
            return done

        publish(node, *map(value, range(9)), b"rubbish", value(100), value(3))
        run()
        found = plan.read(folder)
        lake, table = found.lake_of("numbers"), found.table_of("silver", "numbers")
        bad = found.quarantine_of("numbers")
        assert len(kept(lake, "partition", "offset")) == 12
        # Silver reads what bronze had when the run began.
        publish(node, value(9), b"more rubbish")
        run()
        assert kept(table, "n") == [(n,) for n in range(9)]
        assert [row[0] for row in kept(bad, "value")] == [b"rubbish", value(100)]
        run()
        assert kept(table, "n") == [(n,) for n in range(10)]
        assert len(kept(bad, "value")) == 3
        assert len(kept(lake, "partition", "offset")) == 14
        cut = read_cut(lake)
        assert cut is not None
        assert cut.rows == 14
        assert Table(table).account.rows == 10
        assert standing.standing(found)[0].lag == 0
        refused = run("--full-refresh-all")
        assert refused.returncode != 0
        assert "has rows of another query" in refused.stdout + refused.stderr
        assert kept(table, "n") == [(n,) for n in range(10)]
        assert len(kept(bad, "value")) == 3
        assert len(kept(lake, "partition", "offset")) == 14
