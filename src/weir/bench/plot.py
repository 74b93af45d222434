"""A comparison as one SVG file: a group of bars for each amount, no dependency."""

from __future__ import annotations

from html import escape

from weir.bench.compare import Comparison
from weir.bench.drawing import STYLE, bars

_WIDTH = 720
_TITLE = 34
_BAR = 26
_EDGE = 8


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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {_WIDTH} {top}" '
        f'style="background: var(--paper)"><style>{escape(STYLE)}</style>{"".join(parts)}</svg>\n'
    )
