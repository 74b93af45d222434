"""Exactly once, whatever breaks: connections, the driver, the JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from weir.server.interpreter import environment

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream

HERE = Path(__file__).parent
ROWS = 100_000
BATCH = 50_000


def beside(name: str) -> ModuleType:
    """Import a file of this folder, which is no package."""
    spec = util.spec_from_file_location(f"spark_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Gate = beside("gate").Gate


def values(rows: int) -> list[bytes]:
    return [b"%012d" % number + b"x" * 88 for number in range(rows)]


def test_connections_are_kept_and_made_again(stream: Stream, node: Node, tmp_path: Path) -> None:
    node.create(stream.topic, partitions=2)
    node.fill(stream.topic, 0, values(400))
    node.fill(stream.topic, 1, values(400))
    with Gate(node.port) as gate:
        through = type(stream)(stream.spark, gate.url, stream.topic, tmp_path)
        first = through.drain(maxRowsPerBatch=160, readFrom="url")
        assert first.batches == [160] * 5
        # 10 tasks of 2 partitions: one connection for each of 2 workers, and one that plans; where
        # one is slow to come back, Spark starts another.
        kept = gate.accepted
        assert kept <= 5
        gate.cut()
        node.fill(stream.topic, 0, values(100))
        second = through.drain(readFrom="url")
        assert second.batches == [100]
        assert gate.accepted > kept
    assert len({(row.partition, row.offset) for row in second.rows}) == len(second.rows) == 900


def start(url: str, topic: str, folder: Path) -> subprocess.Popen[str]:
    with (folder / "driver.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, str(HERE / "drain_topic.py"), url, topic, str(folder), str(BATCH)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def numbers(folder: Path) -> list[int]:
    """Return the batch ids that a folder of a checkpoint names."""
    return sorted(int(path.name) for path in folder.glob("[0-9]*"))


@pytest.mark.timeout(240)
def test_killed_in_mid_batch_it_loses_and_repeats_nothing(
    stream: Stream, node: Node, tmp_path: Path
) -> None:
    node.create(stream.topic, partitions=2)
    for partition in range(2):
        node.fill(stream.topic, partition, values(ROWS))
    checkpoint = tmp_path / "checkpoint"
    # The broker sends 6 to 8 MB for a micro-batch, so this many bytes end in the second one.
    with Gate(node.port, hold_after=9_000_000) as gate:
        driver = start(gate.url, stream.topic, tmp_path)
        assert driver.stdout is not None
        jvm = int(driver.stdout.readline())
        try:
            assert gate.held.wait(110), (tmp_path / "driver.log").read_text()
        finally:
            os.kill(jvm, signal.SIGKILL)
            driver.kill()
            driver.wait(20)
            driver.stdout.close()
    begun, done = numbers(checkpoint / "offsets"), numbers(checkpoint / "commits")
    assert begun[-1] == len(done) > 0, "the kill was to hit a batch that is begun and not done"

    again = type(stream)(stream.spark, node.url, stream.topic, tmp_path)
    assert again.start(maxRowsPerBatch=BATCH).awaitTermination(110)
    assert numbers(checkpoint / "commits") == [*range(2 * ROWS // BATCH)]
    found = stream.spark.read.parquet(str(tmp_path / "out")).groupBy("partition").agg(
        F.count("*").alias("rows"),
        F.count_distinct("offset").alias("offsets"),
        F.max("offset").alias("last"),
        F.sum(F.substring(F.col("value").cast("string"), 1, 12).cast("long")).alias("sum"),
    )  # fmt: skip
    whole = (ROWS, ROWS, ROWS - 1, ROWS * (ROWS - 1) // 2)
    rows = found.orderBy("partition").collect()
    assert [tuple(row)[1:] for row in rows] == [whole, whole]
