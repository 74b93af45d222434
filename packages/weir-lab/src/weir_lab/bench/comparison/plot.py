"""A comparison as one SVG file, no dependency: bars for each amount, or curves over amounts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from weir.spark.jobs.drawing import STYLE, Axis, Curve, bars, chart
from weir_lab.bench.comparison.compare import Comparison
from weir_lab.bench.comparison.round import Row

_WIDTH = 720
_TITLE = 34
_BAR = 26
_EDGE = 8
#: How high one of several curves' charts is.
CHART = 260
#: Shares are drawn from here on, in percent, or from the lowest one.
_SHARE_LEAST = 90.0


def svg(comparison: Comparison, title: str) -> str:
    """Return the text of the file; sides that came to no figure are left out."""
    parts = []
    top = 0
    for one in comparison.rounds:
        rows = [(row.side, row.figure) for row in one.rows if row.figure is not None]
        names, figures = [side for side, _ in rows], [figure for _, figure in rows]
        head = f"{title}, {one.amount:,}"
        parts.append(f'<text x="{_EDGE}" y="{top + 22}" class="name">{escape(head)}</text>')
        height = _BAR * len(rows) + _EDGE
        drawn = bars(names, figures, comparison.unit)
        place = f'<svg y="{top + _TITLE}" width="{_WIDTH}" height="{height}" '
        parts.append(drawn.replace("<svg ", place, 1))
        top += _TITLE + height
    return _page(parts, top)


def svg_of_dormitory(comparison: Comparison) -> str:
    """Return the text of the file with the paper's two figures: response time, and share."""
    sides = [row.side for row in comparison.rounds[0].rows] if comparison.rounds else []
    seconds, shares = [], []
    for place, side in enumerate(sides):
        rows = [one.rows[place] for one in comparison.rounds]
        seconds.append(Curve(side, [(row.amount, _seconds(row)) for row in rows], place))
        shares.append(Curve(side, [(row.amount, _percent(row)) for row in rows], place))
    devices = Axis("devices within a second")
    drawn = (
        chart(devices, Axis("s to the last reply"), seconds, CHART),
        chart(devices, Axis("% recorded", least=_SHARE_LEAST), shares, CHART),
    )
    return stacked(drawn)


def stacked(charts: Sequence[str]) -> str:
    """Return the text of a file with charts of height `CHART`, one below the other."""
    parts = [
        one.replace("<svg ", f'<svg y="{n * CHART}" width="{_WIDTH}" height="{CHART}" ', 1)
        for n, one in enumerate(charts)
    ]
    return _page(parts, len(charts) * CHART)


def _seconds(row: Row) -> float:
    return math.nan if row.error is not None else float(row.result.seconds)


def _percent(row: Row) -> float:
    return math.nan if row.error is not None else 100 * float(row.result.share_recorded)


def _page(parts: list[str], height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {_WIDTH} {height}" '
        f'style="background: var(--paper)"><style>{escape(STYLE)}</style>{"".join(parts)}</svg>\n'
    )
