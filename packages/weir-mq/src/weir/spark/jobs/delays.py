"""Flight delays by carrier and hour of scheduled departure, each flight counted exactly once.

    python -m weir.spark.jobs.delays weir://localhost:6800 flights ./delays ./delays-checkpoint

`spark-submit --master ... weir/spark/jobs/delays.py` with the same arguments runs it there.

A flight is JSON: {"carrier": "UA", "sched": "2013-01-01T05:15", "dep_delay": 2.0 or null, ...}. A
carrier is two or three letters and digits, and `dep_delay` null means that the flight was
cancelled. Any other message is left out, and the result says how many were. Two steps make it
exact:

1. Each micro-batch is aggregated and written to a folder of its own, named by query and batch id. A
   batch that is replayed after a crash has the same number and the same messages, so it overwrites
   what it wrote before.
2. When the query has ended, the folders are added up into `<out>/delays`. Counts, sums and maxima
   can be added up in any order; a mean cannot, so sums are kept until then.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.spark.jobs.flights import parse
from weir.spark.jobs.queries import Parts, Progress, wait

#: Of one micro-batch: `flights` of which `departed` have a delay; `cancelled` ones have none. Rows
#: without a carrier count messages that are no flights.
PARTIAL = (
    "carrier string, hour int, flights long, departed long, cancelled long, "
    "delay_sum double, delay_max double"
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to: flights counted, of them cancelled, table rows, and the table's path;
    and how many messages were left out because they are no flights.
    """

    flights: int
    cancelled: int
    rows: int
    path: str
    left_out: int = 0


def run(
    spark: SparkSession,
    url: str,
    topic: str,
    out: str,
    checkpoint: str,
    *,
    progress: Progress | None = None,
    available_now: bool = True,
    rows_per_batch: int = 100_000,
) -> Result:
    """Count what the topic holds, or all that comes until the query is stopped; then add up.

    `progress` is told the number of messages of this run so far. Started again with the same `out`
    and `checkpoint`, it continues, whatever ended the last run.
    """
    flights = (
        spark.readStream.format("weir")
        .option("url", url)
        .option("topic", topic)
        .option("maxRowsPerBatch", rows_per_batch)
        .load()
    )
    query = (
        flights.writeStream.foreachBatch(lambda batch, number: _write(batch, number, out))
        .option("checkpointLocation", checkpoint)
        .trigger(**{"availableNow": True} if available_now else {"processingTime": "1 second"})
        .start()
    )
    wait(query, progress)
    return _add_up(Parts(out, PARTIAL).read(spark, str(query.id)), f"{out}/delays")


def _write(batch: DataFrame, number: int, out: str) -> None:
    """Write one micro-batch's partial aggregate over whatever an earlier try of it left."""
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query is not None  # Spark sets it for every micro-batch
    Parts(out, PARTIAL).write(_aggregate(batch).coalesce(1), query, number)


def _aggregate(messages: DataFrame) -> DataFrame:
    """Reduce messages to a row per carrier and hour; what is no flight counts under no carrier."""
    checked = parse(messages).withColumn("hour", F.hour("sched"))
    return checked.groupBy("carrier", "hour").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.count_if(F.col("carrier").isNotNull() & F.col("dep_delay").isNull()).alias("cancelled"),
        F.sum("dep_delay").alias("delay_sum"),
        F.max("dep_delay").alias("delay_max"),
    )


def _add_up(partial: DataFrame, path: str) -> Result:
    """Add the micro-batches up into one table, and return its totals."""
    delays = (
        partial.where(F.col("carrier").isNotNull())
        .groupBy("carrier", "hour")
        .agg(
            F.sum("flights").alias("flights"),
            F.sum("cancelled").alias("cancelled"),
            # NULL, not an error, where every flight was cancelled.
            F.try_divide(F.sum("delay_sum"), F.sum("departed")).alias("mean_delay"),
            F.max("delay_max").alias("max_delay"),
        )
        .orderBy("carrier", "hour")
        .coalesce(1)
    )
    delays.write.mode("overwrite").parquet(path)
    totals = (
        partial.sparkSession.read.parquet(path)
        .agg(F.sum("flights"), F.sum("cancelled"), F.count("*"))
        .collect()[0]
    )
    others = partial.where(F.col("carrier").isNull()).agg(F.sum("flights")).collect()[0]
    return Result(totals[0] or 0, totals[1] or 0, totals[2], path, others[0] or 0)


def main() -> None:
    """Run the job as a command: URL, topic, output folder, checkpoint folder."""
    from weir.spark.session import session

    if len(sys.argv) != 5:
        sys.exit("usage: python -m weir.spark.jobs.delays URL TOPIC OUT CHECKPOINT")
    url, topic, out, checkpoint = sys.argv[1:]
    spark = session("delays")
    print(f"Spark {spark.version} at {spark.sparkContext.master}", flush=True)
    result = run(spark, url, topic, out, checkpoint, progress=_show)
    print(
        f"{result.flights:,} flights ({result.cancelled:,} cancelled) in {result.rows:,} rows: "
        f"{result.path}"
    )
    if result.left_out:
        print(f"{result.left_out:,} messages of {topic} are no flights and were left out")


def _show(messages: int) -> None:
    print(f"{messages:,} messages", flush=True)


if __name__ == "__main__":
    main()
