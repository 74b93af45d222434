"""`weir bench spark`, small: both sources read every row, in turns, and the ratio is theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from weir.schema import Schema
from weir.spark import typed
from weir.spark.fetcher import combined
from weir_lab.bench.spark import rows as spark_rows
from weir_lab.bench.spark.rows import RowsDiffer, Settings, measure


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


def test_both_sources_read_every_row(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    settings = Settings(messages=3_001, partitions=2, rounds=1, typed=1_201, written=901)
    result = measure(settings, Parts(spark), said.append)
    sources = ["weir", "columns", "bare"]
    formats = ["json", "avro", "protobuf", "arrow"]
    rows = [(one, 3_001) for one in sources] + [(one, 1_201) for one in formats]
    rows += [("sink", 900), ("discarded", 900)]
    assert [(one.source, one.rows) for one in result.queries] == rows
    assert {*result.typed_rows_per_s} == {*formats}
    assert result.ratio == pytest.approx(result.rows_per_s / result.bare_rows_per_s)
    assert result.columns_ratio == pytest.approx(result.columns_rows_per_s / result.rows_per_s)
    assert result.rows_per_s == median([result.queries[0].rows_per_s])
    assert result.warm_up_queries_excluded == 9
    sink, discarded = (one.rows_per_s for one in result.queries[-2:])
    assert result.sink_rows_per_s == sink
    assert result.sink_ratio == pytest.approx(sink / discarded)
    assert "warmed up" in said[1]

    monkeypatch.setattr(spark_rows, "shared_out", lambda messages, partitions: [5, 5])
    with pytest.raises(RowsDiffer, match="weir: Spark read 10 of 9 rows"):
        measure(
            Settings(messages=9, partitions=2, rounds=1, typed=0, written=0),
            Parts(spark),
            said.append,
        )
