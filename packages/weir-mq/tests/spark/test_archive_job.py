"""The archive job: each message once in the lake, whatever is killed; and read with the tail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rigs.small_disk import SmallDisk
from weir.errors import BadOption, LakeMismatch, NotWritable
from weir.server.interpreter import environment
from weir.spark.jobs.archive import Archived, Upkeep, add, archive, read
from weir.spark.lake import Format, open_lake

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream

HERE = Path(__file__).parent
UNTIDY = Upkeep(compact_files=0, keep_hours=None)


def values(first: int, behind: int) -> list[bytes]:
    return [b"%08d" % number for number in range(first, behind)]


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return all columns of all messages, in one order."""
    return [tuple(row) for row in frame.orderBy("partition", "offset").collect()]


def topic_of(stream: Stream) -> DataFrame:
    reader = stream.spark.read.format("weir").option("url", stream.url)
    return reader.option("topic", stream.topic).load()


def job(stream: Stream, lake: Path, format: Format | None = None, **options: object) -> Archived:
    given = {"rows_per_batch": 1_000, "upkeep": UNTIDY, **options}
    return archive(stream.spark, stream.url, stream.topic, str(lake), format=format, **given)  # type: ignore[arg-type]


def forget_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as a crash between the last micro-batch and its commit does."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small")
    yield disk
    disk.unmount()


@pytest.mark.parametrize("full", ["lake", "checkpoint"])
def test_a_full_disk_ends_it_by_its_name_and_it_goes_on_when_there_is_room(
    stream: Stream, node: Node, tmp_path: Path, disk: SmallDisk, full: str
) -> None:
    node.create(stream.topic, partitions=2)
    for partition in range(2):
        node.fill(stream.topic, partition, [os.urandom(200) for _ in range(400)])
    lake = tmp_path / "lake" if full == "checkpoint" else disk.folder / "lake"
    format: Format = "parquet" if full == "checkpoint" else "delta"
    checkpoint = disk.folder / "ck" if full == "checkpoint" else tmp_path / "ck"
    options = {"checkpoint": f"file://{checkpoint}"}
    job(stream, lake, format, **options)
    for partition in range(2):
        node.fill(stream.topic, partition, [os.urandom(200) for _ in range(400)])
    disk.fill(left=40 << 10 if full != "checkpoint" else 0)
    told = rf"{disk.folder}/.* make room there"
    with pytest.raises(NotWritable, match=told):
        job(stream, lake, format, rows_per_batch=500, **options)
    disk.free()
    job(stream, lake, format, rows_per_batch=500, **options)
    assert rows(read(stream.spark, str(lake))) == rows(topic_of(stream))


# Lakes of each format have unit tests, and one of this is compared by the other tests here.
@pytest.mark.parametrize("format", ["delta", pytest.param("parquet", marks=pytest.mark.slow)])
def test_it_is_row_for_row_the_topic(
    stream: Stream, node: Node, tmp_path: Path, format: Format
) -> None:
    lake = tmp_path / "a lake"
    node.create(stream.topic, partitions=2)
    node.send(stream.topic, [{"value": b"v", "key": b"k", "tag": "t", "headers": {"h": b"1"}}])
    for partition in range(2):
        node.fill(stream.topic, partition, values(0, 1_200))
    seen: list[int] = []
    done = job(stream, lake, format, progress=seen.append)
    assert (done.messages, done.good, done.bad, done.batches) == (2_401, 2_401, 0, 3)
    assert (done.lake_messages, done.lake_files) == (2_401, done.files)
    assert done.files >= done.batches
    assert seen[-1] == 2_401
    assert rows(read(stream.spark, str(lake))) == rows(topic_of(stream))

    # The lake has what was archived, and the tail is what the broker has behind it.
    node.fill(stream.topic, 1, values(0, 300))
    assert read(stream.spark, str(lake)).count() == 2_401
    assert rows(read(stream.spark, str(lake), tail=node.url)) == rows(topic_of(stream))

    # A crash behind the transaction: the micro-batch runs again, and adds nothing.
    forget_commit(lake / "_weir" / "checkpoint")
    again = job(stream, lake)
    assert (again.messages, again.repeated, again.lake_messages) == (300, 1, 2_701)

    # A checkpoint that is lost: the query begins where the lake ends.
    shutil.rmtree(lake / "_weir" / "checkpoint")
    node.fill(stream.topic, 0, values(0, 5))
    assert job(stream, lake).messages == 5
    before = rows(read(stream.spark, str(lake)))
    assert before == rows(topic_of(stream))

    # Compaction changes files, and no row.
    merged = job(stream, lake, upkeep=Upkeep(compact_files=2, keep_hours=1))
    assert (merged.messages, merged.deleted) == (0, 0)
    assert merged.compacted > merged.lake_files
    assert rows(read(stream.spark, str(lake))) == before
    assert rows(read(stream.spark, str(lake), tail=node.url)) == before


