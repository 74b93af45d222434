"""weir in Spark: `format("weir")` to read and to write, sessions, and jobs to run.

Needs the extra `weir-mq[spark]`. Importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from weir.client.schemas import TopicSchemas
    from weir.schema import Schema
    from weir.spark.monitoring.listener import Watch

__all__ = ["count_bad", "count_lost", "typed", "watch"]


def count_lost(frame: DataFrame) -> DataFrame:
    """Return a stream that counts what did not arrive, of the columns that `format("weir")` gives.

    The counts of each micro-batch are in its progress, as `observedMetrics["weir_lost"]`, a row of
    `lost`, the messages that retention deleted before they were read, `gaps`, the rows that stand
    for them (both only with the option onDataLoss=earliest), and `times_out_of_range`, the messages
    whose time Spark has no timestamp for, so that it is null. Use it once a query.

    Raises `BadRequest` for a DataFrame without these columns.
    """
    from weir.spark.columns import count_lost

    return count_lost(frame)


def typed(
    frame: DataFrame,
    schema: Schema | TopicSchemas,
    *,
    column: str = "value",
    version: str = "schema",
    framed: bool = False,
    checked: bool = False,
) -> DataFrame:
    """Return a DataFrame, of a stream or a table, with two more columns.

    `data` is a struct with a column for each field of the schema; `reason` is null where a value
    fits, and says where and why it does not elsewhere; `data` is null there. `column` is the column
    of values, binary. `framed` strips the five bytes that clients of a schema registry write before
    an Avro or a JSON body. `checked` also checks lists of values, bounds and closed objects of a
    JSON Schema, which `from_json` does not know; it is slower.

    `schema` is `weir.schema.Schema(format, data)`, or all versions of a topic's schema, as
    `schemas.versions(topic)` of a client returns them: then the column `version` says which one
    each value has, and all are read as the newest has them. Versions that are added later are not
    known to a query that runs: it gives a reason for their values.

    Raises `BadSchema` for a type that Spark has no column for, `BadRequest` and `MissingLibrary`.
    """
    from weir.spark.columns import add_columns

    return add_columns(
        frame, schema, column=column, version=version, framed=framed, checked=checked
    )


def watch(
    spark: SparkSession,
    url: str,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    readers: bool = True,
    every: float = 5.0,
) -> Watch:
    """Watch the streaming queries of a session; return a `Watch`, to be closed in the end.

    `url` is the broker's. With `port`, figures are served to Prometheus at
    `http://host:port/metrics`; 0 is any free port, and `Watch.url` says which. With `readers`, the
    broker is told `every` so many seconds how far each query is: `weir cluster list` shows it as
    `spark.NAME`, and the broker says how far behind it is, also while it does not run. That needs
    the right to steer clusters. A broker that is away holds up no query.

    Raises `BadOption` for a port that is taken, and for `every` below 0.1.
    """
    from weir.spark.monitoring import listener

    return listener.watch(spark, url, port=port, host=host, readers=readers, every=every)


def count_bad(frame: DataFrame, reason: str = "reason") -> DataFrame:
    """Return a stream that counts rows whose column `reason` is not null, as `typed` makes it.

    The count is in the progress of the query, and `watch` shows it as
    `weir_spark_bad_values_total`. Use it once a query.
    """
    from weir.spark.monitoring import listener

    return listener.count_bad(frame, reason)
