"""The audit job finds what was lost, repeated and out of order; figures are drawn from records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

from weir.cli.main import main
from weir.errors import BadOption, BadRequest
from weir.spark.jobs.audit import Audit, Group, audit, received_from, records
from weir.spark.jobs.figures import figures
from weir.spark.jobs.queries import Topic, Totals

if TYPE_CHECKING:
    from rigs.spark_node import Node, Stream

HOUR_US = 3_600_000_000


def sent(partition: int, offset: int, **more: Any) -> dict[str, Any]:
    where = {"topic": "t", "partition": partition, "offset": offset}
    return {"kind": "sent", **where, "stamp": 1, "at_us": HOUR_US, **more}


def came(n: int, partition: int, offset: int, stamp: int | None, **more: Any) -> dict[str, Any]:
    """A message received 2 ms after its time, unless `more` says otherwise."""
    where = {"topic": "t", "partition": partition, "offset": offset, "stamp": stamp}
    told = {"key": "lock", "time_us": HOUR_US, "at_us": HOUR_US + 2_000, "reader": "r", "n": n}
    return {"kind": "received", **where, **told, **more}


def judged(spark: SparkSession, path: Path, lines: Iterable[Mapping[str, Any] | str]) -> Audit:
    told = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{line}\n" for line in told))
    return audit(records(spark, [str(path)]))


def test_it_tells_each_fault_from_the_others(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        *(sent(p, offset) for p in (0, 1) for offset in range(4)),
        # Partition 0: 1 is late, 3 is lost. Partition 1: 0 comes twice; 9 nobody sent.
        came(0, 0, 0, 10), came(1, 0, 2, 30), came(2, 0, 1, 20), came(3, 1, 0, 25),
        came(4, 1, 0, 25), came(5, 1, 1, 40), came(6, 1, 2, 50), came(7, 1, 3, 60),
        came(8, 1, 9, 70),
        "no record", "[1]", '{"kind": "sent", "topic": "t"}', json.dumps(sent(0, -1)), "",
        json.dumps(sent(0, 1) | {"kind": "thought"}), json.dumps(came(0, 0, 0, 1) | {"n": None}),
    ]  # fmt: skip
    found = judged(spark, tmp_path / "records", lines)
    assert found.totals == Totals(messages=23, good=17, bad=6)
    assert (found.sent, found.received) == (8, 9)
    # Across: 20 and 25 came behind 30; what comes again does not count again.
    assert found.groups == [Group("r", "t", 8, 9, 1, 1, 1, 1, 2)]
    assert found.lost == ["r: t/0 offset 3"]
    assert found.repeated == ["r: t/1 offset 0"]
    assert not found.is_clean


def test_of_one_stamp_the_later_partition_comes_later(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        *(sent(p, offset) for p in (0, 1) for offset in range(3)),
        came(0, 0, 0, 10), came(1, 1, 0, 10), came(2, 1, 1, 10), came(3, 0, 1, 10),
        came(4, 0, 2, None), came(5, 1, 2, 11),
    ]  # fmt: skip
    found = judged(spark, tmp_path / "records", lines)
    assert found.groups == [Group("r", "t", 6, 6, 0, 0, 0, 0, 1)]


def test_readers_of_a_cluster_are_one_group(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        *(sent(0, offset) for offset in range(4)),
        *(came(n, 0, n * 2, n, cluster="c", reader="a") for n in range(2)),
        *(came(n, 0, n * 2 + 1, n, cluster="c", reader="b") for n in range(2)),
        *(came(n, 0, n, n, reader="tail") for n in range(4)),
        sent(0, 0, topic="unread"),
    ]
    found = judged(spark, tmp_path / "records", lines)
    assert found.groups == [
        Group("-", "unread", 1, 0, 1, 0, 0, 0, 0),
        Group("c", "t", 4, 4, 0, 0, 0, 0, 0),
        Group("tail", "t", 4, 4, 0, 0, 0, 0, 0),
    ]


def test_latencies_are_by_device_and_hour(spark: SparkSession, tmp_path: Path) -> None:
    def late(n: int, device: str, milliseconds: int, hour: int) -> dict[str, Any]:
        at = hour * HOUR_US + 5_000_000
        return came(n, 0, n, n, key=device, at_us=at, time_us=at - milliseconds * 1_000)

    lines = [late(n, "a", n + 1, 10) for n in range(100)]
    lines += [late(100, "a", 7, 11), late(101, "b", 9, 10)]
    lines += [came(102, 0, 102, 102, at_us=None)]
    found = judged(spark, tmp_path / "records", lines)
    told = [(x.device, x.hour, x.count, x.p50, x.p90, x.p99, x.max) for x in found.latencies]
    assert told == [
        ("a", "1970-01-01T10", 100, 50.0, 90.0, 99.0, 100.0),
        ("b", "1970-01-01T10", 1, 9.0, 9.0, 9.0, 9.0),
        ("a", "1970-01-01T11", 1, 7.0, 7.0, 7.0, 7.0),
    ]


def test_what_verbs_write_down_is_audited_and_drawn(
    stream: Stream, node: Node, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    node.create(stream.topic, partitions=2)
    one, other = str(tmp_path / "sent"), str(tmp_path / "received")
    at = ("--url", node.url)
    words = [str(number) for number in range(20)]
    assert main(["pub", stream.topic, *words, "--key", "lock", "--record", one, *at]) == 0
    tail = ("tail", stream.topic, "--no-follow", "--record", other, *at)
    assert main([*tail]) == 0
    sub = ("sub", stream.topic, "--cluster", "c", "-n", "15", "--record", other, *at)
    assert main([*sub]) == 0
    capsysbinary.readouterr()
    rows = records(stream.spark, [one, other])
    found = audit(
        rows.unionByName(received_from(Topic(*at[1:], stream.topic).table(stream.spark), "topic"))
    )
    assert found.totals == Totals(messages=75, good=75, bad=0)
    told = {(g.name in ("c", "topic"), g.received, g.lost, g.repeated) for g in found.groups}
    assert told == {(True, 15, 5, 0), (True, 20, 0, 0), (False, 20, 0, 0)}
    assert {x.device for x in found.latencies} == {"lock"}
    assert found.latencies[0].max > 0

    drawn = figures(rows, str(tmp_path / "figures"))
    assert drawn.totals == Totals(55, 55, 0)
    curves = {}
    for path in drawn.files:
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        curves[Path(path).stem] = len(root.findall(".//{*}path"))
    assert curves == {"rates": 3, "latency": 2, "distribution": 1, "order": 2}


def test_records_that_are_not_there_are_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="no such record file"):
        records(spark, [str(tmp_path / "none")])
    with pytest.raises(BadOption, match="no record files are given"):
        records(spark, [])
    (tmp_path / "empty").write_text("no record\n")
    rows = records(spark, [str(tmp_path / "empty")])
    assert audit(rows).totals == Totals(1, 0, 1)
    with pytest.raises(BadRequest, match="no record says when"):
        figures(rows, str(tmp_path / "figures"))
