"""Silver: rows of one topic. A function has the name of its step."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def locks(rows: DataFrame) -> DataFrame:
    """`rows` has the columns of the topic, and `data`; keep these four for the next layer."""
    return rows.select(
        "topic",
        "partition",
        "offset",
        "stamp",
        "data.device",
        "data.event",
        F.timestamp_millis("data.at").alias("at"),
    )
