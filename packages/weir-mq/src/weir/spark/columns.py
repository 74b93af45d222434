"""Typed columns: the values of a topic as a struct of columns, by a schema.

JSON is parsed by Spark's own `from_json`; Avro, Protobuf and Arrow by a function over Arrow columns
(`weir.schema.columns`). A value that does not fit never ends a query: its struct is null, and
`reason` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from weir.client.schemas import TopicSchemas
from weir.errors import BadRequest
from weir.schema import Schema
from weir.schema.columns import Columns, Decoder, VersionedDecoder, decoder
from weir.schema.fields import RECORD, BadSchema, Field

#: The framing of a schema registry: a zero byte and the schema's id, before the body.
FRAME_BYTES = 5
DATA, REASON = "data", "reason"
#: What the progress of a query calls the counts of `count_lost`.
OBSERVATION = "weir_lost"
_CORRUPT = "_weir_corrupt_record"


def add_columns(
    frame: DataFrame,
    schema: Schema | TopicSchemas,
    *,
    column: str = "value",
    version: str = "schema",
    framed: bool = False,
    checked: bool = False,
) -> DataFrame:
    """Return a DataFrame with the columns of `weir.spark.typed`, which says what they are."""
    versions: Mapping[int, Schema] = {}
    if isinstance(schema, TopicSchemas):
        versions = {one.number: one.schema for one in schema.versions}
        if not versions:
            raise BadRequest("the topic has no schema: add one by `weir schema add TOPIC FILE`")
        schema = versions[max(versions)]
    if framed and schema.format not in ("avro", "json"):
        raise BadRequest(f"framed=True: {schema.format} values have no frame of five bytes")
    # Spark takes names in any case.
    names = [name.lower() for name in frame.columns]
    for name in (DATA, REASON):
        if name in names:
            raise BadRequest(f"the DataFrame has a column {name!r} already: rename it")
    if (count := names.count(column.lower())) > 1:
        raise BadRequest(f"the DataFrame has {count} columns {column!r}: rename all but one")
    type = from_arrow_type(decoder(schema).type)
    assert isinstance(type, StructType)
    root = schema.parse()
    _check_names(type, ())
    if schema.format == "json" and root.kind == RECORD and not checked:
        return _from_json(frame, root, type, F.col(column), framed)
    both = StructType([StructField(DATA, type), StructField(REASON, StringType())])
    # Its hints know no function over arrays that returns structs.
    make: Any = arrow_udf
    result = "_weir_typed"
    if versions:
        if version not in frame.columns:
            raise BadRequest(
                f"the DataFrame has no column {version!r} that says which version each value has: "
                'load it with the option columns, as ["value", "schema"]'
            )
        decoded = make(_versioned_udf(versions), both)(F.col(column), F.col(version))
    else:
        decoded = make(_udf(schema, framed), both)(F.col(column))
    return (
        frame.withColumn(result, decoded)
        .withColumn(DATA, F.col(f"{result}.{DATA}"))
        .withColumn(REASON, F.col(f"{result}.{REASON}"))
        .drop(result)
    )


def _check_names(type: DataType, path: tuple[str, ...]) -> None:
    """Raise `BadSchema` for fields of a struct that Spark cannot tell apart."""
    match type:
        case StructType():
            seen: dict[str, str] = {}
            for field in type.fields:
                other = seen.get(field.name.lower())
                seen[field.name.lower()] = field.name
                if other is not None:
                    where = ".".join(path) or "the schema"
                    raise BadSchema(
                        f"{where} has fields {other!r} and {field.name!r}, and Spark takes names "
                        "in any case: rename one"
                    )
                _check_names(field.dataType, (*path, field.name))
        case ArrayType():
            _check_names(type.elementType, path)
        case MapType():
            _check_names(type.valueType, path)


def count_lost(frame: DataFrame) -> DataFrame:
    """Return a DataFrame that counts what did not arrive; see `weir.spark.count_lost`."""
    names = {name.lower() for name in frame.columns}
    message = F.col("lost").isNull() if "lost" in names else F.lit(True)
    counts = []
    if "lost" in names:
        counts += [
            F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
            F.count("lost").alias("gaps"),
        ]
    if "time" in names:
        absent = message & F.col("time").isNull()
        counts.append(F.count_if(absent).alias("times_out_of_range"))
    if not counts:
        raise BadRequest(
            "nothing to count: the DataFrame has no column lost, which onDataLoss=earliest adds, "
            "and no column time"
        )
    return frame.observe(OBSERVATION, *counts)


def _udf(schema: Schema, framed: bool) -> Callable[[pa.Array], pa.Array]:
    """Return what a task calls with a column of values; Spark reads its hints, and pickles it."""

    def decode(values: pa.Array) -> pa.Array:
        of = _decoder(schema)
        return _result(*(_unframed(of, values) if framed else of.decode(values.to_pylist())))

    return decode


def _versioned_udf(versions: Mapping[int, Schema]) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """Return what a task calls with a column of values and one of their versions' numbers."""
    of = tuple(sorted(versions.items()))

    def decode(values: pa.Array, numbers: pa.Array) -> pa.Array:
        rows, reasons = _versioned(of).decode(values.to_pylist(), numbers.to_pylist())
        return _result(rows, reasons)

    return decode


