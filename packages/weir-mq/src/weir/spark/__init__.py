"""weir in Spark: `format("weir")` as a Structured Streaming source, sessions, and jobs to run.

Needs the extra `weir-mq[spark]`. Importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.schema import Schema

__all__ = ["typed"]


def typed(
    frame: DataFrame,
    schema: Schema,
    *,
    column: str = "value",
    framed: bool = False,
    checked: bool = False,
) -> DataFrame:
    """Return a DataFrame, of a stream or a table, with two more columns.

    `data` is a struct with a column for each field of the schema; `reason` is null where a value
    fits, and says where and why it does not elsewhere; `data` is null there. `column` is the column
    of values, binary. `framed` strips the five bytes that clients of a schema registry write before
    an Avro or a JSON body. `checked` also checks lists of values, bounds and closed objects of a
    JSON Schema, which `from_json` does not know; it is slower.

    `schema` is `weir.schema.Schema(format, data)`.

    Raises `BadSchema` for a type that Spark has no column for, `BadRequest` and `MissingLibrary`.
    """
    from weir.spark.columns import add_columns

    return add_columns(frame, schema, column=column, framed=framed, checked=checked)
