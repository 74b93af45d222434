"""The page of figures of streaming queries: what it says, and how it is served."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from weir.errors import BadOption
from weir.order.clock import stamp_at
from weir.spark.monitoring.page import Page, families
from weir.spark.monitoring.readers import Lag, Told
from weir.spark.monitoring.standing import Position, Standing
from weir.spark.planning import Cut


def samples(queries: list[Standing], told: Told, now_ms: int = 0) -> dict[str, str]:
    lines = [line for family in families(queries, told, now_ms) for line in family.lines()]
    found = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    assert len({name for name, _ in found}) == len(found)  # Prometheus takes no sample twice
    return {name.removeprefix("weir_spark_"): value for name, value in found}


def test_the_broker_knows_better_than_spark_how_far_behind_a_query_is() -> None:
    position = Position(Cut(7, {0: 5}, stamp=stamp_at(60_000)), Cut(7, {0: 9}))
    query = Standing(
        "id", "spark.a", positions={7: position}, batches=2, batch_seconds=0.25, rows=5
    )
    labels = '{query="spark.a",topic="flights"}'
    told = Told({7: "flights"}, {("spark.a", 7): Lag(40, 3.5)}, failures=1)
    found = samples([query], told, now_ms=61_250)
    assert found == {
        'running{query="spark.a"}': "1",
        'failures_total{query="spark.a"}': "0",
        'batches_total{query="spark.a"}': "2",
        'batch_seconds{query="spark.a"}': "0.25",
        'rows_total{query="spark.a"}': "5",
        'lost_messages_total{query="spark.a"}': "0",
        f"lag_messages{labels}": "40",
        f"lag_seconds{labels}": "3.5",
        f"barrier_age_seconds{labels}": "1.25",
        "report_failures_total": "1",
    }
    alone = samples([query], Told({7: "flights"}, {}))
    assert alone[f"lag_messages{labels}"] == "4"
    assert f"lag_seconds{labels}" not in alone


def test_what_is_not_known_is_left_out() -> None:
    query = Standing("id", "spark.a", running=False, positions={7: Position(Cut(7, {0: 5}))})
    found = samples([query], Told({}, {}))
    assert found['running{query="spark.a"}'] == "0"
    assert found['rows_total{query="spark.a"}'] == "0"
    for name in ("lag_messages", "lag_seconds", "barrier", "bad_values", "last_batch"):
        assert not [one for one in found if one.startswith(name)]


def test_bad_values_and_the_time_of_the_last_batch_are_shown_once_they_are_known() -> None:
    query = Standing("id", "spark.a", bad=0, reported=1_700_000_000.5, lost=3)
    found = samples([query], Told({}, {}))
    assert found['lost_messages_total{query="spark.a"}'] == "3"
    assert found['bad_values_total{query="spark.a"}'] == "0"
    assert found['last_batch_timestamp_seconds{query="spark.a"}'] == "1700000000.5"


def test_the_page_is_served_and_ends() -> None:
    with Page(lambda: "some 1\n", "127.0.0.1", 0) as page:
        place = f"http://127.0.0.1:{page.port}"
        with urllib.request.urlopen(f"{place}/metrics", timeout=10) as answer:
            assert answer.read() == b"some 1\n"
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with urllib.request.urlopen(f"{place}/healthz", timeout=10) as answer:
            assert answer.read() == b"alive\n"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", page.port))


@pytest.mark.parametrize("port", [None, 70_000])
def test_a_port_that_cannot_be_had_is_named(port: int | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = port or taken.getsockname()[1]
        with (
            pytest.raises(BadOption, match=f"port={wanted}: .* give another port"),
            Page(str, "127.0.0.1", wanted),
        ):
            pass
