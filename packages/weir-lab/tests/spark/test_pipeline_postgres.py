"""Gold to a real PostgreSQL: each micro-batch once, also when its driver is killed in between."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from weir import sync
from weir.errors import BadPipeline
from weir.server.interpreter import environment
from weir.spark.pipeline import plan, runs, standing
from weir.spark.pipeline.databases import Postgres
from weir.spark.pipeline.sinks import SqlSink
from weir.testing.nodes import running_node
from weir_lab.bench.consumers import postgres

SCRIPTS = Path(__file__).parents[4] / "scripts"
INSTALL_SECONDS = 600
SECONDS = 240

SCHEMA = '{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}'
FILES = {
    "pipeline.toml": """
url = "{url}"
rows_per_batch = 4
[bronze.events]
topics = ["numbers"]
[silver.numbers]
topic = "numbers"
schema = "schema.json"
[gold.kept]
from = ["numbers"]
to = ["report"]
[sinks.report]
sql = "{sql}"
""",
    "schema.json": SCHEMA.replace("{", "{{").replace("}", "}}"),
    "silver.py": "def numbers(rows):\n"
    '    return rows.select("topic", "partition", "offset", "stamp", "data.n")\n',
    "gold.py": 'def kept(numbers):\n    return numbers.select("n")\n',
}
#: A driver that kills itself within a transaction, or right behind it.
KILLED = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from weir.spark.pipeline import plan, runs
from weir.spark.pipeline.databases import Postgres
from weir.spark.session import session

mark, transaction = Postgres.mark, Postgres.transaction
marked = []

def marking(self, *arguments):
    mark(self, *arguments)
    if sys.argv[2] == "within":
        os.kill(os.getpid(), signal.SIGKILL)
    marked.append(1)

@contextmanager
def behind(self):
    with transaction(self) as cursor:
        yield cursor
    if marked:
        os.kill(os.getpid(), signal.SIGKILL)

Postgres.mark, Postgres.transaction = marking, behind
runs.run(session(cores=1, memory="1g"), plan.read(Path(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not postgres.installed():
        packages = (SCRIPTS / "postgres-packages").read_text(encoding="utf-8").split()
        done = subprocess.run(
            [SCRIPTS / "apt-install", *packages], timeout=INSTALL_SECONDS, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
    with postgres.running_postgres(fsync="off") as server:
        yield server.url.replace("+psycopg", "")


def told(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def test_rows_have_types_of_postgres(spark: SparkSession, url: str) -> None:
    rows = spark.sql(
        "SELECT 7L n, double('NaN') x, 0.5f y, timestamp'2026-01-01 00:00:01' t, "
        "timestamp_ntz'2026-01-01 00:00:01.5' tn, date'2026-01-02' `a \"day\"`, struct(1 AS a) s, "
        "array(1, 2) l, true b, 1.50 d, X'00ff' v, string(null) z, concat('a', char(0), 'b') nul, "
        "to_json(named_struct('k', char(0))) j, timestamp'+12000-01-01 00:00:00' late"
    )
    sink = SqlSink(Postgres(url), "rows", "step")
    sink.check(rows.schema)
    for number in (0, 0, 1, 0):
        sink.add(rows, "query", number)
    at = datetime(2026, 1, 1, 0, 0, 1)
    row = (7, 0.5, at.replace(tzinfo=UTC), at.replace(microsecond=500_000), date(2026, 1, 2),
           {"a": 1}, [1, 2], True, Decimal("1.50"), b"\x00\xff", None, "a\ufffdb",
           '{"k":"\\u0000"}', None)  # fmt: skip
    columns = 'weir_batch, n, y, t, tn, "a ""day""", s, l, b, d, v, z, nul, j, late'
    found = told(url, f"SELECT {columns} FROM rows ORDER BY weir_batch")
    assert found == [(0, *row), (1, *row)]
    assert told(url, "SELECT count(*) FROM rows WHERE x = 'NaN'") == [(2,)]
    sink.check(rows.schema)
    with pytest.raises(BadPipeline, match=r"and step step gives weir_batch bigint, n bigint: name"):
        sink.check(rows.select("n").schema)
    with pytest.raises(BadPipeline, match="has more than 63 bytes in its name"):
        sink.check(rows.selectExpr(f"n AS {'n' * 64}").schema)
    with pytest.raises(
        BadPipeline, match=r"up to 1 of step step, and 3 comes: the database is older"
    ):
        sink.add(rows, "query", 3)
    # What fails in the middle leaves nothing: neither rows nor their number.
    others = [f"`{name}`" for name in rows.columns[1:]]
    broken = rows.union(rows).selectExpr("IF(n = 7, raise_error('no'), n) n", *others)
    with pytest.raises(Exception, match="no"):
        sink.add(broken, "query", 2)
    assert told(url, "SELECT count(*), max(weir_batch) FROM rows") == [(2, 1)]
    assert told(url, "SELECT step, query, batch FROM weir_batches") == [("step/rows", "query", 1)]


def test_of_two_drivers_of_one_query_the_second_waits_and_adds_nothing(url: str) -> None:
    database = Postgres(url)
    with database.transaction() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS weir_batches (step text, query text, "
                       "batch bigint, PRIMARY KEY (step, query))")  # fmt: skip
    with database.transaction() as first:
        assert database.last(first, "both", "q") is None
        with psycopg.connect(url) as other:
            other.execute("SET lock_timeout = '200ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                database.last(other.cursor(), "both", "q")
        database.mark(first, "both", "q", 0)
    with database.transaction() as second:
        assert database.last(second, "both", "q") == 0
        assert database.take(second, "both", "q") == 0
        assert database.take(second, "both", "q") is None
        assert database.last(second, "both", "q") is None


def test_a_server_that_may_forget_commits_is_told_to_keep_them(url: str) -> None:
    separator = "&" if "?" in url else "?"
    forgetful = Postgres(f"{url}{separator}options=-csynchronous_commit%3Doff")
    with forgetful.transaction() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_adds_each_row_once(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    with running_node(tmp_path / "node") as node:
        for name, text in FILES.items():
            (folder / name).write_text(text.format(url=node.url, sql=url))
        with sync.connect(node.url) as client:
            client.create_topic("numbers", 2)
            for n in range(10):
                client.publish("numbers", json.dumps({"n": n}), partition=n % 2)
        for where in ("within", "behind"):
            done = subprocess.run(
                [sys.executable, "-c", KILLED, str(folder), where],
                env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            assert done.returncode == -signal.SIGKILL, (done.stdout + done.stderr)[-4_000:]
            added = told(url, "SELECT count(*) FROM kept")
            assert added == [(0 if where == "within" else 4,)]
        found = plan.read(folder)
        runs.run(spark, found)
        assert [(one.step, one.lag) for one in standing.standing(found)] == [
            ("events", 0),
            ("numbers", 0),
            ("kept", 0),
        ]
    assert told(url, "SELECT n FROM kept ORDER BY n") == [(n,) for n in range(10)]
    assert told(url, "SELECT batch FROM weir_batches WHERE step = 'kept'") == [(2,)]
