"""Devices: sessions, unlock rates, locks that are stuck or chatter, and unusual windows.

An event is JSON: {"device": "lock-17", "event": "unlocked", "at": 1767225600000, ...}: `at` in ms
since 1970. Without `device` the message's key is the device, without `at` its time is the event's.
Events that are counted by name are `unlocked` and `locked`; others count as activity. Any message
that is no event is bad: it is counted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from weir.errors import BadOption
from weir.spark.jobs.queries import Asked, Parts, Progress, Topic, Totals, gathered, text_of

EVENT = "device string, event string, at long, malformed string"
#: What is kept of a message; all but the first three are null where it is no event.
PARSED = "stamp long, partition int, offset long, device string, event string, at timestamp"
UNLOCKED, LOCKED = "unlocked", "locked"
#: The last moment that all libraries can tell, in ms: the end of the year 9999.
_AT_MAX = 253_402_300_799_999
_NAME_MAX = 256


@dataclass(frozen=True, slots=True)
class Rules:
    """What is unusual. Times in seconds.

    A session ends after a `gap` without an event. A lock is stuck if it was unlocked, and not
    locked again, for `stuck`. It chatters with `chatter_events` in a `chatter_window`. A window of
    `window` is an anomaly if its unlocks are over the device's mean by `deviations` standard
    deviations, and the device has at least `windows_min` windows.
    """

    gap: int = 300
    window: int = 300
    stuck: int = 600
    chatter_events: int = 10
    chatter_window: int = 60
    deviations: float = 4.0
    windows_min: int = 8

    def __post_init__(self) -> None:
        """Raise `BadOption` for what is no rule."""
        for name, value in asdict(self).items():
            if not 0 < value < 10**9:
                raise BadOption(f"{name}={value}: give more than 0 and less than 10^9")


@dataclass(frozen=True, slots=True)
class Devices:
    """What a run came to. `totals` are messages: good ones are events.

    `tables` are paths of Parquet tables: sessions, rates, stuck, chattering, anomalies; the numbers
    of the same names are their rows.
    """

    totals: Totals
    devices: int
    sessions: int
    rates: int
    stuck: int
    chattering: int
    anomalies: int
    tables: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        rest = asdict(self)
        rest.pop("totals")
        return {**self.totals.to_json(), **rest}


def parse(messages: DataFrame) -> DataFrame:
    """Return messages, of a stream or a table, with the columns `PARSED`."""
    text = text_of("value")
    told = F.from_json(text, EVENT, {"columnNameOfCorruptRecord": "malformed"})
    read = messages.select(
        "stamp", "partition", "offset", "time", told.alias("e"),
        F.coalesce(told["device"], text_of("key")).alias("device"),
        F.json_object_keys(text).alias("names"),
    )  # fmt: skip
    named = (F.length("device") > 0) & (F.length("device") <= _NAME_MAX)
    at = F.when(F.col("e.at").between(0, _AT_MAX), F.timestamp_millis("e.at"))
    at = F.when(F.array_contains("names", "at"), at).otherwise(F.col("time"))
    is_event = F.coalesce(
        F.col("e.malformed").isNull()
        & named
        & (F.length("e.event") > 0)
        & (F.length("e.event") <= _NAME_MAX)
        & at.isNotNull(),
        F.lit(False),
    )
    return read.select(
        "stamp", "partition", "offset",
        F.when(is_event, F.col("device")).alias("device"),
        F.when(is_event, F.col("e.event")).alias("event"),
        F.when(is_event, at).alias("at"),
    )  # fmt: skip


def sessions(events: DataFrame, rules: Rules) -> DataFrame:
    """Return sessions by device: `begin`, `end` of the last event, `events`, `unlocks`.

    A stream needs a watermark on `at`.
    """
    span = F.session_window("at", f"{rules.gap} seconds")
    return (
        events.where("device is not null")
        .groupBy("device", span.alias("span"))
        .agg(
            F.min("at").alias("begin"),
            F.max("at").alias("end"),
            F.count("*").alias("events"),
            F.count_if(F.col("event") == UNLOCKED).alias("unlocks"),
        )
        .drop("span")
    )


def rates(events: DataFrame, rules: Rules) -> DataFrame:
    """Return events and unlocks by device and window; a stream needs a watermark on `at`."""
    return (
        events.where("device is not null")
        .groupBy("device", F.window("at", f"{rules.window} seconds").alias("w"))
        .agg(F.count("*").alias("events"), F.count_if(F.col("event") == UNLOCKED).alias("unlocks"))
        .select(
            "device", F.col("w.start").alias("begin"), "events", "unlocks",
            (F.col("unlocks") / (rules.window / 60)).alias("unlocks_a_minute"),
        )
    )  # fmt: skip


def stuck(events: DataFrame, rules: Rules) -> DataFrame:
    """Return when locks were unlocked for `rules.stuck` or longer, by the next event or until the
    last event of all devices: `device`, `since`, `seconds`.

    Events of one moment count in the order of their stamps.
    """
    turn = Window.partitionBy("device").orderBy("at", "stamp", "partition", "offset")
    known = events.where(F.col("event").isin(UNLOCKED, LOCKED))
    newest = events.agg(F.max("at").alias("newest"))
    spans = known.withColumn("next", F.lead("at").over(turn)).crossJoin(F.broadcast(newest))
    seconds = F.unix_micros(F.coalesce("next", "newest")) - F.unix_micros("at")
    return (
        spans.where(F.col("event") == UNLOCKED)
        .select("device", F.col("at").alias("since"), (seconds / 1_000_000).alias("seconds"))
        .where(F.col("seconds") >= rules.stuck)
    )


def chattering(events: DataFrame, rules: Rules) -> DataFrame:
    """Return windows in which a device told of too many events: `device`, `begin`, `events`."""
    window = F.window("at", f"{rules.chatter_window} seconds")
    return (
        events.where("device is not null")
        .groupBy("device", window.alias("w"))
        .agg(F.count("*").alias("events"))
        .where(F.col("events") >= rules.chatter_events)
        .select("device", F.col("w.start").alias("begin"), "events")
    )


def anomalies(by_window: DataFrame, rules: Rules) -> DataFrame:
    """Return the windows of `rates` with far more unlocks than the device's others.

    A window is compared with the mean and the deviation of all *other* windows of the device, of
    which one with an unlock more or less is never unusual: `device`, `begin`, `unlocks`, `usual`.
    """
    own = Window.partitionBy("device")
    count = F.count("*").over(own)
    others = count - 1
    total, squares = F.sum("unlocks").over(own), F.sum(F.pow("unlocks", F.lit(2))).over(own)
    mean = (total - F.col("unlocks")) / others
    variance = (squares - F.pow("unlocks", F.lit(2))) / others - F.pow(mean, F.lit(2))
    deviation = F.greatest(F.sqrt(F.greatest(variance, F.lit(0.0))), F.lit(1.0))
    found = by_window.select(
        "device", "begin", "unlocks", count.alias("windows"),
        F.when(count > 1, mean).alias("usual"),
        F.when(count > 1, deviation).alias("deviation"),
    )  # fmt: skip
    above = F.col("unlocks") > F.col("usual") + rules.deviations * F.col("deviation")
    return found.where((F.col("windows") >= rules.windows_min) & above).drop("windows")


def report(parsed: DataFrame, out: str, rules: Rules) -> Devices:
    """Write the tables of all events below `out`, and return the totals."""
    parsed = parsed.persist()
    try:
        by_window = rates(parsed, rules)
        tables = {
            "sessions": sessions(parsed, rules).orderBy("device", "begin"),
            "rates": by_window.orderBy("device", "begin"),
            "stuck": stuck(parsed, rules).orderBy("device", "since"),
            "chattering": chattering(parsed, rules).orderBy("device", "begin"),
            "anomalies": anomalies(by_window, rules).orderBy("device", "begin"),
        }
        paths = {name: f"{out}/{name}" for name in tables}
        for name, table in tables.items():
            table.coalesce(1).write.mode("overwrite").parquet(paths[name])
        counted = parsed.agg(
            F.count("*").alias("messages"),
            F.count("device").alias("good"),
            F.count_if(F.col("device").isNull()).alias("bad"),
            F.count_distinct("device").alias("devices"),
        ).collect()[0]
    finally:
        parsed.unpersist()
    spark = parsed.sparkSession
    # One query for all tables: each takes as long as a query over nothing.
    counts = [
        spark.read.parquet(path).agg(F.lit(name).alias("name"), F.count("*").alias("rows"))
        for name, path in paths.items()
    ]
    rows = {row["name"]: row["rows"] for row in reduce(DataFrame.union, counts).collect()}
    totals = Totals(counted.messages, counted.good, counted.bad)
    totals.check(out)
    return Devices(totals, counted.devices, **rows, tables=paths)


def devices(
    spark: SparkSession,
    topic: Topic,
    out: str,
    checkpoint: str,
    *,
    rules: Rules | None = None,
    available_now: bool = True,
    progress: Progress | None = None,
    is_stopped: Asked | None = None,
) -> Devices:
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
    return report(parsed, out, rules or Rules())