def _result(rows: pa.StructArray, reasons: list[str | None]) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [rows, pa.array(reasons, pa.string())],
        fields=[pa.field(DATA, rows.type), pa.field(REASON, pa.string())],
    )


@cache
def _versioned(versions: tuple[tuple[int, Schema], ...]) -> VersionedDecoder:
    return VersionedDecoder(dict(versions))


@cache
def _decoder(schema: Schema) -> Decoder:
    """Return the process's decoder of a schema: workers live longer than a batch."""
    return decoder(schema)


NO_FRAME = "the value has no frame: a zero byte and an id of four bytes"


def _unframed(decode: Decoder, values: pa.Array) -> Columns:
    bodies: list[bytes | None] = []
    lacking: list[int] = []
    for at, value in enumerate(values.to_pylist()):
        sound = value is not None and len(value) >= FRAME_BYTES and value[0] == 0
        if value is not None and not sound:
            lacking.append(at)
        bodies.append(value[FRAME_BYTES:] if sound else None)
    rows, reasons = decode.decode(bodies)
    for at in lacking:
        reasons[at] = NO_FRAME
    return Columns(rows, reasons)


def _from_json(
    frame: DataFrame, root: Field, type: StructType, value: Column, framed: bool
) -> DataFrame:
    body = value
    told: list[tuple[Column, str]] = [(value.isNull(), "the value is null")]
    if framed:
        sound = (F.length(value) >= FRAME_BYTES) & (F.hex(F.substring(value, 1, 1)) == "00")
        told.append((~sound, NO_FRAME))
        body = F.substring(value, FRAME_BYTES + 1, 1 << 30)
    text = body.cast("string")
    told.append((~F.is_valid_utf8(text), "the value is not UTF-8"))
    read = StructType([*type.fields, StructField(_CORRUPT, StringType())])
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
        "allowNonNumericNumbers": "false",
    }
    parsed = "_weir_parsed"
    found = F.col(parsed)
    told.append(
        (found.isNull() | found[_CORRUPT].isNotNull(), "the value is no JSON of the schema")
    )
    for path, absent in _absent(root, found, ()):
        told.append((absent, f"{path}: it is required, and absent or null"))
    reason = F.lit(None).cast("string")
    for wrong, words in reversed(told):
        reason = F.when(wrong, F.lit(words)).otherwise(reason)
    fields = [found[field.name].alias(field.name) for field in type.fields]
    return (
        frame.withColumn(parsed, F.from_json(text, read, options))
        .withColumn(REASON, reason)
        .withColumn(DATA, F.when(F.col(REASON).isNull(), F.struct(*fields)))
        .drop(parsed)
        .select(*frame.columns, DATA, REASON)
    )


def _absent(root: Field, at: Column, path: tuple[str, ...]) -> Iterator[tuple[str, Column]]:
    """Yield the required fields of records, and when a record lacks them."""
    for field in root.fields:
        below = (*path, field.name)
        here = at[field.name]
        if not field.optional and field.kind not in ("union", "null", "any"):
            yield ".".join(below), at.isNotNull() & here.isNull()
        if field.kind == RECORD:
            yield from _absent(field, here, below)
