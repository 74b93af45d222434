"""A pipeline: each message once in each layer, wherever a run is killed; and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from rigs.pipelines import (
    GOLD,
    KEEP,
    PIPELINE,
    SILVER,
    Killed,
    killing,
    rows,
    value,
    written,
)
from weir import sync
from weir.errors import BadPipeline
from weir.spark import watch
from weir.spark.jobs import archive
from weir.spark.lake.delta import DeltaLake
from weir.spark.lake.layout import read_cut
from weir.spark.lake.tables import Table
from weir.spark.pipeline import runs, standing
from weir.spark.pipeline.checkpoints import end, last
from weir.spark.pipeline.context import Ran
from weir.spark.pipeline.databases import Sqlite
from weir.spark.pipeline.sinks import SqlSink, TopicSink

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream


@pytest.mark.timeout(300)
def test_killed_between_any_two_writes_it_adds_all_once(
    stream: Stream, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("numbers", partitions=2)
    for topic in ("kept", "numbers.bad"):
        node.create(topic)
    both = PIPELINE.replace('["report"]', '["report", "out"]') + '[sinks.out]\ntopic = "kept"\n'
    found = written(tmp_path / "p", both.format(url=node.url, topic="numbers"))
    for partition in range(2):
        node.fill("numbers", partition, [value(f"{partition}-{n}", n) for n in range(10)])
    bad = [b"rubbish", value("big", 100), b'{"id": "x", "n": NaN}', b"\xff"]
    node.fill("numbers", 0, [*bad, value("0-3", 3)])
    spark = stream.spark

    kills: Sequence[tuple[Any, str, bool, str]] = [
        (DeltaLake, "add", True, ""),
        (Table, "add", True, "quarantine"),
        (TopicSink, "add", True, ""),
        (Table, "add", True, "silver"),
        (Table, "add", True, "gold"),
        (SqlSink, "add", True, ""),
        (TopicSink, "add", True, ""),
    ]  # fmt: skip
    for owner, name, is_behind, only in kills:
        with monkeypatch.context() as patch:
            killing(patch, owner, name, is_behind, only)
            with pytest.raises(Killed):
                runs.run(spark, found)
    # What is left is Spark's word that the last micro-batch is over.
    assert [one.messages for one in runs.run(spark, found)] == [0, 0, 0]
    stands = {one.step: one for one in standing.standing(found)}
    assert (stands["events"].rows_out, stands["events"].lag) == (25, 0)
    numbers = stands["numbers"]
    assert (numbers.rows_in, numbers.rows_out, numbers.bad, numbers.repeated) == (25, 20, 4, 1)
    assert (stands["kept"].rows_in, stands["kept"].rows_out) == (20, 20)

    expected = sorted((f"{partition}-{n}", n) for partition in range(2) for n in range(10))
    assert rows(Table(found.table_of("silver", "numbers")).read(spark), "id", "n") == expected
    assert rows(Table(found.table_of("gold", "kept")).read(spark), "id", "n") == expected
    reported = sqlite3.connect(found.folder / "report.db")
    assert sorted(reported.execute("SELECT id, n FROM kept").fetchall()) == expected
    quarantine = Table(found.quarantine_of("numbers")).read(spark)
    assert rows(quarantine, "offset", "value", "reason") == [
        (10, b"rubbish", "the value is no JSON of the schema"),
        (11, value("big", 100), "it breaks the rule small"),
        (12, b'{"id": "x", "n": NaN}', "the value is no JSON of the schema"),
        (13, b"\xff", "the value is not UTF-8"),
    ]
    with sync.connect(node.url) as client:
        sent = [json.loads(one.value) for one in client.reader("kept", follow=False)]
        assert sorted((one["id"], one["n"]) for one in sent) == expected
        bad_ones = [*client.reader("numbers.bad", follow=False)]
    assert sorted((bytes(one.value), one.headers["offset"]) for one in bad_ones) == sorted(
        zip(bad, (b"10", b"11", b"12", b"13"), strict=True)
    )
    assert {bytes(one.headers["reason"]) for one in bad_ones} == {
        b"the value is no JSON of the schema",
        b"it breaks the rule small",
        b"the value is not UTF-8",
    }

    # It goes on with what is new, and knows ids of the run before.
    node.fill("numbers", 1, [value("0-3", 3), value("new", 7), b"more rubbish"])
    done = {one.step: one for one in runs.run(spark, found)}
    assert (done["numbers"].messages, done["numbers"].good, done["numbers"].bad) == (3, 2, 1)
    assert (done["numbers"].repeated, done["numbers"].rows, done["kept"].rows) == (1, 1, 1)

    # A table that somebody deleted, or a checkpoint, is told; nothing is made of half of it.
    shutil.rmtree(found.table_of("gold", "kept"))
    with pytest.raises(BadPipeline, match=r"checkpoints/kept is ahead of .*/gold/kept"):
        runs.run(spark, found)
    shutil.rmtree(found.checkpoint_of("numbers"))
    with pytest.raises(BadPipeline, match=r"checkpoints/numbers is gone, and with it the state of"):
        runs.run(spark, found)


WINDOWS = """
from pyspark.sql import functions as F
def windows(numbers):
    counts = numbers.groupBy(F.window("at", "10 seconds")).count()
    return counts.selectExpr("unix_seconds(window.start) begin", "`count` n")
