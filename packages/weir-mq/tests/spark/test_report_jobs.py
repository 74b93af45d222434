"""Devices and flights: right tables, all messages counted, and the same after a replay."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from weir.cli.main import main
from weir.errors import BadOption
from weir.model.arrow import SCHEMA
from weir.spark.jobs import devices, flights
from weir.spark.jobs.queries import Topic, Totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rigs.spark_node import Node, Stream

MINUTE = 60_000
#: 2026-01-01T00:00Z
MIDNIGHT = 1_767_225_600_000


def messages(
    spark: SparkSession, values: list[bytes], keys: list[bytes] | None = None
) -> DataFrame:
    """Return values as a topic's messages, a stamp each, of two partitions by turns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = [
        ("t", n % 2, n // 2, n << 16, None, keys[n] if keys else None, None, value, {})
        for n, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, from_arrow_schema(SCHEMA))


def event(device: str | None, name: object, at: object, **more: Any) -> bytes:
    return json.dumps({"device": device, "event": name, "at": at, **more}).encode()


#: Messages that are no events, each for a reason of its own.
NO_EVENTS = [
    event("", "unlocked", 0), event(None, "unlocked", 0), event("a" * 257, "unlocked", 0),
    event("a", None, 0), event("a", "", 0), event("a", "unlocked", -1),
    event("a", "unlocked", None),
    event("a", "unlocked", "soon"), event("a", "unlocked", 253_402_300_800_000),
    b'{"device": "a", "event": "unlocked"}', b"null", b"", b"\xff", b'{"device": "a"', b"[1]",
]  # fmt: skip


def table(spark: SparkSession, path: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.read.parquet(path).collect()]


def ms(moment: Any) -> int:
    return int(moment.timestamp() * 1_000) - MIDNIGHT


def test_devices_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    at = MIDNIGHT
    values = [
        # a: a session of two events, another later; unlocked for 20 min at its end.
        event("a", "unlocked", at), event("a", "locked", at + MINUTE),
        event("a", "unlocked", at + 30 * MINUTE),
        # b: 12 events in a minute.
        *(event("b", "jiggled", at + n * 1_000) for n in range(12)),
        # c: an unlock in each of nine windows, then thirty in one.
        *(event("c", kind, at + n * 5 * MINUTE + k) for n in range(9)
          for k, kind in enumerate(("unlocked", "locked"))),
        *(event("c", kind, at + 50 * MINUTE + n * 1_000 + k) for n in range(30)
          for k, kind in enumerate(("unlocked", "locked"))),
        *NO_EVENTS,
    ]  # fmt: skip
    parsed = devices.parse(messages(spark, values))
    done = devices.report(parsed, str(tmp_path), devices.Rules())
    good = 3 + 12 + 18 + 60
    assert done.totals == Totals(good + len(NO_EVENTS), good, len(NO_EVENTS))
    assert done.devices == 3
    of_a = [row[1:] for row in table(spark, done.tables["sessions"]) if row[0] == "a"]
    assert [(ms(b), ms(e), n, u) for b, e, n, u in of_a] == [
        (0, MINUTE, 2, 1), (30 * MINUTE, 30 * MINUTE, 1, 1),
    ]  # fmt: skip
    stuck = [(d, ms(since), s) for d, since, s in table(spark, done.tables["stuck"])]
    newest = 50 * MINUTE + 29_001
    assert stuck == [("a", 30 * MINUTE, (newest - 30 * MINUTE) / 1_000)]
    told = [(d, ms(begin), n) for d, begin, n in table(spark, done.tables["chattering"])]
    assert told == [("b", 0, 12), ("c", 50 * MINUTE, 60)]
    (odd,) = table(spark, done.tables["anomalies"])
    assert (odd[0], ms(odd[1]), odd[2], odd[3]) == ("c", 50 * MINUTE, 30, 1.0)
    rates = [row for row in table(spark, done.tables["rates"]) if row[0] == "a"]
    assert [(ms(r[1]), *r[2:]) for r in rates] == [(0, 2, 1, 0.2), (30 * MINUTE, 1, 1, 0.2)]


def test_a_message_says_for_its_event_what_the_value_does_not(spark: SparkSession) -> None:
    values = [event(None, "unlocked", 5), b'{"event": "locked", "at": 6}', b'{"event": "x"}']
    parsed = devices.parse(messages(spark, values, [b"k", b"\xff", b"k"]))
    rows = parsed.orderBy("stamp").collect()
    # The second has a key that is no text, the third neither a moment nor a time.
    assert [row.device for row in rows] == ["k", None, None]


@pytest.mark.parametrize("rule", ["gap", "window", "deviations"])
def test_rules_are_checked(rule: str) -> None:
    with pytest.raises(BadOption, match=f"{rule}=0"):
        devices.Rules(**{rule: 0})


