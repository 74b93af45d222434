"""The demo's report as one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from weir.spark.jobs.drawing import STYLE, Axis, Curve, Dots, chart, heat, number
from weir_lab.demo.flights import ORIGINS
from weir_lab.demo.order import Sameness
from weir_lab.demo.outcome import Outcome
from weir_lab.demo.recording import History, Points
from weir_lab.demo.weather.picture import FLIGHTS_MIN, picture
from weir_lab.demo.worst import HOUR_FLIGHTS_MIN

_HOURS = range(5, 24)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>weir demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}
body {{ margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }}
main {{ max-width: 860px; margin: 0 auto; padding: 32px 20px 64px; }}
h1 {{ font-size: 28px; margin: 0; }} h2 {{ font-size: 19px; margin: 44px 0 4px; }}
p {{ margin: 4px 0 12px; color: var(--soft); }}
.verdict {{ font-size: 18px; color: var(--ink); border-left: 4px solid var(--{mood});
  padding: 6px 0 6px 14px; margin: 18px 0; }}
.panel {{ background: var(--panel); border-radius: 8px; padding: 12px 14px 6px;
  overflow-x: auto; }}
.panel + .panel {{ margin-top: 12px; }} .pair .panel {{ margin-top: 0; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th {{ text-align: right; color: var(--soft); font-weight: 500; padding: 4px 8px; }}
td {{ text-align: right; padding: 4px 8px; border-top: 1px solid var(--line); }}
th:first-child, td:first-child {{ text-align: left; }}
.pair {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 12px;
  margin-top: 12px; }}
</style></head><body><main>
<h1>weir: the flights of three airports</h1>
{body}
</main></body></html>
"""


def page(
    outcome: Outcome,
    rates: Mapping[str, Points],
    latencies: Mapping[str, Points],
    histories: Sequence[History],
    delays: Iterable[Mapping[str, Any]],
    airlines: Mapping[str, str],
) -> str:
    """Return the page; `delays` are the rows of the table that Spark wrote."""
    body = [
        _verdict(outcome),
        "<h2>Every message, counted</h2>",
        "<p>What each airport sent against what the crew received, by the ledgers of both.</p>",
        _accounts(outcome),
        "<h2>One order over all airports</h2>",
        f"<p>{_about_orders(outcome)}</p>",
        _orders(outcome),
        f'<div class="pair">{"".join(map(_example, _both(outcome)))}</div>',
        "<h2>Rates over time</h2>",
        "<p>A paced beginning, for latencies without a queue; then as fast as it goes.</p>",
        _panel(_curves(rates, Axis("seconds since the first flight"), Axis("messages/s"))),
        "<h2>Latency over time</h2>",
        "<p>From the send, by the moment of sending. Confirmed means: on the disk, synced.</p>",
        _panel(
            _curves(
                latencies,
                Axis("seconds since the first flight"),
                Axis("milliseconds", log=True, least=0.1),
            )
        ),
        "<h2>The delay picture</h2>",
        "<p>Mean departure delay in minutes by airline and hour of day, from the table that Spark "
        f"wrote; hours with fewer than {HOUR_FLIGHTS_MIN} flights are left out.</p>",
        _panel(_delays(delays, airlines)),
        "<h2>Wind and visibility</h2>",
        f"<p>{_about_weather(outcome)}</p>",
        _joined(outcome),
        *_weather(outcome),
        "<h2>Plane histories</h2>",
        f"<p>{_about(histories)}</p>",
        f'<div class="pair">{"".join(_panel(_history(history)) for history in histories)}</div>',
    ]
    return _PAGE.format(style=STYLE, mood="c2" if outcome.clean else "high", body="\n".join(body))


def _panel(inside: str) -> str:
    return f'<div class="panel">{inside}</div>'


def _verdict(outcome: Outcome) -> str:
    if outcome.clean:
        said = (
            f"Each of {outcome.sent:,} flights was confirmed, reached the crew once and in order "
            "of its airport, with not a byte changed, and was counted once by Spark. Every reader "
            "saw all airports in one order, and Spark joined each flight with its weather at a "
            "barrier, as the files have it."
        )
    else:
        said = "Not as it should be: see the counts below."
    return f'<p class="verdict">{said}</p>'


def _accounts(outcome: Outcome) -> str:
    columns = ("sent", "confirmed", "delivered", "lost", "repeated", "out_of_order")
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in ("airport", *columns))
    rows = [
        (account.origin, *(f"{getattr(account, name):,}" for name in columns))
        for account in outcome.airports
    ]
    rows.append(("all", *(f"{outcome.total(name):,}" for name in columns)))
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return _panel(f"<table><tr>{head}</tr>{lines}</table>")


def _both(outcome: Outcome) -> tuple[Sameness, Sameness]:
    return outcome.orders.total, outcome.orders.apart


