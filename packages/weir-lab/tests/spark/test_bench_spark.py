"""`weir bench spark`, small: both sources read every row, in turns, and the ratio is theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from weir.schema import Schema
from weir.spark import typed
from weir.spark.fetcher import combined
from weir.testing.nodes import running_node
from weir_lab.bench.spark import following
from weir_lab.bench.spark import rows as spark_rows
from weir_lab.bench.spark.following import Ages, Following, NotFollowed
from weir_lab.bench.spark.rows import RowsDiffer, Settings, measure

FEW = Following(seconds=0, batches=0)


class Parts:
    """The Spark room, with the session that all tests share."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def session(self) -> SparkSession:
        return self._spark

    def typed(self, frame: DataFrame, schema: Schema) -> DataFrame:
        return typed(frame, schema)

    def combined(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return combined(batches)


@pytest.mark.slow  # `make proof` measures it, and queries that follow are measured below
def test_both_sources_read_every_row(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    settings = Settings(messages=3_001, partitions=2, rounds=1, typed=0, written=901, following=FEW)
    result = measure(settings, Parts(spark), said.append)
    rows = [(one, 3_001) for one in ("weir", "columns", "bare")]
    rows += [("sink", 900), ("discarded", 900)]
    assert [(one.source, one.rows) for one in result.queries] == rows
    assert result.typed_rows_per_s == {}
    assert result.ratio == pytest.approx(result.rows_per_s / result.bare_rows_per_s)
    assert result.columns_ratio == pytest.approx(result.columns_rows_per_s / result.rows_per_s)
    assert result.rows_per_s == median([result.queries[0].rows_per_s])
    assert result.warm_up_queries_excluded == 5
    sink, discarded = (one.rows_per_s for one in result.queries[-2:])
    assert result.sink_rows_per_s == sink
    assert result.sink_ratio == pytest.approx(sink / discarded)
    assert "warmed up" in said[1]
    assert result.freshness_p99_ms is result.partitions_ratio is None

    settings = Settings(messages=9, partitions=2, rounds=1, typed=0, written=0, following=FEW)
    monkeypatch.setattr(spark_rows, "shared_out", lambda messages, partitions: [5, 5])
    with pytest.raises(RowsDiffer, match="weir: Spark read 10 of 9 rows"):
        measure(settings, Parts(spark), said.append)


@pytest.mark.slow  # each format has a test of its own in weir-mq; these are twelve queries
@pytest.mark.timeout(400)
def test_values_of_every_format_are_read(spark: SparkSession) -> None:
    settings = Settings(messages=9, partitions=2, rounds=1, typed=1_201, written=0, following=FEW)
    result = measure(settings, Parts(spark), lambda said: None)
    formats = ["json", "avro", "protobuf", "arrow"]
    rows = [(one, 9) for one in ("weir", "columns", "bare")]
    rows += [(one, 1_201) for one in formats]
    assert [(one.source, one.rows) for one in result.queries] == rows
    assert {*result.typed_rows_per_s} == {*formats}
    assert result.warm_up_queries_excluded == 7
    assert result.sink_rows_per_s is result.sink_ratio is None


def test_queries_that_follow_hand_over_all_that_is_sent(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(following, "WARM_SECONDS", 0.2)
    settings = Following(seconds=0.5, rate=400, rows=64, batches=1)
    with running_node() as node:
        followed = following.measure(spark, node.url, settings, tmp_path)
    for figure in (
        followed.freshness_p99_ms, followed.total_freshness_p99_ms,
        followed.one_partition_ms, followed.many_partitions_ms,
    ):  # fmt: skip
        assert figure is not None
        assert figure > 0
    assert followed.partitions_ratio == pytest.approx(
        (followed.many_partitions_ms or 0) / (followed.one_partition_ms or 1)
    )


def times(*sent_us: int) -> Any:
    """Return a micro-batch whose messages were sent then, as far as `Ages` looks at one."""
    table = pa.table({"time": pa.array(sent_us, pa.timestamp("us", "UTC"))})
    frame = SimpleNamespace(toArrow=lambda: table)
    return SimpleNamespace(select=lambda name: {"time": frame}[name])


def test_ages_count_from_the_send_and_without_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ages = Ages()
    with pytest.raises(NotFollowed):
        ages.p99_ms(0)
    for now, sent in ((5_000, (1_000, 2_000)), (9_000, (8_000, 8_500))):
        monkeypatch.setattr("time.time_ns", lambda now=now: now * 1_000)
        ages.take(times(*sent), 0)
    assert ages.rows == 4
    assert ages.p99_ms(8_500) == 0.5
    assert ages.p99_ms(8_000) == pytest.approx(1.0, abs=0.01)
    assert ages.p99_ms(2_000) == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize(
    "wrong", [{"seconds": -1.0}, {"batches": -1}, {"rate": 3}, {"rows": 63}, {"deadline_s": 0.0}]
)
def test_what_cannot_be_followed_is_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"give rate|must be 0 or more"):
        Settings(following=Following(**wrong)).check()
