"""All that `weir bench order` measures, the figures that stand for it, and their drawing."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from weir.spark.jobs.drawing import Axis, Curve, chart
from weir.testing.nodes import READY, running_set
from weir_lab.bench.comparison.plot import CHART, stacked
from weir_lab.bench.ordering import idle as idles
from weir_lab.bench.ordering import lag as lags
from weir_lab.bench.ordering import readers as crowds
from weir_lab.bench.ordering.idle import Idle
from weir_lab.bench.ordering.lag import Lag
from weir_lab.bench.ordering.measure import ORDERS, Result, Say, Settings, measure
from weir_lab.bench.ordering.readers import Readers
from weir_lab.bench.sides.own import running_own

_NODES = 3
#: Messages a second while a leader is in trouble.
_RATE = 1_000


class Report(msgspec.Struct, frozen=True):
    """The worst of all rows on top; see `Result` for a row."""

    throughput_ratio: float
    sequencer_ratio: float
    #: Total order over several partitions, by what one partition does with as many producers: the
    #: lowest of them. 0 without a row of one partition.
    one_partition_ratio: float
    #: Total order with most producers by that with fewest, over as many partitions: the lowest.
    producers_ratio: float
    #: The same two by the number of partitions.
    throughput_ratio_of: dict[int, float]
    producers_ratio_of: dict[int, float]
    lost: int
    repeated: int
    misplaced: int
    rows: list[Result]
    idle: Idle | None
    lags: list[Lag]
    readers: Readers | None = None

    @property
    def clean(self) -> bool:
        """Whether every message arrived exactly once, unchanged and in order."""
        return all(row.clean for row in self.rows) and not any(lag.misplaced for lag in self.lags)


async def measure_all(
    plans: Sequence[Settings], idle: int, faults: bool, folder: str | None, say: Say,
    readers: int = 0,
) -> Report:  # fmt: skip
    """Measure each plan on a node of its own, then idle partitions, many readers, and faults on
    three nodes.
    """
    rows: list[Result] = []
    for plan in plans:
        with running_own(folder, plan.replicas) as side:
            rows.append(await measure(side, plan, say))
    promises = None
    if idle:
        with running_own(folder) as side:
            promises = await idles.measure(side, idles.Settings(idle))
        say(f"{idle} idle partitions: promises take {promises.promises_idle:.2f} % of a core")
    many = await crowds.measure(crowds.Settings(readers)) if readers else None
    struck: list[Lag] = []
    if faults:
        with (
            tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name,
            running_set(Path(name), _NODES, settings=READY) as nodes,
        ):
            struck = await lags.measure(nodes, _RATE)
    return report_of(rows, promises, struck, many)


def report_of(
    rows: list[Result], promises: Idle | None, struck: list[Lag], many: Readers | None = None
) -> Report:
    """Return the worst of the rows in each figure."""
    single = {row.producers: row.partition_per_s for row in rows if row.partitions == 1}
    several = [row for row in rows if row.partitions > 1 and row.producers in single]
    by_partitions: dict[int, list[Result]] = {}
    for row in rows:
        by_partitions.setdefault(row.partitions, []).append(row)
    spans = {
        count: max(same, key=_producers).total_per_s / min(same, key=_producers).total_per_s
        for count, same in by_partitions.items()
    }
    return Report(
        min(row.throughput_ratio for row in rows),
        min(row.sequencer_ratio for row in rows),
        min((row.total_per_s / single[row.producers] for row in several), default=0.0),
        min(spans.values()),
        {count: min(row.throughput_ratio for row in same) for count, same in by_partitions.items()},
        spans,
        sum(row.lost for row in rows),
        sum(row.repeated for row in rows),
        sum(row.misplaced for row in rows),
        rows,
        promises,
        struck,
        many,
    )


def _producers(row: Result) -> int:
    return row.producers


def svg(rows: Sequence[Result]) -> str:
    """Return the text of an SVG file: messages a second over partitions, the worst of the runs."""
    charts = []
    for producers in sorted({row.producers for row in rows}):
        same = [row for row in rows if row.producers == producers]
        curves = [
            Curve(order, [(row.partitions, _slowest(row, order)) for row in same], colour)
            for colour, order in enumerate(ORDERS)
        ]
        per_s = Axis(f"messages/s, {producers:,} producers")
        charts.append(chart(Axis("partitions"), per_s, curves, CHART))
    return stacked(charts)


def _slowest(row: Result, order: str) -> float:
    return min(run.messages_per_s for run in row.by_order[order])