def _about_orders(outcome: Outcome) -> str:
    total, apart = _both(outcome)
    return (
        f"{total.planes:,} planes left from more than one airport, and an airport is a partition: "
        "no partition knows the order of such a plane's flights. Two readers followed the airports "
        f"live and a third replayed everything afterwards. In total order {total.differing:,} "
        "planes were seen in differing orders. What the third one read was then copied, in its "
        "order, to a topic of which only each partition has an order, and read in the same way: "
        f"there {apart.differing:,} planes were seen in differing orders."
    )


def _orders(outcome: Outcome) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in ("topic", "readers", "messages each", "planes", "in differing orders")
    )
    lines = "".join(
        f"<tr><td>{escape(one.topic)}</td><td>{len(one.messages)}</td>"
        f"<td>{min(one.messages):,}</td><td>{one.planes:,}</td><td>"
        f"{f'{one.differing:,}' if one.complete else 'messages are missing'}</td></tr>"
        for one in _both(outcome)
    )
    return _panel(f"<table><tr>{head}</tr>{lines}</table>")


def _example(readers: Sameness) -> str:
    example = readers.example
    if example is None:
        return ""
    dots = [
        Dots(name, [(x, y) for airport, x, y in example.flights if airport == n], n)
        for n, name in enumerate(ORIGINS)
    ]
    title = f"<b>{escape(example.plane)}</b> in {escape(readers.topic)}"
    return _panel(
        title
        + chart(
            Axis("place with the first reader"),
            Axis("place with another"),
            [one for one in dots if one.points],
        )
    )


def _curves(curves: Mapping[str, Points], x: Axis, y: Axis) -> str:
    return chart(x, y, [Curve(name, points, n) for n, (name, points) in enumerate(curves.items())])


def _delays(rows: Iterable[Mapping[str, Any]], airlines: Mapping[str, str]) -> str:
    means = {
        (row["carrier"], row["hour"]): row["mean_delay"]
        for row in rows
        if row["flights"] >= HOUR_FLIGHTS_MIN
    }
    carriers = sorted({carrier for carrier, _ in means}, key=lambda c: airlines.get(c, c))
    cells = [[means.get((carrier, hour)) for hour in _HOURS] for carrier in carriers]
    names = [_short(airlines.get(carrier, carrier)) for carrier in carriers]
    return heat(names, [str(hour) for hour in _HOURS], cells, "min")


def _about_weather(outcome: Outcome) -> str:
    joined = outcome.joined
    return (
        "Flights and weather are two topics that one Spark query reads, both cut at the same "
        "barriers. An airport tells the weather of an hour before its flights of that hour, so a "
        "micro-batch needs no watermark and no waiting: the weather of each of its flights lies "
        "before its barrier. The files of the data set were read and joined again, without weir "
        f"and without Spark: in {joined.differing:,} of {len(joined.source.cells):,} cells of "
        "airport, wind and visibility the two differ. Below, what has fewer than "
        f"{FLIGHTS_MIN} flights is left out."
    )


def _joined(outcome: Outcome) -> str:
    spark, source = outcome.joined.spark, outcome.joined.source
    lines = "".join(
        f"<tr><td>{what}</td><td>{theirs:,}</td><td>{ours:,}</td></tr>"
        for what, theirs, ours in (
            ("flights", source.flights, spark.flights),
            ("observations of the weather", source.observations, spark.observations),
            ("flights with weather", source.joined, spark.joined),
        )
    )
    head = "<tr><th></th><th>in the files</th><th>in Spark</th></tr>"
    return _panel(f"<table>{head}{lines}</table>")


def _weather(outcome: Outcome) -> list[str]:
    *curves, both = picture(outcome.joined.cells)
    return [
        *map(_panel, curves),
        "<p>Mean departure delay in minutes by visibility and wind, all airports together.</p>",
        _panel(both),
    ]


def _about(histories: Sequence[History]) -> str:
    if not histories:
        return "No plane of this run left from more than one airport."
    pairs = sum(max(len(history.flights) - 1, 0) for history in histories)
    inverted = sum(history.inverted for history in histories)
    misplaced = sum(history.misplaced for history in histories)
    return (
        "Planes that change between airports: each dot is a flight, by day of departure and by its "
        "place in the order in which the crew received the plane's flights. An airport is a "
        f"partition, and a partition keeps its order: {misplaced} neighbours lie the wrong way "
        "round in it. But partitions do not wait for each other, and neither do the three "
        f"consumers that share them: {inverted} of {pairs} neighbours reached the crew the wrong "
        "way round."
    )


def _history(history: History) -> str:
    dots = [
        Dots(name, [(day, at) for airport, day, at in history.flights if airport == n], n)
        for n, name in enumerate(ORIGINS)
    ]
    shown = [one for one in dots if one.points]
    return f"<b>{escape(history.plane)}</b>, {number(len(history.flights))} flights" + chart(
        Axis("day of the year"), Axis("place in arrival"), shown
    )


def _short(name: str) -> str:
    return name.split(" Air")[0][:18]
