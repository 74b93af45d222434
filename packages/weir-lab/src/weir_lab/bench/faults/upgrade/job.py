"""A Spark job of one release: `python -P job.py URL TOPIC CHECKPOINT`.

It is run by its path, with the packages of either release. It reads a topic to today's end, from
where its checkpoint is, and prints the rows of each micro-batch as one JSON object, by the number
of the batch: each is partition, offset and value.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from weir.spark.session import session

_ROWS = 10_000
_WITHIN_S = 300


def main(url: str, topic: str, checkpoint: str) -> None:
    """Read, and print what was read. Raises what Spark raises."""
    batches: dict[int, list[str]] = {}

    def keep(frame: Any, number: int) -> None:
        rows = frame.select("partition", "offset", "value").collect()
        batches[number] = sorted(
            f"{row.partition} {row.offset} {bytes(row.value).decode()}" for row in rows
        )

    spark = session("upgrade", cores=1, memory="1g")
    reader = spark.readStream.format("weir").option("url", url).option("topic", topic)
    reader = reader.option("maxRowsPerBatch", str(_ROWS))
    writer = reader.load().writeStream.foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint).start()
    if not query.awaitTermination(_WITHIN_S):
        raise TimeoutError(f"the query does not end within {_WITHIN_S} s")
    spark.stop()
    print(json.dumps({"batches": batches}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
