"""The figures of a run as SVG, from the records that producers and consumers wrote.

rates.svg         messages a second over time: confirmed, and received by each group
latency.svg       from a message's time to its receipt, over time: p50 and p99
distribution.svg  how many messages came within which latency
order.svg         what readers received, by stamp: in total order each reader's curve rises
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from weir.errors import BadRequest
from weir.spark.jobs.drawing import COLOURS, Axis, Curve, chart, standalone
from weir.spark.jobs.queries import Totals

#: So many points make a curve, and so many groups or readers have one.
BINS = 120
CURVES_MAX = COLOURS
_ACCURACY = 10_000
_HEIGHT = 300


@dataclass(frozen=True, slots=True)
class Figures:
    """What was drawn: `totals` are lines of records; `files` are paths."""

    totals: Totals
    files: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {**self.totals.to_json(), "files": asdict(self)["files"]}


def figures(rows: DataFrame, out: str) -> Figures:
    """Draw records, as `weir.spark.jobs.audit.records` returns them, into the folder `out`.

    Raises `BadRequest` if no record has a time of receipt or confirmation.
    """
    rows = rows.persist()
    try:
        counted = rows.agg(
            F.count("*").alias("lines"),
            F.count_if("is_good").alias("good"),
            F.count_if(~F.col("is_good")).alias("bad"),
        ).collect()[0]
        good = rows.where("is_good and at_us is not null")
        ends = good.agg(F.min("at_us").alias("begin"), F.max("at_us").alias("end")).collect()[0]
        if ends.begin is None:
            raise BadRequest(
                "no record says when a message was confirmed or received: write records by the "
                "option --record of weir pub, sub and tail"
            )
        seconds = max((ends.end - ends.begin) / 1e6, 1e-3)
        bin = F.least(
            ((F.col("at_us") - ends.begin) / 1e6 / seconds * BINS).cast("int"), F.lit(BINS - 1)
        )
        binned = good.withColumn("bin", bin)
        drawn = {
            "rates": _rates(binned, seconds),
            "latency": _latency(binned, seconds),
            "distribution": _distribution(good),
            "order": _order(good),
        }
    finally:
        rows.unpersist()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files = [_write(folder / f"{name}.svg", text) for name, text in drawn.items()]
    return Figures(Totals(counted.lines, counted.good, counted.bad), files)


def _rates(binned: DataFrame, seconds: float) -> str:
    name = F.when(F.col("kind") == "sent", F.lit("confirmed")).otherwise(F.col("group"))
    counts = binned.groupBy(name.alias("name"), "bin").agg(F.count("*").alias("count")).collect()
    wide = seconds / BINS
    found: dict[str, dict[int, int]] = {}
    for row in counts:
        found.setdefault(row.name, {})[row.bin] = row["count"]
    # The largest first; what is not drawn is the least.
    names = sorted(found, key=lambda name: (-sum(found[name].values()), name))[:CURVES_MAX]
    curves = [
        Curve(name, [((n + 0.5) * wide, found[name].get(n, 0) / wide) for n in range(BINS)], colour)
        for colour, name in enumerate(names)
    ]
    return chart(Axis("seconds"), Axis("messages/s"), curves, _HEIGHT)


def _latency(binned: DataFrame, seconds: float) -> str:
    wide = seconds / BINS
    rows = (
        _received(binned)
        .groupBy("bin")
        .agg(F.percentile_approx(_milliseconds(), [0.5, 0.99], _ACCURACY).alias("p"))
        .orderBy("bin")
        .collect()
    )
    curves = [
        Curve(name, [((row.bin + 0.5) * wide, row.p[at]) for row in rows], at)
        for at, name in enumerate(("p50", "p99"))
    ]
    return chart(Axis("seconds"), Axis("latency, ms", log=True, least=0.01), curves, _HEIGHT)


def _distribution(good: DataFrame) -> str:
    shares = [n / BINS for n in range(BINS + 1)]
    row = _received(good).agg(F.percentile_approx(_milliseconds(), shares, _ACCURACY)).collect()[0]
    points = [(max(at, 0.01), 100 * share) for at, share in zip(row[0] or [], shares, strict=False)]
    title = Axis("latency, ms", log=True, least=0.01)
    return chart(title, Axis("% of messages"), [Curve("received", points)], _HEIGHT)


def _order(good: DataFrame) -> str:
    """Draw stamps over receipts, `BINS` of each reader: milliseconds since the first stamp."""
    received = good.where("kind = 'received' and stamp is not null")
    readers = received.groupBy("reader").agg(F.count("*").alias("all"), F.min("stamp").alias("s"))
    largest = readers.orderBy(F.col("all").desc(), "reader").limit(CURVES_MAX).collect()
    if not largest:
        return chart(Axis("messages"), Axis("ms"), [], _HEIGHT)
    first = min(row.s for row in largest)
    numbered = received.where(F.col("reader").isin([row.reader for row in largest])).withColumn(
        "at", F.row_number().over(Window.partitionBy("reader").orderBy("n"))
    )
    sizes = {row.reader: row["all"] for row in largest}
    step = F.greatest(F.lit(max(sizes.values()) // BINS), F.lit(1))
    picked = numbered.where((F.col("at") - 1) % step == 0).orderBy("reader", "at").collect()
    curves = [
        Curve(
            row.reader,
            [(one.at, ((one.stamp - first) >> 16)) for one in picked if one.reader == row.reader],
            colour,
        )
        for colour, row in enumerate(largest)
    ]
    return chart(Axis("messages received"), Axis("stamp, ms"), curves, _HEIGHT)


def _received(rows: DataFrame) -> DataFrame:
    return rows.where("kind = 'received' and time_us is not null")


def _milliseconds() -> Column:
    return (F.col("at_us") - F.col("time_us")) / 1_000


def _write(path: Path, drawn: str) -> str:
    """Write a figure as a whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(standalone(drawn), encoding="utf-8")
    os.replace(part, path)
    return str(path)