def flight(carrier: str, sched: str, delay: float | None, **more: Any) -> bytes:
    told = {"carrier": carrier, "sched": sched, "dep_delay": delay, "origin": "EWR", "dest": "IAH"}
    return json.dumps({**told, "tailnum": "N1", **more}).encode()


def test_flights_are_reported_and_a_replay_changes_nothing(
    stream: Stream, node: Node, tmp_path: Path
) -> None:
    # Total order is by stamp, and not by partition: N1 flies EWR, JFK, EWR.
    legs = [
        flight("UA", "2013-01-01T05:15", 20.0),
        flight("UA", "2013-01-01T08:15", None, origin="JFK"),
        flight("UA", "2013-01-01T11:15", 10.0), flight("AA", "2013-01-01T05:00", 0.0, tailnum="N2"),
        # Scheduled before the one before it.
        flight("AA", "2013-01-01T04:00", 30.0, tailnum="N2"),
        flight("B6", "2013-01-01T04:00", 1.0, tailnum=None, origin=7), b"no flight",
        flight("B6", "2013-01-01T04:00", float("nan")),
    ]  # fmt: skip
    node.create(stream.topic, partitions=2)
    for n, value in enumerate(legs):
        node.send(stream.topic, [{"value": value, "partition": n % 2}])
    out, checkpoint = str(tmp_path / "out"), tmp_path / "checkpoint"
    topic = Topic(node.url, stream.topic, {"maxRowsPerBatch": 5})

    def run() -> flights.Flights:
        return flights.flights(stream.spark, topic, out, str(checkpoint))

    done = run()
    assert done.totals == Totals(8, 6, 2)
    assert (done.cancelled, done.late, done.planes, done.changes, done.inverted) == (1, 2, 2, 2, 1)
    assert table(stream.spark, done.rotations) == [
        ("N1", 3, 2, 0, 180.0, ["EWR", "JFK", "EWR"]),
        ("N2", 2, 0, 1, None, ["EWR", "EWR"]),
    ]
    by_hour = [row[:6] for row in table(stream.spark, done.delays)]
    assert by_hour == [
        ("AA", "EWR", 4, 1, 0, 1), ("AA", "EWR", 5, 1, 0, 0), ("B6", None, 4, 1, 0, 0),
        ("UA", "EWR", 5, 1, 0, 1), ("UA", "EWR", 11, 1, 0, 0), ("UA", "JFK", 8, 1, 1, 0),
    ]  # fmt: skip
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()
    assert run() == done
    assert by_hour == [row[:6] for row in table(stream.spark, done.delays)]


def test_a_job_that_follows_ends_when_it_is_told(
    stream: Stream, node: Node, tmp_path: Path
) -> None:
    node.create(stream.topic)
    node.send(stream.topic, [{"value": flight("UA", "2013-01-01T05:15", 1.0)}])
    seen: list[int] = []

    def progress(messages: int) -> None:
        if not seen:
            node.send(stream.topic, [{"value": b"later"}])
        seen.append(messages)

    done = flights.flights(
        stream.spark, Topic(node.url, stream.topic), str(tmp_path / "out"),
        str(tmp_path / "checkpoint"), available_now=False, progress=progress,
        is_stopped=lambda: seen[-1:] == [2],
    )  # fmt: skip
    assert done.totals == Totals(2, 1, 1)
    assert not stream.spark.streams.active


@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_ends_a_job_that_follows_with_its_totals(
    stream: Stream, node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, twice: bool,
) -> None:  # fmt: skip
    node.create(stream.topic)
    node.send(stream.topic, [{"value": flight("UA", "2013-01-01T05:15", 1.0)}, {"value": b"bad"}])
    before, report = signal.getsignal(signal.SIGINT), flights.report

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("out/batches/*/batch=0/_SUCCESS")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    def reporting(*arguments: Any) -> flights.Flights:
        if twice:
            os.kill(os.getpid(), signal.SIGINT)
        return report(*arguments)

    monkeypatch.setattr(flights, "report", reporting)
    who = threading.Thread(target=interrupt)
    who.start()
    out = str(tmp_path / "out")
    arguments = ["spark", "flights", stream.topic, out, "--follow", "--json", "--url", node.url]
    code = main(arguments)
    who.join()
    told = capsys.readouterr()
    assert "stopped: adding up" in told.err
    assert not stream.spark.streams.active
    assert signal.getsignal(signal.SIGINT) is before
    if twice:
        assert (code, told.out) == (130, "")
    else:
        assert code == 0
        found = json.loads(told.out)
        assert (found["messages"], found["good"], found["bad"]) == (2, 1, 1)


def test_a_lake_cannot_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job in ("flights", "devices"):
        assert main(["spark", job, "t", str(tmp_path), "--lake", "lake", "--follow"]) == 2
        assert "a lake is read to its end" in capsys.readouterr().err