"""


@pytest.mark.slow  # three runs of a pipeline; windows and watermarks have unit tests
@pytest.mark.timeout(300)
def test_late_rows_of_windows_are_counted_once(
    stream: Stream, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("times")
    text = PIPELINE[: PIPELINE.index("[gold")].replace("data.n < 100", "data.n >= 0")
    text += '[gold.windows]\nfrom = ["numbers"]\ntime = "at"\nwatermark = "20s"\n'
    silver = SILVER.replace("timestamp_millis(shiftright(stamp, 16))", "timestamp_seconds(data.n)")
    found = written(tmp_path / "p", text.format(url=node.url, topic="times"), silver, WINDOWS)
    page = watch(stream.spark, node.url, readers=False)
    # The highest times are 40, 70 and 100: 3, 20 and 45 come behind the watermarks 20 and 50.
    with page:
        for number, times in enumerate(((5, 15, 40), (3, 20, 21, 70), (45, 55, 100, -1))):
            node.fill("times", 0, [value(f"{number}-{n}", n) for n in times])
            if number == 1:
                with monkeypatch.context() as patch:
                    killing(patch, Table, "add", True, "gold")
                    with pytest.raises(Killed):
                        runs.run(stream.spark, found)
            done = {one.step: one for one in runs.run(stream.spark, found)}
            assert all(one.messages == one.good + one.bad + one.late for one in done.values())
    assert 'weir_spark_late_rows_total{query="spark.windows"} 3\n' in page.text()
    assert (done["windows"].messages, done["windows"].good, done["windows"].late) == (3, 2, 1)
    stands = {one.step: one for one in standing.standing(found)}
    assert (stands["windows"].rows_in, stands["windows"].late, stands["numbers"].bad) == (10, 3, 1)
    # All others are in a window; 100 is in one that has not ended.
    counts = rows(Table(found.table_of("gold", "windows")).read(stream.spark), "begin", "n")
    assert counts == [(begin, 1) for begin in (0, 10, 20, 40, 50, 70)]


JOINED = """
url = "{url}"
rows_per_batch = 4
[bronze.both]
topics = ["orders", "payments"]
[bronze.old]
topics = ["years"]
lake = "{lake}"
[silver.orders]
topic = "orders"
schema = "schema.json"
[silver.payments]
topic = "payments"
schema = "schema.json"
[silver.years]
topic = "years"
schema = "schema.json"
[gold.paid]
from = ["orders", "payments"]
"""
SIDES = "".join(f"def {name}(rows):\n    {KEEP}\n" for name in ("orders", "payments", "years"))
PAID = (Path(__file__).parents[4] / "examples/pipelines/gold.py").read_text(encoding="utf-8")


@pytest.mark.slow  # common cuts are proved by test_barrier_cuts.py and test_admission_rows.py
@pytest.mark.timeout(300)
def test_years_and_the_tail_meet_and_a_join_has_one_cut(
    stream: Stream, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = stream.spark
    for topic in ("orders", "payments", "years"):
        node.create(topic, partitions=2)
    # What was archived before, and what the broker has behind it.
    node.fill("years", 0, [value(n, n) for n in range(6)])
    untidy = archive.Upkeep(0, None)
    archive.archive(spark, node.url, "years", str(tmp_path / "lake"), upkeep=untidy)
    node.fill("years", 1, [value(n, n) for n in range(6, 9)])
    for n in range(5):
        node.fill("orders", n % 2, [value(n, n)])
        node.fill("payments", 0, [value(n, n + 10)])
    text = JOINED.format(url=node.url, lake=tmp_path / "lake")
    found = written(tmp_path / "p", text, SIDES, PAID)
    # One lake has a micro-batch and the other has not: neither is whole up to its end.
    with monkeypatch.context() as patch:
        killing(patch, DeltaLake, "add", False, "payments")
        with pytest.raises(Killed):
            runs.run(spark, found)
    there = sum(file.rows for file in Table(found.lake_of("orders")).files())
    assert there
    assert read_cut(found.lake_of("orders")) is None
    done = {one.step: one for one in runs.run(spark, found)}
    assert {step: (one.messages, one.rows) for step, one in done.items()} == {
        "both": (10 - there, 10 - there),
        "old": (3, 3),
        "orders": (5, 5),
        "payments": (5, 5),
        "years": (9, 9),
        "paid": (10, 5),
    }
    expected = [(str(n), n, n + 10) for n in range(5)]
    assert rows(Table(found.table_of("gold", "paid")).read(spark), "id", "n", "paid") == expected
    # Each micro-batch of the join ended both tables at one cut; `end` raises if it did not.
    checkpoint = found.checkpoint_of("paid")
    ends = [end(checkpoint, number) for number in range(last(checkpoint, "offsets") + 1)]
    assert [one.rows for one in ends][-1] == 10
    assert len({one.rows for one in ends}) >= 3
    stamps = rows(Table(found.table_of("silver", "years")).read(spark), "partition", "offset")
    assert stamps == [*((0, n) for n in range(6)), *((1, n) for n in range(3))]

    # A step without state goes on where its table ends when its checkpoint is lost.
    checkpoint = found.checkpoint_of("years")
    shutil.rmtree(checkpoint)
    node.fill("years", 0, [value(9, 9)])
    done = {one.step: one for one in runs.run(spark, found)}
    assert [(one.step, one.messages, one.batches) for one in done.values() if one.messages] == [
        ("old", 1, 1),
        ("years", 1, 1),
    ]
    # One that was restored from before would read what comes under numbers that are taken.
    number = last(checkpoint, "offsets")
    (checkpoint / "offsets" / str(number)).write_text('v1\n{}\n{"n": 9, "s": 9}')
    (checkpoint / "commits" / str(number)).unlink()
    with pytest.raises(BadPipeline, match=r"checkpoints/years is behind .*/silver/years"):
        runs.run(spark, found)


@pytest.mark.parametrize(
    ("old", "new", "silver", "gold", "words"),
    [
        ("", "", "def other(rows): pass", GOLD, r"silver.py has no function numbers: write `def"),
        ("", "", "def numbers(): pass", GOLD, r"numbers\(rows\) is how it is called: too many"),
        ("", "", "def numbers(rows): return 7", GOLD, "numbers returns int, and is to return"),
        ("", "", "def numbers(rows): return 1 / 0", GOLD, "numbers: ZeroDivisionError: division"),
        ("", "", "import nothing_there", GOLD, "silver.py: ModuleNotFoundError: No module named"),
        ("", "", SILVER.replace('"stamp", ', ""), GOLD, "drops the column 'stamp'"),
        ("", "", SILVER.replace("data.n", "data.id"), GOLD, "two columns are called 'id'"),
        ("", "", SILVER.replace("data.n", "data.m"), GOLD, "numbers: .*No such struct field `m`"),
        ("", "", SILVER, "def kept(n): return n.missing", "kept: .*`missing` is not supported"),
        ('"at"', '"n"', SILVER, GOLD, "step kept: time: column 'n' is int64, and is to be a times"),
        ('"at"', '"when"', SILVER, GOLD, "step kept: time: .*/numbers has no column 'when'"),
        (
            "",
            "",
            SILVER,
            "def kept(n): return n.withWatermark('at', '1 hour').dropDuplicates(['id', 'at'])",
            r"gold.kept: the function calls withWatermark, and nothing counts the rows that Spark",
        ),
        ("data.n < 100", "data.n + 1", SILVER, GOLD, "rules.small: it is no condi"),
        ("data.n < 100", "data.n <", SILVER, GOLD, "rules.small: "),
        ('id = "data.id"', 'id = "data.none"', SILVER, GOLD, "numbers.id: "),
        ("schema.json", "none.json", SILVER, GOLD, "none.json is not there"),
        ('topics = ["t"]', 'topics = ["t", "absent"]', SILVER, GOLD, "step events: .*absent"),
        ("sqlite:///report.db", "mysql://x", SILVER, GOLD, "sql: give sqlite:///FILE or postg"),
        (
            "sqlite:///report.db",
            "postgresql://h:x/d",
            SILVER,
            GOLD,
            "report: sql: give postgresql:",
        ),
        (
            "sqlite:///report.db",
            "postgresql://u:secret@127.0.0.1:9/d",
            SILVER,
            GOLD,
            "postgresql://127.0.0.1:9/d: connection failed",
        ),
        ("sqlite:///report.db", "sqlite:///no/r.db", SILVER, GOLD, "there is no folder"),
        ('sql = "sqlite:///report.db"', 'topic = "none"', SILVER, GOLD, "step kept: .*none"),
        ("[bronze", 'lake = "/proc/lake"\n[bronze', SILVER, GOLD, "/proc/lake cannot be written"),
        (
            "[bronze",
            'checkpoints = "/dev/null/c"\n[bronze',
            SILVER,
            GOLD,
            "cannot be written|no fo",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_read(
    spark: SparkSession, node: Node, tmp_path: Path, old: str, new: str, silver: str, gold: str,
    words: str,
) -> None:  # fmt: skip
    with sync.connect(node.url) as client:
        client.create_topic("t")
    text = PIPELINE.format(url=node.url, topic="t").replace(old, new, 1)
    with pytest.raises(BadPipeline, match=words):
        runs.run(spark, written(tmp_path / "p", text, silver, gold))
    assert not [*tmp_path.glob("p/checkpoints/*/offsets/*")]


def test_two_runs_at_once_are_one_too_many(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    found = written(tmp_path / "p", PIPELINE.format(url=node.url, topic="t"))
    holding = (
        "import fcntl, os, sys\n"
        "file = open(sys.argv[1], 'a+')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "file.write(str(os.getpid())); file.flush()\n"
        "print(flush=True); sys.stdin.read()\n"
    )
    found.checkpoints.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", holding, found.checkpoints / "lock"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(BadPipeline, match=rf"/p is run by process {holder.pid} already"):
        runs.run(spark, found)
    with pytest.raises(BadPipeline, match="has no step 'none': it has events, numbers, kept"):
        runs.run(spark, found, only="none")
    # The lock goes with its process, however that ends.
    holder.kill()
    holder.communicate()
    with runs.locked(found):
        assert (found.checkpoints / "lock").read_text() == f"{os.getpid()}\n"


def test_rows_are_in_sql_as_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(
        "SELECT 7L n, double('NaN') x, 0.5f y, timestamp'2026-01-01 00:00:01' t, date'2026-01-02' "
        "`a \"day\"`, struct(1 AS a) s, array(1, 2) l, true b, 1.50 d, X'00ff' v, string(null) z"
    )
    sink = SqlSink(Sqlite(tmp_path / "r.db"), "rows", "step")
    sink.check(rows.schema)
    for number in (0, 0, 1, 0):
        sink.add(rows, "query", number)
    sql = sqlite3.connect(tmp_path / "r.db")
    row = (7, None, 0.5, "2026-01-01 00:00:01", "2026-01-02", '{"a":1}', "[1,2]", 1, "1.50",
           b"\x00\xff", None)  # fmt: skip
    assert sql.execute("SELECT * FROM rows").fetchall() == [(0, *row), (1, *row)]
    sink.check(rows.schema)
    with pytest.raises(BadPipeline, match="step gives weir_batch INTEGER, n INTEGER: name an"):
        sink.check(rows.select("n").schema)
    with pytest.raises(BadPipeline, match="is what its sink in SQL adds"):
        sink.check(rows.selectExpr("n AS weir_batch").schema)
    with pytest.raises(BadPipeline, match="unable to open database file"):
        SqlSink(Sqlite(tmp_path), "rows", "step").check(rows.schema)
    with pytest.raises(BadPipeline, match="up to 1 of step step, and 3 comes: the database is"):
        sink.add(rows, "query", 3)
    # What fails in the middle leaves nothing: neither rows nor their number.
    others = [f"`{name}`" for name in rows.columns[1:]]
    broken = rows.union(rows).selectExpr("IF(n = 7, raise_error('no'), n) n", *others)
    with pytest.raises(Exception, match="no"):
        sink.add(broken, "query", 2)
    assert sql.execute("SELECT count(*), max(weir_batch) FROM rows").fetchone() == (2, 1)
    assert sql.execute("SELECT batch FROM weir_batches").fetchall() == [(1,)]


def test_it_goes_on_until_it_is_stopped(stream: Stream, node: Node, tmp_path: Path) -> None:
    node.create("going", partitions=1)
    text = PIPELINE.format(url=node.url, topic="going").replace(
        "[bronze", 'every = "0s"\n[bronze', 1
    )
    bronze_only = text[: text.index("[silver")]
    found = written(tmp_path / "p", bronze_only)
    asked: list[int] = []

    def is_stopped() -> bool:
        asked.append(1)
        if len(asked) in (3, 40):
            node.fill("going", 0, [value(n, n) for n in range(3)])
        return standing.standing(found)[0].rows_out == 6 or len(asked) > 2_000

    (done,) = runs.run(stream.spark, found, once=False, is_stopped=is_stopped)
    assert isinstance(done, Ran)
    assert (done.messages, done.good) == (6, 6)
    assert standing.standing(found)[0].lag == 0
