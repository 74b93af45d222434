"""A job that copies a topic to Parquet, and with each row which environment read it.

    spark-submit --master ... rows.py URL TOPIC OUT CHECKPOINT

It continues where its checkpoint says that it was left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa

from weir.spark.session import session

#: More than there are executors, so that each has some.
TASKS = 6
COLUMNS = "partition int, offset long, value binary"
#: The environment of the interpreter that an executor started, and where it found weir.
PLACES = "environment string, package string"


def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the two columns of `PLACES`; runs in executors."""
    import weir

    for batch in batches:
        places = [
            pa.array([text] * len(batch), pa.string()) for text in (sys.prefix, weir.__file__)
        ]
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, *places], [*batch.schema.names, "environment", "package"]
        )


def main() -> None:
    """Copy what is there now."""
    if len(sys.argv) != 5:
        sys.exit("usage: rows.py URL TOPIC OUT CHECKPOINT")
    url, topic, out, checkpoint = sys.argv[1:]
    spark = session("rows")
    messages = (
        spark.readStream.format("weir")
        .option("url", url)
        .option("topic", topic)
        # Few messages would be one task, and one executor would read them all.
        .option("minPartitions", TASKS)
        .load()
    )
    rows = messages.select("partition", "offset", "value")
    query = (
        rows.mapInArrow(tell, f"{COLUMNS}, {PLACES}")
        .writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(f"read by Spark {spark.version} at {spark.sparkContext.master}")


if __name__ == "__main__":
    main()
