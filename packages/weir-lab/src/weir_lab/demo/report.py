"""What the demo tells at the end: tables for people, one object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from weir_lab.demo.flights import DEVICE_ORIGIN
from weir_lab.demo.ledger import Account, Latency
from weir_lab.demo.order import Sameness
from weir_lab.demo.outcome import Latencies, Outcome
from weir_lab.demo.tasks import PACED_PER_SECOND
from weir_lab.demo.worst import Delays

_WORST = 5
_FAULTS = ("lost", "repeated", "strange", "misplaced", "out_of_order")


def results(
    outcome: Outcome, worst: Sequence[Delays], parquet: Path, weather: Path, report: Path
) -> dict[str, Any]:
    """Return the results for `--json`."""
    counted = ("sent", "confirmed", "delivered", *_FAULTS)
    orders = outcome.orders
    return {
        "clean": outcome.clean,
        **{field: outcome.total(field) for field in counted},
        "intact": all(account.intact for account in outcome.airports),
        "airports": outcome.airports,
        "consumers": outcome.shares,
        "stale_acks": outcome.stale,
        "paced": outcome.paced,
        "full_speed": outcome.full,
        "messages_per_s": outcome.rates,
        "spark": outcome.spark,
        "weather": {
            "observations": outcome.joined.source.observations,
            "flights_joined": outcome.joined.source.joined,
            "cells": len(outcome.joined.source.cells),
            "cells_differing": outcome.joined.differing,
            "as_in_the_files": not outcome.joined.faults,
        },
        "orders": {"total": _agreed(orders.total), "partition": _agreed(orders.apart)},
        "worst_delays": worst,
        "parquet": str(parquet),
        "parquet_weather": str(weather),
        "report": str(report),
        "seconds": outcome.seconds,
    }


def tell(
    console: Console,
    outcome: Outcome,
    worst: Sequence[Delays],
    names: dict[str, str],
    parquet: Path,
    weather: Path,
    report: Path,
) -> None:
    """Print the report; `names` are the airlines' by carrier code."""
    console.print()
    console.print(_ledgers(outcome))
    console.print()
    console.print(_latencies(outcome))
    console.print()
    console.print(_orders(outcome))
    console.print()
    console.print(_worst(worst, names))
    console.print()
    console.print(_weather(outcome))
    console.print()
    for line in _summary(outcome, parquet, weather, report):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(_verdict(outcome), soft_wrap=True)


