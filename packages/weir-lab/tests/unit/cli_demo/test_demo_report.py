"""What the demo tells: figures from the ledgers, faults in plain sight, lines that fit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from weir_lab.demo.flights import ORIGINS
from weir_lab.demo.ledger import Received, Sent
from weir_lab.demo.order import Orders, Sameness
from weir_lab.demo.outcome import Joined, Outcome, settle
from weir_lab.demo.report import results, tell
from weir_lab.demo.tasks import Counted, paced_count
from weir_lab.demo.weather.cells import Cell, Delayed
from weir_lab.demo.weather.source import Source
from weir_lab.demo.worst import by_carrier

COUNT = 120_000
SECONDS = dict.fromkeys(
    ("spark_reads", "replayed", "delivered", "read_by_spark", "counted", "total"), 99.4
)
ROWS: list[dict[str, Any]] = [
    {"carrier": "EV", "hour": 6, "flights": 200, "cancelled": 50, "mean_delay": 10.0,
     "max_delay": 90.0},
    {"carrier": "EV", "hour": 19, "flights": 150, "cancelled": 0, "mean_delay": 40.0,
     "max_delay": 853.0},
    {"carrier": "EV", "hour": 23, "flights": 1, "cancelled": 0, "mean_delay": 500.0,
     "max_delay": 500.0},
    {"carrier": "HA", "hour": 10, "flights": 2, "cancelled": 2, "mean_delay": None,
     "max_delay": None},
]  # fmt: skip


def orders(differing: int) -> Orders:
    """Three readers of each topic, who differ about so many planes where they must not."""
    total = Sameness("flights", [3 * COUNT] * 3, True, 2_850, differing, None)
    return Orders(total, Sameness("flights-apart", [3 * COUNT] * 3, True, 2_850, 2_773, None))


CELLS = {Cell("EWR", 5, 10): Delayed(3 * COUNT, 3 * COUNT, 0, 12.0)}
SOURCE = Source(3 * COUNT, 26_115, 355_000, CELLS)


def outcome(
    lose: int = 0, counted: int = 3 * COUNT, seen: int = 0, source: Source = SOURCE, bad: int = 0
) -> Outcome:
    """A run that sent a message every 5 µs and delivered each 5 ms later, but the last few."""
    sent, crew = {}, {"shares": np.array([1, 2, 3]), "stale": np.array([0])}
    for origin in ORIGINS:
        ledger, received = Sent.blank(COUNT), Received()
        ledger.sent_us = np.arange(COUNT, dtype=np.int64) * 5
        ledger.confirmed_us = ledger.sent_us + 2_000
        ledger.offsets = np.arange(COUNT, dtype=np.int64)
        numbers = range(COUNT - lose)
        received.receive(0, numbers, [], 0)
        columns = dict(received.columns())
        columns["received_us"] = ledger.sent_us[: COUNT - lose] + 5_000
        crew |= {f"{origin}.{name}": column for name, column in columns.items()}
        sent[origin] = ledger
    spark = Counted(counted, 8_255, 207, "/x/delays", 26_115, 355_000, bad, "/x/by-weather")
    return settle(sent, crew, Joined(spark, CELLS, source), orders(seen), SECONDS)


def text(run: Outcome) -> str:
    out = io.StringIO()
    names = {"EV": "ExpressJet Airlines Inc."}
    tell(
        Console(file=out, width=80),
        run,
        by_carrier(ROWS),
        names,
        Path("/x/delays"),
        Path("/x/by-weather"),
        Path("/x/delays.html"),
    )
    return out.getvalue()


def as_json(run: Outcome) -> dict[str, Any]:
    folder = Path("/x")
    return results(run, by_carrier(ROWS), folder, folder / "by-weather", folder / "x.html")


def test_latencies_and_rates_come_from_the_ledgers() -> None:
    run = outcome()
    assert run.clean
    assert run.paced.confirm.p50_ms == 2.0
    assert run.full.delivery.max_ms == 5.0
    assert run.paced.delivery.count == 3 * paced_count(COUNT)
    assert run.full.delivery.count == 3 * (COUNT - paced_count(COUNT))
    assert run.rates.airports["EWR"] == pytest.approx(200_000, rel=0.05)
    assert run.rates.delivered == pytest.approx(600_000, rel=0.05)


def test_lost_messages_are_told_and_not_clean() -> None:
    run = outcome(lose=2)
    assert not run.clean
    assert "Not as it should be: lost 6," in text(run)
    assert as_json(run)["lost"] == 6


def test_a_message_that_spark_counted_twice_is_not_clean() -> None:
    run = outcome(counted=3 * COUNT + 1)
    assert not run.clean
    assert "Spark counted 360,001 of 360,000" in text(run)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (Source(360_001, 26_115, 355_000, CELLS), "360,000 flights, and the files hold 360,001"),
        (Source(360_000, 26_116, 355_000, CELLS), "26,115 observations, and the files hold 26,116"),
        (Source(360_000, 26_115, 354_999, CELLS), "355,000 flights with weather, and the files"),
        (Source(360_000, 26_115, 355_000, {}), "1 cells of wind and visibility differ"),
    ],
)
def test_what_spark_joined_otherwise_than_the_files_is_not_clean(source: Source, told: str) -> None:
    run = outcome(source=source)
    assert not run.clean
    assert told in text(run)
    assert as_json(run)["weather"]["as_in_the_files"] is False


def test_a_message_that_is_neither_flight_nor_weather_is_not_clean() -> None:
    run = outcome(bad=1)
    assert not run.clean
    assert "1 bad messages, and the files hold 0" in text(run)


def test_planes_in_differing_orders_are_told_where_one_order_was_promised() -> None:
    assert outcome().clean, "a topic in partition order promises no more"
    run = outcome(seen=3)
    assert not run.clean
    assert "readers did not see one order" in text(run)
    told = as_json(run)["orders"]
    assert told["total"]["planes_in_differing_orders"] == 3
    assert told["partition"]["planes_in_differing_orders"] == 2_773


def test_the_report_fits_a_terminal_and_leaves_nothing_out() -> None:
    told = text(outcome())
    assert [line for line in told.splitlines() if len(line) > 80] == []
    assert "…" not in told
    assert "Each of 360,000 flights" in told
    assert "ExpressJet Airlines " in told
    assert "/x/delays" in told


def test_results_are_json() -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(as_json(outcome())))
    assert decoded["clean"] is True
    assert decoded["airports"][0]["origin"] == "EWR"
    assert decoded["weather"] == {
        "observations": 26_115, "flights_joined": 355_000, "cells": 1, "cells_differing": 0,
        "as_in_the_files": True,
    }  # fmt: skip
    assert decoded["worst_delays"][0]["carrier"] == "EV"


def test_a_carriers_mean_weighs_its_hours_by_departures() -> None:
    worst = by_carrier(ROWS)
    assert [delays.carrier for delays in worst] == ["EV", "HA"]
    assert worst[0].mean_delay == pytest.approx((150 * 10 + 150 * 40 + 500) / 301)
    assert (worst[0].worst_hour, worst[0].max_delay) == (19, 853.0)
    assert (worst[1].mean_delay, worst[1].worst_hour) == (0.0, None)
