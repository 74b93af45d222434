"""Charts as SVG text: no dependency, no script, small enough to lie inside a page.

Colours come from the page's style sheet (`STYLE`), which follows the reader's light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: To be put into the page once.
STYLE = """
svg.chart { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg.chart text { fill: var(--soft); }
svg.chart .grid { stroke: var(--line); stroke-width: 1; }
svg.chart .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg.chart .name { font-weight: 600; }
:root { --ink: #1d2530; --soft: #5c6773; --line: #e3e7ec; --paper: #ffffff; --panel: #f7f9fb;
  --c0: #1f6feb; --c1: #d9480f; --c2: #2b8a3e; --c3: #862e9c; --c4: #0b7285; --c5: #a61e4d;
  --low: #e7f0fd; --high: #a4133c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b1; --line: #2b333d;
  --paper: #12161b; --panel: #1a2027; --c0: #6ea8fe; --c1: #ff922b; --c2: #69db7c; --c3: #da77f2;
  --c4: #3bc9db; --c5: #f783ac; --low: #1c2a3d; --high: #ff6b8b; } }
"""
COLOURS = 6

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 26, 34
_TICKS = 5
#: Values that differ by less are drawn as one.
_FLAT = 1e-9


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line through (x, y) points; a y that is NaN breaks the line."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Dots:
    """Named points that no line joins."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis says, and whether it is logarithmic (values from `least` up then)."""

    title: str
    log: bool = False
    least: float = 0.0


def chart(x: Axis, y: Axis, drawn: Sequence[Curve | Dots], height: int = _HEIGHT) -> str:
    """Return a chart of curves and dots over common axes; the legend is above it."""
    points = [p for one in drawn for p in one.points if not math.isnan(p[1])]
    across = _Scale(x, [p[0] for p in points], _LEFT, _WIDTH - _RIGHT)
    up = _Scale(y, [p[1] for p in points], height - _BOTTOM, _TOP)
    parts = [*_grid(across, up, height), *_legend([(one.name, one.colour) for one in drawn])]
    for one in drawn:
        parts.append(_curve(one, across, up) if isinstance(one, Curve) else _dots(one, across, up))
    return _svg(height, f"{y.title} over {x.title}", parts)


def bars(names: Sequence[str], values: Sequence[float], unit: str) -> str:
    """Return one horizontal bar a value, each with its name and number."""
    height = 26 * len(names) + 8
    most = max([*values, 0.0]) or 1.0
    room = _WIDTH - 150 - 130
    parts = []
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        at, long = 8 + 26 * row, max(value, 0.0) / most * room
        parts.append(f'<text x="142" y="{at + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect x="150" y="{at}" width="{long:.1f}" height="18" rx="2" fill="var(--c0)"/>'
        )
        parts.append(f'<text x="{156 + long:.1f}" y="{at + 13}">{number(value)} {unit}</text>')
    return _svg(height, f"bars in {unit}", parts)


def heat(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[float | None]], unit: str
) -> str:
    """Return a table of coloured cells, darker for more; a cell that is None stays empty."""
    known = [cell for line in cells for cell in line if cell is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    left, top, tall = 150, 24, 22
    wide = (_WIDTH - left - 8) / max(len(columns), 1)
    parts = [
        f'<text x="{left + wide * (n + 0.5):.1f}" y="16" text-anchor="middle">{escape(name)}</text>'
        for n, name in enumerate(columns)
    ]
    for line, (name, its) in enumerate(zip(rows, cells, strict=True)):
        y = top + tall * line
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        for n, cell in enumerate(its):
            if cell is None:
                continue
            share = (cell - low) / (high - low) if high > low else 0.0
            fill = f"color-mix(in oklab, var(--high) {share:.0%}, var(--low))"
            parts.append(
                f'<rect x="{left + wide * n:.1f}" y="{y}" width="{wide - 1.5:.1f}" '
                f'height="{tall - 2}" style="fill:{fill}"><title>{escape(name)}, '
                f"{escape(columns[n])}: {number(cell)} {unit}</title></rect>"
            )
    return _svg(top + tall * len(rows) + 6, f"cells in {unit}", parts)


def standalone(drawn: str) -> str:
    """Return a chart as a document of its own, which browsers and papers' tools show."""
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    style = f"<style>{STYLE}svg.chart {{ background: var(--paper); }}</style>"
    return drawn.replace("<svg ", head, 1).replace(">", f">{style}", 1) + "\n"


def number(value: float) -> str:
    """Write a number for people: 1,234,567, 12.3, 0.04, or 1.2M where it is large and round."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2g}" if size < 1 else f"{value:.3g}"


class _Scale:
    """From values of an axis to places on the page."""

    def __init__(self, axis: Axis, values: Sequence[float], first: float, last: float) -> None:
        self.axis = axis
        self.first, self.last = first, last
        self.low: float
        self.high: float
        if axis.log:
            least = max(min(values, default=1.0), axis.least or 1e-9)
            self.low = math.floor(math.log10(least))
            most = max([*values, least])
            self.high = max(math.ceil(math.log10(most)), self.low + 1)
            self.ticks = [10.0**power for power in range(self.low, self.high + 1)]
        else:
            self.low = min([axis.least, *values])
            step = _step(max([*values, axis.least]) - self.low)
            self.high = self.low + step * max(math.ceil(_span(values, self.low) / step), 1)
            self.ticks = [
                self.low + step * n for n in range(round((self.high - self.low) / step) + 1)
            ]

    def at(self, value: float) -> float:
        if self.axis.log:
            value = math.log10(max(value, 10.0**self.low))
        share = (value - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)


def _span(values: Sequence[float], low: float) -> float:
    return max([*values, low]) - low


def _step(span: float) -> float:
    """Return a round distance between ticks: 1, 2 or 5 times a power of ten."""
    if span < _FLAT:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(span / _TICKS))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * _TICKS >= span)


def _grid(across: _Scale, up: _Scale, height: int) -> list[str]:
    parts = []
    for tick in up.ticks:
        y = up.at(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        )
    for tick in across.ticks:
        parts.append(
            f'<text x="{across.at(tick):.1f}" y="{height - 18}" text-anchor="middle">'
            f"{number(tick)}</text>"
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{height - 4}" text-anchor="middle">{escape(across.axis.title)}'
        f'</text><text x="4" y="14">{escape(up.axis.title)}</text>'
    )
    return parts


def _legend(names: Sequence[tuple[str, int]]) -> list[str]:
    parts, x = [], _WIDTH - _RIGHT
    for name, colour in reversed(names):
        x -= 7 * len(name)
        parts.append(
            f'<text class="name" x="{x}" y="14" style="fill:var(--c{colour % COLOURS})">'
            f"{escape(name)}</text>"
        )
        x -= 16
    return parts


def _curve(curve: Curve, across: _Scale, up: _Scale) -> str:
    path, pen = [], "M"
    for x, y in curve.points:
        if math.isnan(y):
            pen = "M"
            continue
        path.append(f"{pen}{across.at(x):.1f} {up.at(y):.1f}")
        pen = "L"
    colour = curve.colour % COLOURS
    return f'<path class="curve" style="stroke:var(--c{colour})" d="{"".join(path)}"/>'


def _dots(dots: Dots, across: _Scale, up: _Scale) -> str:
    colour = dots.colour % COLOURS
    circles = "".join(
        f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="2.4"/>' for x, y in dots.points
    )
    return f'<g style="fill:var(--c{colour})" fill-opacity="0.75">{circles}</g>'


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'
    )
