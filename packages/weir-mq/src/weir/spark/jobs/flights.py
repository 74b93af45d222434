"""Flights: delays by carrier, airport and hour, and how planes rotate over airports.

A flight is JSON: {"carrier": "UA", "sched": "2013-01-01T05:15", "dep_delay": 2.0 or null, "origin":
"EWR", "dest": "IAH", "tailnum": "N14228", ...}. A carrier is two or three letters and digits, and
`dep_delay` null means that the flight was cancelled. Any other message is bad: it is counted.

A plane's rotation is the order of its flights, from whatever airport and so whatever partition they
were told of: it is right only in total order, where each stamp is above all before it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from weir.spark.jobs.queries import Asked, Parts, Progress, Topic, Totals, gathered, text_of

FLIGHT = (
    "carrier string, sched string, dep_delay double, origin string, dest string, tailnum string, "
    "malformed string"
)
_CARRIER = "^[A-Z0-9]{2,3}$"
_AIRPORT = "^[A-Z]{3,4}$"
_SCHED = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}"
#: What is kept of a message; all but the first three are null where it is no flight.
PARSED = (
    "stamp long, partition int, offset long, carrier string, sched timestamp_ntz, "
    "dep_delay double, origin string, dest string, tailnum string"
)
#: A flight is late from so many minutes on, as the FAA counts.
LATE_MINUTES = 15


@dataclass(frozen=True, slots=True)
class Flights:
    """What a run came to. `totals` are messages: good ones are flights.

    Of planes: `changes` are flights from another airport than the plane's flight before, and
    `inverted` ones are scheduled before it. `delays` and `rotations` are paths of Parquet tables.
    """

    totals: Totals
    cancelled: int
    late: int
    planes: int
    changes: int
    inverted: int
    delays: str
    rotations: str

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        rest = asdict(self)
        rest.pop("totals")
        return {**self.totals.to_json(), **rest}


def parse(messages: DataFrame) -> DataFrame:
    """Return messages, of a stream or a table, with the columns `PARSED`."""
    text = text_of("value")
    told = F.from_json(text, FLIGHT, {"columnNameOfCorruptRecord": "malformed"})
    read = messages.select(
        "stamp", "partition", "offset", told.alias("f"), F.json_object_keys(text).alias("names")
    )
    # The time is local to the airport and has no zone: it is taken as it is written.
    sched = F.col("f.sched").try_cast("timestamp_ntz")
    delay = F.col("f.dep_delay")
    is_flight = F.coalesce(
        F.col("f.malformed").isNull()
        & F.col("f.carrier").rlike(_CARRIER)
        & F.col("f.sched").rlike(_SCHED)
        & sched.isNotNull()
        # A flight without the field is not a cancelled one; NaN is above any number.
        & F.array_contains("names", "dep_delay")
        & (delay.isNull() | (F.abs(delay) < float("inf"))),
        F.lit(False),
    )

    def kept(column: Column, name: str) -> Column:
        return F.when(is_flight, column).alias(name)

    return read.select(
        "stamp", "partition", "offset",
        kept(F.col("f.carrier"), "carrier"),
        kept(sched, "sched"),
        kept(delay, "dep_delay"),
        kept(F.when(F.col("f.origin").rlike(_AIRPORT), F.col("f.origin")), "origin"),
        kept(F.when(F.col("f.dest").rlike(_AIRPORT), F.col("f.dest")), "dest"),
        kept(F.when(F.col("f.tailnum") != "", F.col("f.tailnum")), "tailnum"),
    )  # fmt: skip


def delays(parsed: DataFrame) -> DataFrame:
    """Return delays in minutes by carrier, airport of departure and local hour of schedule.

    Percentiles are NULL where every flight was cancelled.
    """
    return (
        parsed.where("carrier is not null")
        .groupBy("carrier", "origin", F.hour("sched").alias("hour"))
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
            F.count_if(F.col("dep_delay") >= LATE_MINUTES).alias("late"),
            F.avg("dep_delay").alias("mean_delay"),
            F.percentile_approx("dep_delay", 0.5).alias("p50_delay"),
            F.percentile_approx("dep_delay", 0.9).alias("p90_delay"),
            F.max("dep_delay").alias("max_delay"),
        )
    )


def rotations(parsed: DataFrame) -> DataFrame:
    """Return a row for each plane: its flights in total order, and how they follow each other.

    `airports` begins with up to 100 airports of departure; `turn_minutes` is the median time
    between schedules of neighbours. Flights without a plane are left out.
    """
    turn = Window.partitionBy("tailnum").orderBy("stamp", "partition", "offset")
    at = F.unix_micros(F.col("sched").cast("timestamp"))
    minutes = (at - F.lag(at).over(turn)) / 60_000_000
    flown = parsed.where("tailnum is not null").select(
        "tailnum", "origin", "stamp", "partition", "offset",
        (F.col("origin") != F.lag("origin").over(turn)).alias("is_change"),
        minutes.alias("minutes"),
        F.row_number().over(turn).alias("turn"),
    )  # fmt: skip
    first = F.when(F.col("turn") <= 100, F.struct("turn", "origin"))
    return flown.groupBy("tailnum").agg(
        F.count("*").alias("flights"),
        F.count_if("is_change").alias("changes"),
        F.count_if(F.col("minutes") < 0).alias("inverted"),
        F.percentile_approx(F.when(F.col("minutes") >= 0, F.col("minutes")), 0.5).alias(
            "turn_minutes"
        ),
        F.sort_array(F.collect_list(first))["origin"].alias("airports"),
    )


def report(parsed: DataFrame, out: str) -> Flights:
    """Write both tables of all flights below `out`, and return the totals."""
    parsed = parsed.persist()
    try:
        paths = f"{out}/delays", f"{out}/rotations"
        ordered = delays(parsed).orderBy("carrier", "origin", "hour").coalesce(1)
        ordered.write.mode("overwrite").parquet(paths[0])
        planes = rotations(parsed).orderBy("tailnum").coalesce(1)
        planes.write.mode("overwrite").parquet(paths[1])
        counted = parsed.agg(
            F.count("*").alias("messages"),
            F.count("carrier").alias("good"),
            F.count_if(F.col("carrier").isNull()).alias("bad"),
            F.count_if(F.col("carrier").isNotNull() & F.col("dep_delay").isNull()).alias(
                "cancelled"
            ),
            F.count_if(F.col("dep_delay") >= LATE_MINUTES).alias("late"),
        ).collect()[0]
    finally:
        parsed.unpersist()
    spark = parsed.sparkSession
    turned = (
        spark.read.parquet(paths[1])
        .agg(F.count("*"), F.sum("changes"), F.sum("inverted"))
        .collect()[0]
    )
    totals = Totals(counted.messages, counted.good, counted.bad)
    totals.check(out)
    return Flights(
        totals, counted.cancelled, counted.late, turned[0], turned[1] or 0, turned[2] or 0, *paths
    )


def flights(
    spark: SparkSession,
    topic: Topic,
    out: str,
    checkpoint: str,
    *,
    available_now: bool = True,
    progress: Progress | None = None,
    is_stopped: Asked | None = None,
) -> Flights:
    """Read a topic to today's end, or until Ctrl-C, and report on all that was read so far.

    Started again with the same `out` and `checkpoint` it goes on, whatever ended the last run.
    """
    parsed = gathered(
        topic.stream(spark),
        parse,
        Parts(out, PARSED),
        checkpoint,
        progress=progress,
        available_now=available_now,
        is_stopped=is_stopped,
    )
    return report(parsed, out)