def _table(first: str, *columns: str) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 1), header_style="dim", title_justify="left"
    )
    table.add_column(f"  {first}", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _ledgers(outcome: Outcome) -> Table:
    table = _table(
        "[bold]airport[/]", "sent", "confirmed", "delivered", "lost", "repeated", "reordered",
        "msg/s",
    )  # fmt: skip
    rates = outcome.rates
    for account in outcome.airports:
        way = "device" if account.origin == DEVICE_ORIGIN else "client"
        table.add_row(
            f"  [bold]{account.origin}[/] [dim]{way}[/]",
            *_counts(account),
            _rate(rates.airports.get(account.origin, 0.0)),
        )
    table.add_row(
        "  [bold]all[/]",
        *(
            f"[bold]{_number(outcome.total(field))}[/]"
            for field in ("sent", "confirmed", "delivered")
        ),
        *(_fault(outcome.total(field)) for field in ("lost", "repeated", "out_of_order")),
        f"[bold]{_rate(rates.confirmed)}[/]",
    )
    return table


def _counts(account: Account) -> list[str]:
    return [
        _number(account.sent),
        _number(account.confirmed),
        _number(account.delivered),
        _fault(account.lost),
        _fault(account.repeated),
        _fault(account.out_of_order),
    ]


def _latencies(outcome: Outcome) -> Table:
    table = _table("[bold]latency from send, ms[/]", "p50", "p99", "max", "messages")
    airports = len(outcome.airports)
    for title, measured in (
        (f"{airports * PACED_PER_SECOND} flights/s, no queue:", outcome.paced),
        ("full speed, queues full:", outcome.full),
    ):
        for what, figures in _pairs(measured):
            table.add_row(
                f"  {title} [dim]{what}[/]",
                _milliseconds(figures.p50_ms),
                _milliseconds(figures.p99_ms),
                _milliseconds(figures.max_ms),
                _number(figures.count),
            )
    return table


def _pairs(measured: Latencies) -> list[tuple[str, Latency]]:
    return [("to confirm", measured.confirm), ("to consumer", measured.delivery)]


def _agreed(readers: Sameness) -> dict[str, Any]:
    return {
        "topic": readers.topic,
        "readers": len(readers.messages),
        "messages": readers.messages,
        "complete": readers.complete,
        "planes_of_several_airports": readers.planes,
        "planes_in_differing_orders": readers.differing,
    }


def _orders(outcome: Outcome) -> Table:
    table = _table(
        "[bold]one order for all?[/]", "readers", "each saw", "planes", "orders differ",
    )  # fmt: skip
    orders = outcome.orders
    for title, readers in (("total order", orders.total), ("partition order", orders.apart)):
        differing = _number(readers.differing) if readers.complete else "not all came"
        if readers is orders.total:
            good = readers.one_order
            differing = f"[green]{differing}[/]" if good else f"[bold red]{differing}[/]"
        table.add_row(
            f"  {title} [dim]{readers.topic}[/]",
            _number(len(readers.messages)),
            _number(min(readers.messages)),
            _number(readers.planes),
            differing,
        )
    return table


def _worst(worst: Sequence[Delays], names: dict[str, str]) -> Table:
    table = _table("[bold]worst delays[/]", "flights", "cancelled", "mean", "worst hour", "longest")
    for delays in worst[:_WORST]:
        hour = "-"
        if delays.worst_hour is not None:
            hour = f"{delays.worst_hour:02}:00 {delays.worst_hour_delay:+.0f} min"
        hours, minutes = divmod(round(delays.max_delay), 60)
        table.add_row(
            f"  {_short(names.get(delays.carrier, delays.carrier))}",
            _number(delays.flights),
            f"{delays.cancelled / delays.flights:.1%}",
            f"{delays.mean_delay:+.1f} min",
            hour,
            f"{hours} h {minutes:02}",
        )
    return table


def _weather(outcome: Outcome) -> Table:
    joined = outcome.joined
    table = _table("[bold]joined at barriers[/]", "in the files", "in Spark", "differ")
    for what, theirs, ours in (
        ("flights", joined.source.flights, joined.spark.flights),
        ("observations of the weather", joined.source.observations, joined.spark.observations),
        ("flights with weather", joined.source.joined, joined.spark.joined),
    ):
        table.add_row(f"  {what}", _number(theirs), _number(ours), _fault(abs(theirs - ours)))
    table.add_row(
        "  cells of airport, wind, visibility",
        _number(len(joined.source.cells)),
        _number(len(joined.cells)),
        _fault(joined.differing),
    )
    return table


def _summary(outcome: Outcome, parquet: Path, weather: Path, report: Path) -> list[str]:
    shares = ", ".join(_number(share) for share in outcome.shares)
    spark, seconds = outcome.spark, outcome.seconds
    return [
        f"  [bold]crew[/]   {len(outcome.shares)} consumers shared the flights: {shares} "
        f"({_rate(outcome.rates.delivered)}/s)",
        f"  [bold]Spark[/]  counted {_number(spark.flights)} flights, {_number(spark.cancelled)} "
        f"cancelled; {spark.rows} rows written",
        f"  [bold]time[/]   {_seconds(seconds, 'total')} in all: replayed after "
        f"{_seconds(seconds, 'replayed')}, delivered after {_seconds(seconds, 'delivered')};",
        f"         Spark had its first batch after {_seconds(seconds, 'spark_reads')}, "
        f"all after {_seconds(seconds, 'read_by_spark')}, wrote by "
        f"{_seconds(seconds, 'counted')}",
        f"  [bold]read[/]   {parquet}",
        f"         {weather}",
        f"  [bold]look[/]   {report}",
    ]


def _verdict(outcome: Outcome) -> str:
    if outcome.clean:
        return (
            f"  [bold green]Each of {_number(outcome.sent)} flights was confirmed, reached the "
            "crew once and in order,\n  with not a byte changed, and was counted once by Spark.\n"
            "  Every reader saw all airports in one order, and Spark joined each flight\n"
            "  with its weather at a barrier, as the files have it.[/]"
        )
    wrong = [f"{field.replace('_', ' ')} {outcome.total(field):,}" for field in _FAULTS]
    wrong.append(f"Spark counted {outcome.spark.flights:,} of {outcome.sent:,}")
    wrong += outcome.joined.faults
    if not outcome.orders.kept:
        wrong.append("readers did not see one order, or not everything")
    if not all(account.intact for account in outcome.airports):
        wrong.append("the bytes delivered are not those sent")
    return f"  [bold red]Not as it should be: {', '.join(wrong)}.[/]"


def _short(name: str) -> str:
    """Return an airline's name without what lawyers add to it."""
    for legal in (" Inc.", " Co.", " Corporation"):
        name = name.removesuffix(legal)
    return name


def _number(count: int) -> str:
    return f"{count:,}"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}"


def _seconds(seconds: dict[str, float], what: str) -> str:
    # What never happened has no time: Spark reads nothing of an empty topic.
    return f"{seconds[what]:.0f} s" if what in seconds else "-"


def _milliseconds(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _fault(count: int) -> str:
    return f"[green]{count}[/]" if count == 0 else f"[bold red]{count:,}[/]"
