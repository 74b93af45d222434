"""A job of two queries: one writes a topic's messages to another topic, one archives that.

    spark-submit --master ... relay.py URL FROM TO LAKE CHECKPOINT STOP

It continues where its checkpoints say that it was left, and ends once the file STOP is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from weir.spark.jobs.archive import Upkeep, archive
from weir.spark.session import session

#: So many messages at most are one micro-batch, so that there are many to be killed in.
ROWS = 2_000


def main() -> None:
    """Run both queries until there is a file."""
    if len(sys.argv) != 7:
        sys.exit("usage: relay.py URL FROM TO LAKE CHECKPOINT STOP")
    url, source, target, lake, checkpoint, stop = sys.argv[1:]
    spark = session("relay")
    messages = (
        spark.readStream.format("weir")
        .option("url", url)
        .option("topic", source)
        .option("maxRowsPerBatch", ROWS)
        .option("minPartitions", 2)
        .load()
    )
    query = (
        messages.select("key", "value")
        .writeStream.format("weir")
        .option("url", url)
        .option("topic", target)
        .option("checkpointLocation", f"{checkpoint}/relay")
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    # The lake may be opened before the first micro-batch has come to the target.
    archive(
        spark,
        url,
        target,
        lake,
        format="delta",
        checkpoint=f"{checkpoint}/archive",
        rows_per_batch=ROWS,
        available_now=False,
        upkeep=Upkeep(compact_files=0, keep_hours=None),
        is_stopped=lambda: Path(stop).exists() or not query.isActive,
    )
    if not query.isActive:
        query.awaitTermination()  # raises why it ended
    query.stop()


if __name__ == "__main__":
    main()
