"""The Spark job of the demo: flights and weather by one query, both cut at the same barriers.

An airport tells the weather of an hour, and its flights of that hour once that is confirmed. So an
observation has a lower stamp than each flight it is about, and a micro-batch, which holds all of
both topics up to a barrier, has the weather of each of its flights in it or before it: the join of
a micro-batch with the weather so far is whole, without a watermark and without waiting. Each
micro-batch leaves its observations, and sums of its flights, in folders of its number, and a replay
overwrites both with the same. In the end the sums are added up into two tables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.spark.jobs import flights
from weir.spark.jobs.queries import Asked, Parts, Progress, run, text_of
from weir_lab.demo.flights import TOPIC as FLIGHTS
from weir_lab.demo.tasks import Counted
from weir_lab.demo.weather.cells import VISIBILITY_LAST, WIND_BAND, WIND_LAST, WIND_MAX
from weir_lab.demo.weather.observations import TOPIC as WEATHER

ROWS_PER_BATCH = 100_000
#: The zone in which the airports write their schedules.
ZONE = "America/New_York"
_TOLD = "origin string, hour string, wind double, visib double, malformed string"
#: An observation; `origin` is null where a message is none. Hours are UTC.
OBSERVED = "origin string, hour timestamp_ntz, wind int, visibility int"
#: Sums over flights; `carrier` is null for messages that are none.
SUMS = (
    "carrier string, hour int, origin string, is_observed boolean, wind int, visibility int, "
    "flights long, departed long, cancelled long, minutes double, longest double"
)


@dataclass(frozen=True, slots=True)
class Steps:
    """The tables of micro-batches below a folder."""

    observed: Parts
    sums: Parts

    @classmethod
    def below(cls, out: str) -> Steps:
        """Return those of a run that writes to `out`."""
        return cls(Parts(f"{out}/observed", OBSERVED), Parts(f"{out}/sums", SUMS))

    def write(self, messages: DataFrame, query: str, number: int) -> None:
        """Join one micro-batch of both topics with the weather up to its barrier."""
        kept = messages.persist()
        try:
            self.observed.write(
                observations(kept.where(F.col("topic") == WEATHER)).coalesce(1), query, number
            )
            # A replay must not see what later micro-batches left: there are none, by then.
            so_far = self.observed.read(messages.sparkSession, query)
            told = flights.parse(kept.where(F.col("topic") == FLIGHTS))
            self.sums.write(sums(told, so_far).coalesce(1), query, number)
        finally:
            kept.unpersist()


def observations(messages: DataFrame) -> DataFrame:
    """Return messages of the weather with the columns `OBSERVED`."""
    told = F.from_json(text_of("value"), _TOLD, {"columnNameOfCorruptRecord": "malformed"})
    hour = F.col("w.hour").try_cast("timestamp_ntz")
    is_one = F.col("w.malformed").isNull() & F.col("w.origin").isNotNull() & hour.isNotNull()
    wind = F.when(F.col("w.wind").between(0, WIND_MAX), F.col("w.wind"))
    miles = F.least(F.floor("w.visib"), F.lit(VISIBILITY_LAST))
    band = F.least(F.floor(wind / WIND_BAND) * WIND_BAND, F.lit(WIND_LAST))
    return messages.select(told.alias("w")).select(
        F.when(is_one, F.col("w.origin")).alias("origin"),
        F.when(is_one, hour).alias("hour"),
        # The least of a null and a number is the number.
        F.when(wind.isNotNull(), band).cast("int").alias("wind"),
        F.when(F.col("w.visib").isNotNull(), miles).cast("int").alias("visibility"),
    )


def sums(told: DataFrame, so_far: DataFrame) -> DataFrame:
    """Return sums of parsed flights by carrier, hour and weather: the columns `SUMS`."""
    weather = so_far.where(F.col("origin").isNotNull()).select(
        F.col("origin").alias("at"), F.col("hour").alias("since"), "wind", "visibility"
    )
    due = F.convert_timezone(F.lit(ZONE), F.lit("UTC"), F.col("sched"))
    hour = F.date_trunc("hour", due).cast("timestamp_ntz")
    joined = told.withColumn("due", hour).join(
        F.broadcast(weather),
        (F.col("origin") == F.col("at")) & (F.col("due") == F.col("since")),
        "left",
    )
    is_observed = F.col("at").isNotNull().alias("is_observed")
    return joined.groupBy(
        "carrier", F.hour("sched").alias("hour"), "origin", is_observed, "wind", "visibility"
    ).agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.count_if(F.col("carrier").isNotNull() & F.col("dep_delay").isNull()).alias("cancelled"),
        F.coalesce(F.sum("dep_delay"), F.lit(0.0)).alias("minutes"),
        F.max("dep_delay").alias("longest"),
    )


def join(
    spark: SparkSession, url: str, out: str, checkpoint: str,
    *, progress: Progress | None = None, is_stopped: Asked | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> Counted:  # fmt: skip
    """Follow both topics until `is_stopped`, or without it to their ends; return what was counted
    once both tables are written. Started again with the same folders it goes on.
    """
    messages = (
        spark.readStream.format("weir")
        .option("url", url)
        .option("topics", json.dumps([FLIGHTS, WEATHER]))
        .option("columns", json.dumps(["topic", "stamp", "partition", "offset", "value"]))
        .option("maxRowsPerBatch", rows_per_batch)
        .load()
    )
    steps = Steps.below(out)
    query = run(
        messages, steps.write, checkpoint,
        progress=progress, available_now=is_stopped is None, is_stopped=is_stopped,
    )  # fmt: skip
    return add_up(steps.sums.read(spark, query), steps.observed.read(spark, query), out)


def add_up(parts: DataFrame, observed: DataFrame, out: str) -> Counted:
    """Write the delays by carrier and hour, and by weather, below `out`; return the totals."""
    parts = parts.persist()
    try:
        good = parts.where(F.col("carrier").isNotNull())
        by_hour = good.groupBy("carrier", "hour").agg(
            F.sum("flights").alias("flights"),
            F.sum("cancelled").alias("cancelled"),
            # NULL, not an error, where every flight was cancelled.
            F.try_divide(F.sum("minutes"), F.sum("departed")).alias("mean_delay"),
            F.max("longest").alias("max_delay"),
        )
        by_weather = good.groupBy("origin", "wind", "visibility").agg(
            *(F.sum(name).alias(name) for name in ("flights", "departed", "cancelled", "minutes"))
        )
        path, weather_path = f"{out}/delays", f"{out}/delays-by-weather"
        by_hour.orderBy("carrier", "hour").coalesce(1).write.mode("overwrite").parquet(path)
        by_weather.coalesce(1).write.mode("overwrite").parquet(weather_path)
        known = F.col("carrier").isNotNull()
        total = parts.agg(
            *(
                F.coalesce(F.sum(F.when(when, F.col(of))), F.lit(0)).alias(name)
                for name, of, when in (
                    ("flights", "flights", known),
                    ("cancelled", "cancelled", known),
                    ("joined", "flights", known & F.col("is_observed")),
                    ("bad", "flights", ~known),
                )
            ),
            F.count_distinct(F.when(known, F.struct("carrier", "hour"))).alias("rows"),
        ).collect()[0]
    finally:
        parts.unpersist()
    seen = observed.agg(F.count("*").alias("all"), F.count("origin").alias("good")).collect()[0]
    return Counted(
        total.flights, total.cancelled, total.rows, path,
        seen.good, total.joined, total.bad + seen["all"] - seen.good, weather_path,
    )  # fmt: skip
