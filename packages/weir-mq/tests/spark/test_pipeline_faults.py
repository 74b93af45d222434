"""What happens to a pipeline from outside: topics, retention, schemas and disks that change."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from rigs.pipelines import KEEP, PIPELINE, SILVER, rows, value, written
from rigs.small_disk import SmallDisk
from weir import sync, testing
from weir.errors import BadPipeline
from weir.schema import Schema
from weir.spark.lake.delta import DeltaLake
from weir.spark.lake.layout import read_cut
from weir.spark.lake.tables import Table
from weir.spark.pipeline import plan, runs, standing

if TYPE_CHECKING:
    from rigs.spark_node import Node

pytestmark = pytest.mark.timeout(300)

HOUR = 3_600
BRONZE = PIPELINE[: PIPELINE.index("[silver")]
TYPED = PIPELINE[: PIPELINE.index("[gold")]
BOTH = """
url = "{url}"
[bronze.both]
topics = ["left", "right"]
[silver.lefts]
topic = "left"
schema = "schema.json"
[silver.rights]
topic = "right"
schema = "schema.json"
"""
SIDES = "".join(f"def {name}(rows):\n    {KEEP}\n" for name in ("lefts", "rights"))


@pytest.fixture
def memory() -> Iterator[testing.Node]:
    """A node whose time moves as told, so that retention deletes."""
    with testing.node() as node:
        yield node


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small")
    yield disk
    disk.unmount()


def offsets(spark: SparkSession, found: plan.Plan, topic: str) -> list[tuple[object, ...]]:
    """Return where the messages of a lake are; `rows` sorts them."""
    return rows(Table(found.lake_of(topic)).read(spark), "partition", "offset")


@pytest.mark.slow  # test_pipeline.py kills a run there, too
def test_stopped_between_two_lakes_neither_is_whole(
    spark: SparkSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("left", "right"):
        node.create(topic)
        node.fill(topic, 0, [value(n, n) for n in range(3)])
    found = written(tmp_path / "p", BOTH.format(url=node.url), SIDES)
    runs.run(spark, found)
    cuts = [read_cut(found.lake_of(topic)) for topic in ("left", "right")]
    for topic in ("left", "right"):
        node.fill(topic, 0, [value(n, n) for n in range(3, 8)])
    reached, stopped = threading.Event(), threading.Event()
    add = DeltaLake.add

    def adding(lake: DeltaLake, batch: Any) -> bool:
        if lake.folder.name == "right":
            reached.set()
            assert stopped.wait(60)
            raise InterruptedError("the micro-batch is cancelled")
        return add(lake, batch)

    def is_stopped() -> bool:
        if reached.is_set():
            stopped.set()
        return stopped.is_set()

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLake, "add", adding)
        runs.run(spark, found, is_stopped=is_stopped)
    there = [DeltaLake(found.lake_of(topic), None).snapshot().rows for topic in ("left", "right")]
    assert there == [8, 3], "it was stopped elsewhere"
    assert [read_cut(found.lake_of(topic)) for topic in ("left", "right")] == cuts
    # A step above reads no further, until the other lake has its part.
    assert [one.messages for one in runs.run(spark, found, only="lefts")] == [0]
    done = {one.step: one for one in runs.run(spark, found)}
    assert (done["both"].messages, done["lefts"].rows, done["rights"].rows) == (5, 5, 5)
    for side in ("lefts", "rights"):
        table = Table(found.table_of("silver", side)).read(spark)
        assert rows(table, "offset") == [(n,) for n in range(8)]


def test_a_topic_that_is_gone_or_another_is_told(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    node.create("life")
    node.fill("life", 0, [value(n, n) for n in range(3)])
    found = written(tmp_path / "p", TYPED.format(url=node.url, topic="life"))
    runs.run(spark, found)
    with sync.connect(node.url) as client:
        client.delete_topic("life")
    with pytest.raises(BadPipeline, match=r"step events: .*life"):
        runs.run(spark, found)
    bronze, silver = standing.standing(found)
    assert (bronze.rows_out, bronze.lag, silver.rows_out, silver.lag) == (3, None, 3, 0)
    node.create("life")
    node.fill("life", 0, [value(n, n) for n in range(3, 9)])
    words = "step events: .* keeps an earlier topic 'life', which was deleted and created again"
    with pytest.raises(BadPipeline, match=words):
        runs.run(spark, found)
    assert [one.rows_out for one in standing.standing(found)] == [3, 3]


@pytest.mark.slow  # test_admission_rows.py loses rows of a query so
def test_retention_that_passes_a_pipeline_is_told_and_counted(
    spark: SparkSession, memory: testing.Node, tmp_path: Path
) -> None:
    text = BRONZE.format(url=memory.url, topic="t")
    found = written(tmp_path / "p", text)
    over = text.replace("[bronze.events]", '[bronze.events]\non_data_loss = "earliest"')
    with sync.connect(memory.url) as w:
        w.create_topic("t", partitions=2, retention="1h")
        w.publish("t", value(0, 0), partition=0)
        runs.run(spark, found)
        for partition in (0, 0, 0, 1):
            w.publish("t", value(1, 1), partition=partition)
        memory.advance(2 * HOUR)
        w.publish("t", value(2, 2), partition=0)
        memory.advance(60)
        while w.parts("t")[0].start != 4 or w.parts("t")[1].start != 1:
            memory.advance(60)
        words = r'step events: .* are gone.*on_data_loss = "earliest" in \[bronze.events\]'
        with pytest.raises(BadPipeline, match=words):
            runs.run(spark, found)
        assert offsets(spark, found, "t") == [(0, 0)]
        found = written(tmp_path / "p", over)
        (done,) = runs.run(spark, found)
        assert (done.messages, done.good, done.lost) == (1, 1, 4)
        assert offsets(spark, found, "t") == [(0, 0), (0, 4)]
        (again,) = runs.run(spark, found)
        assert (again.messages, again.lost) == (0, 0)
        assert standing.standing(found)[0].lag == 0


@pytest.mark.slow  # typed rows have tests of their own
def test_a_schema_that_goes_on_changes_what_functions_can_see(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    node.create("typed")
    old = '{"type": "object", "required": ["id", "n"], "properties": {"id": {"type": "string"}, '
    old += '"n": {"type": "integer"}'
    with sync.connect(node.url) as client:

        def add(text: str) -> None:
            (tmp_path / "s.json").write_text(text)
            client.schemas.add("typed", Schema.read(tmp_path / "s.json"))

        add(old + "}}")
        text = TYPED.format(url=node.url, topic="typed").replace("schema.json", "topic")
        found = written(tmp_path / "p", text)
        node.fill("typed", 0, [value(n, n) for n in range(3)])
        runs.run(spark, found)
        add(old + ', "m": {"type": "integer"}}}')
    more = json.dumps({"id": "more", "n": 3, "m": 4}).encode()
    node.fill("typed", 0, [value("0", 0), more, b'{"id": "x", "n": 1, "m": "no integer"}'])
    done = {one.step: one for one in runs.run(spark, found)}
    assert (done["numbers"].good, done["numbers"].repeated, done["numbers"].bad) == (2, 1, 1)
    table = Table(found.table_of("silver", "numbers")).read(spark)
    assert rows(table, "id", "n") == [("0", 0), ("1", 1), ("2", 2), ("more", 3)]
    # A function that gives the new column makes another table.
    found = written(tmp_path / "p", text, SILVER.replace('"data.n",', '"data.n", "data.m",'))
    words = "silver/numbers has the columns .* and its step gives .*m int.*: give the step another"
    with pytest.raises(BadPipeline, match=words):
        runs.run(spark, found)


# A full disk below a checkpoint ends an archive in test_archive_job.py, by the same query.
@pytest.mark.parametrize("full", ["lake", pytest.param("checkpoints", marks=pytest.mark.slow)])
def test_a_full_disk_ends_a_run_by_its_name_and_the_next_goes_on(
    spark: SparkSession, node: Node, tmp_path: Path, disk: SmallDisk, full: str
) -> None:
    topic = f"full-{full}"
    node.create(topic)

    def fill(begin: int) -> None:
        values = [value(os.urandom(150).hex(), n) for n in range(begin, begin + 400)]
        node.fill(topic, 0, values)

    text = f'{full} = "{disk.folder}/{full}"\n' + BRONZE.format(url=node.url, topic=topic)
    found = written(tmp_path / "p", text)
    fill(0)
    runs.run(spark, found)
    fill(400)
    disk.fill(left=40 << 10 if full == "lake" else 6 << 10)
    with pytest.raises(BadPipeline, match=rf"{disk.folder}/.*(make room there|free space there)"):
        runs.run(spark, found)
    disk.free()
    runs.run(spark, found)
    assert offsets(spark, found, topic) == [(0, n) for n in range(800)]
