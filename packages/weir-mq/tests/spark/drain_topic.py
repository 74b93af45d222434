"""A driver that a test kills: a topic into Parquet, in micro-batches, to today's end.

Usage: drain_topic.py URL TOPIC FOLDER ROWS_PER_BATCH. It prints the JVM's process id first.
"""

from __future__ import annotations

import sys

from weir.spark.session import session


def main() -> None:
    url, topic, folder, rows = sys.argv[1:]
    spark = session("killed", cores=2, memory="1g")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    print(gateway.proc.pid, flush=True)
    reader = spark.readStream.format("weir").option("url", url).option("topic", topic)
    reader = reader.option("readFrom", "url")  # or it would find a way around what holds it up
    writer = reader.option("maxRowsPerBatch", rows).load().writeStream.format("parquet")
    query = (
        writer.trigger(availableNow=True)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start(f"{folder}/out")
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
