"""Typed columns on a real Spark: each format, values that do not fit, frames, refusals."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from weir.client.schemas import TopicSchema, TopicSchemas
from weir.errors import BadRequest
from weir.schema import Schema
from weir.spark import typed
from weir.spark.columns import NO_FRAME

LOCK = {"type": "record", "name": "Lock", "fields": [{"name": "hub", "type": "long"}]}
AVRO = Schema("avro", json.dumps(LOCK).encode())
JSON = Schema(
    "json",
    json.dumps(
        {
            "type": "object",
            "required": ["hub", "at"],
            "properties": {
                "hub": {"type": "integer", "maximum": 99},
                "at": {
                    "type": "object",
                    "required": ["x"],
                    "properties": {"x": {"type": "number"}},
                },
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        }
    ).encode(),
)
COLUMNS = pa.schema([("hub", pa.int64()), ("name", pa.string())])
ARROW = Schema("arrow", COLUMNS.serialize().to_pybytes())


def body(hub: int) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(LOCK), {"hub": hub})
    return file.getvalue()


def frame(spark: SparkSession, values: Sequence[bytes | None]) -> DataFrame:
    return spark.createDataFrame([*enumerate(values)], "at int, value binary")


def rows(frame: DataFrame) -> list[tuple[Any, str | None]]:
    found = frame.orderBy("at").select("data", "reason").collect()
    return [(row.data and row.data.asDict(recursive=True), row.reason) for row in found]


def test_avro_values_are_columns(spark: SparkSession) -> None:
    made = typed(frame(spark, [body(7), b"", None]), AVRO)
    assert made.columns == ["at", "value", "data", "reason"]
    assert rows(made) == [
        ({"hub": 7}, None),
        (None, "the value ends after 0 bytes, in a field"),
        (None, "the value is null"),
    ]


def test_framed_values_lose_their_frame(spark: SparkSession) -> None:
    frames = [b"\0\0\0\0\1" + body(7), b"\1\0\0\0\1" + body(7), b"\0", None]
    expected = [({"hub": 7}, None), (None, NO_FRAME), (None, NO_FRAME), (None, "the value is null")]
    assert rows(typed(frame(spark, frames), AVRO, framed=True)) == expected
    sound = b'\0\0\0\0\1{"hub": 7, "at": {"x": 1}}'
    made = rows(typed(frame(spark, [sound, b"\1" + sound[1:], None]), JSON, framed=True))
    assert made[0] == ({"hub": 7, "at": {"x": 1.0}, "tags": None}, None)
    assert [reason for _, reason in made[1:]] == [NO_FRAME, "the value is null"]


BAD = "the value is no JSON of the schema"
TEXTS: dict[bytes | None, str | None] = {
    b'{"hub": 1, "at": {"x": 2}, "tags": ["a"]}': None,
    b'{"hub": 100, "at": {"x": 2}}': None,
    b'{"hub": "1", "at": {"x": 2}}': BAD,
    b'{"hub": 1, "at": {"x": NaN}}': BAD,
    b'{"hub": 1, "at": {}}': "at.x: it is required, and absent or null",
    b'{"at": {"x": 1}}': "hub: it is required, and absent or null",
    b'{"hub": 1': BAD,
    b"": BAD,
    b"[1]": BAD,
    b'"text"': BAD,
    b'{"hub": 1, "at": {"x": 2}} and more': None,
    b"\xff{}": "the value is not UTF-8",
    None: "the value is null",
}


def test_json_values_are_columns(spark: SparkSession) -> None:
    found = rows(typed(frame(spark, [*TEXTS]), JSON))
    assert [reason for _, reason in found] == [*TEXTS.values()]
    assert found[0][0] == {"hub": 1, "at": {"x": 2.0}, "tags": ["a"]}
    assert [data is None for data, _ in found] == [reason is not None for _, reason in found]


def test_json_values_are_checked_to_the_last_rule_on_demand(spark: SparkSession) -> None:
    found = rows(typed(frame(spark, [*TEXTS]), JSON, checked=True))
    assert found[0] == ({"hub": 1, "at": {"x": 2.0}, "tags": ["a"]}, None)
    assert found[1] == (None, "hub: 100 is greater than the maximum of 99")
    assert all(reason for _, reason in found[1:])


def test_a_json_schema_that_is_no_object_has_one_column(spark: SparkSession) -> None:
    numbers = Schema("json", b'{"type": "integer"}')
    found = rows(typed(frame(spark, [b"7", b'"a"', b"7}"]), numbers))
    assert found == [
        ({"value": 7}, None),
        (None, "the value: 'a' is not of type 'integer'"),
        (None, "the value is not JSON: Extra data: line 1 column 2 (char 1)"),
    ]


def test_arrow_values_are_columns(spark: SparkSession) -> None:
    one = pa.RecordBatch.from_pylist([{"hub": 1, "name": None}], COLUMNS)
    values = [bytes(one.serialize().to_pybytes()), b"no batch"]
    found = rows(typed(frame(spark, values), ARROW))
    assert found[0] == ({"hub": 1, "name": None}, None)
    assert found[1][0] is None


def test_good_and_bad_rows_leave_as_one_frame(spark: SparkSession) -> None:
    made = typed(frame(spark, [body(1), b""] * 50), AVRO)
    assert made.where("reason is null").count() == made.where("reason is not null").count() == 50


def test_what_cannot_work_is_refused_before_it_runs(spark: SparkSession) -> None:
    values = frame(spark, [b""])
    with pytest.raises(BadRequest, match="framed=True: arrow values have no frame"):
        typed(values, ARROW, framed=True)
    with pytest.raises(BadRequest, match="a column 'data' already"):
        typed(values.withColumnRenamed("at", "data"), AVRO)


def test_values_of_several_versions_are_read_as_the_newest_has_them(spark: SparkSession) -> None:
    more = {**LOCK, "fields": [*LOCK["fields"], {"name": "level", "type": "int", "default": 3}]}
    versions = tuple(
        TopicSchema(number, Schema("avro", json.dumps(one).encode()), 0)
        for number, one in enumerate((LOCK, more), 1)
    )
    of = TopicSchemas(versions, "backward", False)
    given = [(0, body(7), 1), (1, body(8) + b"\x08", 2), (2, body(9), 5)]
    made = typed(spark.createDataFrame(given, "at int, value binary, schema int"), of)
    (one, two, three) = rows(made)
    assert (one, two) == (({"hub": 7, "level": 3}, None), ({"hub": 8, "level": 4}, None))
    assert three[0] is None
    assert "version 5" in str(three[1])
    with pytest.raises(BadRequest, match="no column 'schema'"):
        typed(frame(spark, [body(7)]), of)
    with pytest.raises(BadRequest, match="has no schema"):
        typed(frame(spark, [body(7)]), TopicSchemas((), "backward", False))