def test_each_cut_of_a_topic_in_total_order_is_a_barrier(
    stream: Stream, node: Node, tmp_path: Path
) -> None:
    node.create(stream.topic, partitions=2)
    for partition in (0, 1, 0, 1):
        node.fill(stream.topic, partition, values(0, 500))
    lake = str(tmp_path / "lake")
    spark, url = stream.spark, node.url
    from weir.spark.jobs.queries import Topic, run

    source = Topic(url, stream.topic, {"order": "total", "maxRowsPerBatch": 600})

    def work(frame: DataFrame, query: str, number: int) -> None:
        if number == 0:  # what is behind it stays with the broker
            add(frame, lake, query, number, format="parquet")

    run(source.stream(spark), work, str(tmp_path / "checkpoint"))
    highest = read(spark, lake).agg(F.max("stamp")).collect()[0][0]
    both = read(spark, lake, tail=url)
    assert 0 < read(spark, lake).count() < 2_000
    assert both.where(F.col("stamp") <= highest).count() == read(spark, lake).count()
    assert both.count() == 2_000


@pytest.mark.timeout(240)
@pytest.mark.parametrize("format", ["delta"])
def test_killed_between_files_and_transaction_it_adds_all_once(
    stream: Stream, node: Node, tmp_path: Path, format: Format
) -> None:
    node.create(stream.topic, partitions=2)
    for partition in range(2):
        node.fill(stream.topic, partition, values(0, 1_500))
    folder = tmp_path / "lake"
    with (tmp_path / "driver.log").open("a") as log:
        driver = subprocess.Popen(
            [sys.executable, HERE / "archive_topic.py",
             node.url, stream.topic, folder, format, "1"],
            env=environment(), stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    assert driver.stdout is not None
    jvm = int(driver.stdout.readline() or 0)
    try:
        assert driver.stdout.readline() == "written\n", (tmp_path / "driver.log").read_text()
    finally:
        if jvm:
            os.kill(jvm, signal.SIGKILL)
        driver.kill()
        driver.wait(20)
        driver.stdout.close()
    lake = open_lake(str(folder))
    named = {folder / file.path for file in lake.snapshot().files}
    orphans = set(folder.glob("day=*/*.parquet")) - named
    assert lake.snapshot().rows == 1_000
    assert orphans, "the kill was to hit files that no transaction names"

    done = job(stream, folder)
    assert (done.messages, done.repeated, done.lake_messages) == (2_000, 0, 3_000)
    assert rows(read(stream.spark, str(folder))) == rows(topic_of(stream))

    # What the killed driver left is deleted once it is old.
    old = time.time() - 7_200
    for path in orphans:
        os.utime(path, (old, old))
    assert job(stream, folder, upkeep=Upkeep(0, 1)).deleted == len(orphans)
    assert rows(read(stream.spark, str(folder))) == rows(topic_of(stream))


def test_a_table_is_added_once_by_its_name(stream: Stream, node: Node, tmp_path: Path) -> None:
    node.create(stream.topic)
    node.fill(stream.topic, 0, values(0, 10))
    lake = str(tmp_path / "lake")
    table = topic_of(stream)
    done = add(table, lake, "backfill", 0)
    assert (done.messages, done.good, done.bad) == (10, 10, 0)
    assert add(table, lake, "backfill", 0) == Archived(repeated=1)
    with pytest.raises(LakeMismatch, match="up to offset 9 already"):
        add(table, lake, "again", 0)
    with pytest.raises(LakeMismatch, match="came as 5 rows"):
        add(table.where("offset % 2 = 0"), str(tmp_path / "half"), "half", 0)
    with pytest.raises(BadOption, match="no column 'value'"):
        add(table.drop("value"), lake, "narrow", 0)
    with pytest.raises(BadOption, match="name of yours"):
        add(table, lake, "weir/0", 0)
    # A value that was too large for the query is null: it is kept, and counted.
    large = table.withColumn("value", F.when(F.col("offset") != 3, F.col("value")))
    done = add(large, str(tmp_path / "large"), "backfill", 0)
    assert (done.messages, done.good, done.bad) == (10, 9, 1)
