"""A driver that a test kills between the files of a micro-batch and the transaction of the lake.

Usage: archive_topic.py URL TOPIC LAKE FORMAT NUMBER. It prints the JVM's process id, and `written`
when the files of micro-batch NUMBER are there and the lake does not name them; then it waits.
"""

from __future__ import annotations

import sys
import time

from weir.spark.jobs.archive import archive
from weir.spark.lake import DeltaLake, ParquetLake
from weir.spark.lake.layout import Batch
from weir.spark.session import session


def main() -> None:
    url, topic, folder, format, number = sys.argv[1:]
    kind = DeltaLake if format == "delta" else ParquetLake
    add = kind.add

    def adding(self: DeltaLake | ParquetLake, batch: Batch) -> bool:
        if batch.number == int(number):
            print("written", flush=True)
            time.sleep(300)
        return add(self, batch)  # type: ignore[arg-type]

    kind.add = adding  # type: ignore[method-assign]
    spark = session("killed", cores=2, memory="1g")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    print(gateway.proc.pid, flush=True)
    archive(spark, url, topic, folder, format=format, rows_per_batch=1_000)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
