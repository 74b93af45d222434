"""Audit: what producers wrote down, joined with what consumers wrote down.

`weir pub --record`, `weir sub --record` and `weir tail --record` write records, and so may any
program: one JSON object in a line.

    {"kind": "sent", "topic": "t", "partition": 0, "offset": 7, "stamp": 1, "key": "lock-1",
     "at_us": 1767225600000000}
    {"kind": "received", "topic": "t", "partition": 0, "offset": 7, "stamp": 1, "key": "lock-1",
     "time_us": 1767225600000000, "at_us": 1767225600001500, "reader": "a1", "cluster": "desk",
     "n": 0}

`at_us` is when a message was confirmed or received, `time_us` its producer's time, both in µs since
1970. `n` numbers what a reader received, in its order. Readers of a cluster are one *group*, which
is to get each message once; a reader without a cluster is a group by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from weir.errors import BadOption
from weir.spark.jobs.queries import Totals, text_of

RECORD = (
    "kind string, topic string, partition int, offset long, stamp long, key string, "
    "key_base64 string, time_us long, at_us long, reader string, cluster string, n long, "
    "malformed string"
)
#: What a good record must have, by kind.
_SENT = ("topic", "partition", "offset")
_RECEIVED = (*_SENT, "reader", "n")
#: How many devices' latencies are returned, those with the highest p99 first.
DEVICES_MAX = 50
#: Of messages that are lost or repeated, so many are named.
EXAMPLES_MAX = 10
#: A group's name where nobody received a topic.
NOBODY = "-"
_MESSAGE = ("topic", "partition", "offset")
_SHARES = (0.5, 0.9, 0.99)
#: Percentiles are exact to one part in so many.
_ACCURACY = 10_000


@dataclass(frozen=True, slots=True)
class Group:
    """What one group got of one topic: numbers of messages.

    `expected` were sent; `lost` of them never came. `repeated` came again, each time counted.
    `unknown` came, and no producer wrote them down. `out_of_order` came behind a higher offset of
    their partition, `out_of_order_across` behind a higher stamp of any partition, or the same
    stamp of a later one: to one reader.
    """

    name: str
    topic: str
    expected: int
    received: int
    lost: int
    repeated: int
    unknown: int
    out_of_order: int
    out_of_order_across: int


@dataclass(frozen=True, slots=True)
class Latency:
    """From a message's time to its receipt, in ms: of one device (a key) in one hour, in UTC."""

    device: str | None
    hour: str
    count: int
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict. `totals` are lines of records; `latencies` are at most `DEVICES_MAX` rows."""

    totals: Totals
    sent: int
    received: int
    groups: Sequence[Group]
    latencies: Sequence[Latency]
    lost: Sequence[str]
    repeated: Sequence[str]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is lost and nothing came twice."""
        return not any(group.lost or group.repeated for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {
            **self.totals.to_json(),
            "sent": self.sent,
            "received": self.received,
            "lost": sum(group.lost for group in self.groups),
            "repeated": sum(group.repeated for group in self.groups),
            "groups": [asdict(group) for group in self.groups],
            "latencies": [asdict(latency) for latency in self.latencies],
            "lost_examples": list(self.lost),
            "repeated_examples": list(self.repeated),
        }


def records(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the records of files as a table; a line that is none has `is_good` false.

    Paths may be folders and globs. Raises `BadOption` if there is no such file.
    """
    if not paths:
        raise BadOption("no record files are given: weir pub, sub and tail write them by --record")
    try:
        lines = spark.read.text(list(paths))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise BadOption(f"there is no such record file: {', '.join(paths)}") from None
    return parsed(lines.where(F.length("value") > 0))


def parsed(lines: DataFrame) -> DataFrame:
    """Return the column `value` of text as records, with `is_good`; for streams, too."""
    told = F.from_json("value", RECORD, {"columnNameOfCorruptRecord": "malformed"})
    rows = lines.select(told.alias("r")).select("r.*")
    sent = (F.col("kind") == "sent") & _there(_SENT)
    received = (F.col("kind") == "received") & _there(_RECEIVED)
    good = F.coalesce(F.col("malformed").isNull() & (sent | received), F.lit(False))
    return rows.select(
        "kind", *_MESSAGE, "stamp", "time_us", "at_us", "reader", "n",
        F.coalesce("key", "key_base64").alias("device"),
        F.coalesce("cluster", "reader").alias("group"),
        good.alias("is_good"),
    )  # fmt: skip


def received_from(messages: DataFrame, group: str) -> DataFrame:
    """Return the messages of a topic or a lake as records, as if a group had received them.

    Each partition is a reader, in the order of offsets; so what is out of order across is a stamp
    that does not rise. There is no time of receipt, and so no latency.
    """
    return messages.select(
        F.lit("received").alias("kind"), *_MESSAGE, "stamp",
        F.unix_micros("time").alias("time_us"),
        F.lit(None).cast("long").alias("at_us"),
        F.concat(F.lit(f"{group}/"), F.col("partition")).alias("reader"),
        F.col("offset").alias("n"),
        text_of("key").alias("device"),
        F.lit(group).alias("group"),
        F.lit(True).alias("is_good"),
    )  # fmt: skip


def audit(rows: DataFrame) -> Audit:
    """Judge records, as `records` or `received_from` return them, or both in a union."""
    rows = rows.persist()
    try:
        good = rows.where("is_good")
        counted = rows.agg(
            F.count("*").alias("lines"),
            F.count_if(~F.col("is_good")).alias("bad"),
            F.count_if(F.col("is_good") & (F.col("kind") == "sent")).alias("sent"),
            F.count_if(F.col("is_good") & (F.col("kind") == "received")).alias("received"),
        ).collect()[0]
        received = good.where("kind = 'received'")
        joined = _joined(good).persist()
        try:
            return Audit(
                Totals(counted.lines, counted.sent + counted.received, counted.bad),
                counted.sent,
                counted.received,
                _groups(joined, received),
                _latencies(received),
                _examples(joined.where("is_sent and times is null")),
                _examples(joined.where("times > 1")),
            )
        finally:
            joined.unpersist()
    finally:
        rows.unpersist()


def _there(names: Sequence[str]) -> Column:
    found = F.lit(True)
    for name in names:
        found = found & F.col(name).isNotNull()
    return found & (F.col("offset") >= 0) & (F.col("partition") >= 0)


def _joined(good: DataFrame) -> DataFrame:
    """Return a row for each message and group: `is_sent`, and how many `times` it came, or null."""
    came = (
        good.where("kind = 'received'").groupBy("group", *_MESSAGE).agg(F.count("*").alias("times"))
    )
    groups = came.select("group", "topic").distinct()
    sent = good.where("kind = 'sent'").select(*_MESSAGE).distinct()
    expected = sent.join(F.broadcast(groups), "topic", "left").select(
        F.coalesce("group", F.lit(NOBODY)).alias("group"), *_MESSAGE, F.lit(True).alias("is_sent")
    )
    return expected.join(came, ["group", *_MESSAGE], "full_outer").withColumn(
        "is_sent", F.coalesce("is_sent", F.lit(False))
    )


def _groups(joined: DataFrame, received: DataFrame) -> list[Group]:
    disorder = {(row.group, row.topic): row for row in _disorder(received).collect()}
    rows = (
        joined.groupBy("group", "topic")
        .agg(
            F.count_if("is_sent").alias("expected"),
            F.coalesce(F.sum("times"), F.lit(0)).alias("received"),
            F.count_if(F.col("is_sent") & F.col("times").isNull()).alias("lost"),
            F.coalesce(F.sum(F.greatest(F.col("times") - 1, F.lit(0))), F.lit(0)).alias("repeated"),
            F.count_if(~F.col("is_sent")).alias("unknown"),
        )
        .orderBy("group", "topic")
    )
    found = []
    for row in rows.collect():
        order = disorder.get((row.group, row.topic))
        found.append(
            Group(
                row.group, row.topic, row.expected, row.received, row.lost, row.repeated,
                row.unknown, order.within if order else 0, order.across if order else 0,
            )
        )  # fmt: skip
    return found


def _disorder(received: DataFrame) -> DataFrame:
    """Count what came to a reader behind what is later; a message counts when it came first."""
    first = received.groupBy("group", "reader", *_MESSAGE).agg(
        F.min("n").alias("n"), F.min("stamp").alias("stamp")
    )
    # What was published together has one stamp, and is ordered by partition. Where no stamp was
    # written down, nothing is said.
    place = F.when(F.col("stamp").isNotNull(), F.struct("stamp", "partition"))
    before = (Window.unboundedPreceding, -1)
    of_partition = Window.partitionBy("group", "reader", "topic", "partition").orderBy("n")
    of_reader = Window.partitionBy("group", "reader").orderBy("n")
    seen = first.select(
        "group", "topic",
        (F.col("offset") < F.max("offset").over(of_partition.rowsBetween(*before))).alias("within"),
        (place < F.max(place).over(of_reader.rowsBetween(*before))).alias("across"),
    )  # fmt: skip
    return seen.groupBy("group", "topic").agg(
        F.count_if("within").alias("within"), F.count_if("across").alias("across")
    )


def _latencies(received: DataFrame) -> list[Latency]:
    milliseconds = ((F.col("at_us") - F.col("time_us")) / 1_000).alias("ms")
    hour = F.date_format(F.date_trunc("hour", F.timestamp_micros("at_us")), "yyyy-MM-dd'T'HH")
    rows = (
        received.where("at_us is not null and time_us is not null")
        .select("device", hour.alias("hour"), milliseconds)
        .groupBy("device", "hour")
        .agg(
            F.count("*").alias("count"),
            F.percentile_approx("ms", list(_SHARES), _ACCURACY).alias("p"),
            F.max("ms").alias("max"),
        )
        .orderBy(F.col("p")[2].desc(), "device", "hour")
        .limit(DEVICES_MAX)
    )
    return [
        Latency(r.device, r.hour, r["count"], r.p[0], r.p[1], r.p[2], r.max) for r in rows.collect()
    ]


def _examples(rows: DataFrame) -> list[str]:
    some = rows.orderBy("group", *_MESSAGE).limit(EXAMPLES_MAX).collect()
    return [f"{row.group}: {row.topic}/{row.partition} offset {row.offset:,}" for row in some]
