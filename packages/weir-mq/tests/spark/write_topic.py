"""A driver that kills its JVM once the tasks of its second micro-batch have staged what they write,
and nothing of it is published.

Usage: write_topic.py URL FROM TO FOLDER ROWS_PER_BATCH.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from weir.spark.session import session
from weir.spark.sink.options import SinkOptions
from weir.spark.sink.writer import StreamWriter
from weir.spark.source import WeirDataSource


class KilledWriter(StreamWriter):
    """Dies with its JVM in the second commit."""

    jvm = 0

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Publish the first micro-batch alone."""
        if batchId:
            os.kill(self.jvm, signal.SIGKILL)
            os._exit(1)  # this process would go on for a moment, and publish
        super().commit(messages, batchId)


class KilledSource(WeirDataSource):
    """`format("weir-killed")`."""

    jvm = 0

    @classmethod
    def name(cls) -> str:
        """Return the name that queries use."""
        return "weir-killed"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Return what dies."""
        killed = KilledWriter(SinkOptions.parse(self.options))
        killed.jvm = self.jvm
        return killed


def main() -> None:
    url, source, target, folder, rows = sys.argv[1:]
    spark = session("killed", cores=2, memory="1g")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    KilledSource.jvm = gateway.proc.pid
    spark.dataSource.register(KilledSource)
    reader = spark.readStream.format("weir").option("url", url).option("topic", source)
    frame = reader.option("maxRowsPerBatch", rows).load().select("value")
    writer = frame.writeStream.format("weir-killed").option("url", url).option("topic", target)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
