"""`weir bench order`: a small run of the real thing, and how its figures are made of runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from weir.cli.main import main
from weir.testing.nodes import HOST, free_ports
from weir_lab.bench.harness.led import Ready
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.ordering import idle, readers, sequencer
from weir_lab.bench.ordering.measure import Result, Run, Settings, result_of
from weir_lab.bench.ordering.report import report_of
from weir_lab.bench.sides.own import Own, running_own

_SVG = "http://www.w3.org/2000/svg"


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with running_own() as side:
        yield side


def test_all_three_orders_are_measured_and_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["bench", "order", "--partitions", "2", "--producers", "1,3", "--messages", "6000"]
    few = ["--rate", "600", "--seconds", "100ms", "--runs", "1", "--idle", "0", "--no-faults"]
    drawing = tmp_path / "order.svg"
    assert main([*words, *few, "--plot", str(drawing), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "weir.bench.order/1"
    assert [(row["partitions"], row["producers"]) for row in found["rows"]] == [(2, 1), (2, 3)]
    assert (found["lost"], found["repeated"], found["misplaced"]) == (0, 0, 0)
    for row in found["rows"]:
        assert set(row["by_order"]) == {"partition", "total", "sequencer"}
        assert row["throughput_ratio"] == pytest.approx(row["total_per_s"] / row["partition_per_s"])
    names = {text.text for text in ElementTree.parse(drawing).iter(f"{{{_SVG}}}text")}
    assert {"partition", "total", "sequencer", "partitions"} <= names


def test_promises_of_idle_partitions_are_measured(own: Own) -> None:
    found = run(idle.measure(own, idle.Settings(3, settled_s=0, seconds=0.2, turns=2, lone=5)))
    assert found.partitions == 3
    assert found.budget_ms == found.confirm_p50_ms + 10 + found.round_trip_p50_ms
    assert 0 < found.delivery_p50_ms <= found.delivery_p99_ms


def test_many_readers_share_the_rounds_of_promises_of_one() -> None:
    settings = readers.Settings(
        12, partitions=4, messages=40, pause_s=0.01, settled_s=0, idle_s=0.1
    )
    found = run(readers.measure(settings))
    assert (found.one.readers, found.many.readers) == (1, 12)
    assert found.one.promise_rounds >= 20
    assert found.promise_rounds_ratio == found.many.promise_rounds / found.one.promise_rounds
    assert found.promise_rounds_ratio < 3, "twelve times as many readers"


def _run(per_s: float, misplaced: int = 0) -> Run:
    return Run(per_s, 1.0, 2.0, 0, 0, 0, 0, misplaced)


def _result(partitions: int, producers: int, total: float) -> Result:
    runs = {"partition": [_run(100)], "total": [_run(total)], "sequencer": [_run(50)]}
    return result_of(Settings(partitions, producers), runs)


def test_runs_are_compared_one_by_one_and_the_worst_counts() -> None:
    runs = {
        "partition": [_run(100), _run(80)],
        "total": [_run(90), _run(60)],
        "sequencer": [_run(50), _run(60)],
    }
    found = result_of(Settings(8, 1), runs)
    assert (found.throughput_ratio, found.sequencer_ratio) == (0.75, 1.0)
    assert (found.total_per_s, found.partition_per_s, found.clean) == (60, 80, True)
    runs["total"][0] = _run(90, misplaced=1)
    assert not result_of(Settings(8, 1), runs).clean


def test_a_report_has_the_worst_of_each_figure() -> None:
    rows = [_result(1, 1, 99), _result(1, 200, 98), _result(8, 1, 90), _result(8, 200, 81)]
    found = report_of(rows, None, [])
    assert found.throughput_ratio_of == {1: 0.98, 8: 0.81}
    assert found.producers_ratio_of == {1: 98 / 99, 8: 0.9}
    assert (found.throughput_ratio, found.one_partition_ratio) == (0.81, 0.81)


def test_a_sequencer_gives_each_number_once_and_in_turn() -> None:
    async def test() -> list[int]:
        (port,) = free_ports(1)
        plan = sequencer.Plan(HOST, port)
        async with Crew("weir_lab.bench.ordering.sequencer", [plan], Ready) as crew:
            await crew.ready()
            one, other = [await sequencer.connected(HOST, port) for _ in range(2)]
            asked = [way.ask() for _ in range(50) for way in (one, other)]
            numbers = await asyncio.gather(*asked)
            one.close()
            other.close()
        assert numbers[0::2] == sorted(numbers[0::2])
        return sorted(numbers)

    assert run(test()) == list(range(100))


def test_what_cannot_be_measured_in_order_is_wrong_usage() -> None:
    assert main(["bench", "order", "--size", "15"]) == 2
    assert main(["bench", "order", "--partitions", "none"]) == 2
