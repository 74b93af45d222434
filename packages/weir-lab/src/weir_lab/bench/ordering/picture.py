"""What total order costs as a drawing: a chart for each number of producers."""

from __future__ import annotations

from collections.abc import Sequence

from weir_lab.bench.comparison.plot import CHART, stacked
from weir_lab.bench.drawing import Axis, Curve, chart
from weir_lab.bench.ordering.measure import ORDERS, Result


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
