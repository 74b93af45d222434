"""The columns that a sink takes, checked by their types before a row is written, and by their rows
as these come: Arrow in, Arrow out, and no Python object for a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from weir.errors import BadOption, BadRequest
from weir.spark.rows import TIME_MAX, TIME_MIN
from weir.spark.sink.options import SinkOptions

_BYTES = (BinaryType, StringType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
#: What each column may be, and what to say of another one.
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": (_BYTES, "binary or string"),
    "key": (_BYTES, "binary or string"),
    "tag": ((StringType,), "string"),
    "headers": ((MapType,), "map<string,binary>"),
    "time": ((TimestampType,), "timestamp"),
    "partition": (_WHOLE, "int"),
    "topic": ((StringType,), "string"),
}
#: What messages are made of: the others say where they go.
_MESSAGE = ("value", "key", "tag", "headers", "time")


@dataclass(frozen=True, slots=True)
class Chosen:
    """Rows for one topic: the columns of messages, and a partition for each row where a column
    says it.
    """

    topic: str
    messages: pa.RecordBatch
    partitions: pa.Array | None


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise `BadOption` unless rows of these columns can be written, and it is said where to."""
    names = schema.fieldNames()
    seen: set[str] = set()
    for name in names:
        # Spark compares names without case, unless it is told otherwise.
        if name.lower() in seen:
            raise BadOption(f"two columns are called {name!r}: rename or drop one")
        seen.add(name.lower())
    if "value" not in names:
        raise BadOption(
            f"there is no column 'value' among {names}: rename the one that holds values, as by "
            "selectExpr('to_json(struct(*)) AS value')"
        )
    if strange := [name for name in names if name not in _TYPES]:
        raise BadOption(
            f"columns {strange} mean nothing to a sink: drop them, or put them into 'value'; it "
            f"takes {', '.join(_TYPES)}"
        )
    for field in schema.fields:
        kinds, wanted = _TYPES[field.name]
        kind = field.dataType
        pairs = not isinstance(kind, MapType) or (
            isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _BYTES)
        )
        if not isinstance(kind, kinds) or not pairs:
            raise BadOption(f"column {field.name!r} is {kind.simpleString()}: cast it to {wanted}")
    if "topic" in names and options.topic:
        raise BadOption(
            f"a column 'topic' and the option topic={options.topic!r} both say where to write: "
            "drop the column, or leave the option out"
        )
    if "topic" not in names and not options.topic:
        raise BadOption(
            "nothing says where to write: .option('topic', 'door-events'), or a column 'topic'"
        )


def by_topic(rows: pa.RecordBatch, options: SinkOptions, before: int) -> Iterator[Chosen]:
    """Check rows, of which so many came `before`, and yield them by topic, in their order.

    Raises `BadRequest`, naming the column and the row, for a value or topic that is null, a time
    before the year 1 or after the year 9999, and a partition below 0.
    """
    columns = {name: rows.column(name) for name in rows.schema.names}
    if columns["value"].null_count:
        if not options.fills_values:
            why = "null; .option('nullValues', 'empty') writes it with an empty value"
            _refuse(columns["value"].is_null(), before, "value", why)
        columns["value"] = _filled(columns["value"])
    if (times := columns.get("time")) is not None:
        _check_times(times, before)
    partitions = columns.get("partition")
    if partitions is not None:
        low = pc.less(partitions, 0).fill_null(False)
        _refuse(low, before, "partition", "below 0")
    messages = pa.RecordBatch.from_pydict(
        {name: columns[name] for name in _MESSAGE if name in columns}
    )
    topics = columns.get("topic")
    if topics is None:
        yield Chosen(options.topic, messages, partitions)
        return
    if topics.null_count:
        _refuse(topics.is_null(), before, "topic", "null")
    distinct = topics.dictionary_encode()
    names = distinct.dictionary.to_pylist()
    if len(names) == 1:
        yield Chosen(names[0], messages, partitions)
        return
    indices = np.asarray(distinct.indices)
    for number, name in enumerate(names):
        places = pa.array(np.flatnonzero(indices == number))
        some = None if partitions is None else partitions.take(places)
        yield Chosen(name, messages.take(places), some)


def _filled(values: Any) -> Any:
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    empty: Any = "" if is_text else b""
    return values.fill_null(pa.scalar(empty, values.type))


def _check_times(times: Any, before: int) -> None:
    if times.null_count:
        _refuse(times.is_null(), before, "time", "null: fill it, or drop the column")
    numbers = times.cast(pa.timestamp("us", times.type.tz), safe=False).view(pa.int64())
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (ends["min"] >= TIME_MIN and ends["max"] <= TIME_MAX):
        return
    outside = pc.or_(pc.less(numbers, TIME_MIN), pc.greater(numbers, TIME_MAX))
    _refuse(outside, before, "time", "before the year 1 or after the year 9999")


def _refuse(wrong: Any, before: int, column: str, why: str) -> None:
    """Raise `BadRequest` if any row is wrong, naming the first."""
    found = np.flatnonzero(np.asarray(wrong))
    if len(found):
        raise BadRequest(
            f"column {column!r} of row {before + int(found[0]):,} of a task is {why}; nothing of "
            "this batch was written"
        )
