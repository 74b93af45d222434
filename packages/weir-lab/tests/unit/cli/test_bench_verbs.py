"""The verbs of `weir bench`: one JSON object each, lists of runs, and wrong usage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from weir.cli.main import main
from weir_lab.bench import latency
from weir_lab.bench.sides.own import Own
from weir_lab.cli.bench_runs import several


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main(["bench", *words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["schema"] == f"weir.bench.{words[0]}/1"
    return found


@pytest.mark.parametrize("verb", ["conformance", "rate", "buffers", "ports", "skew", "alarm"])
def test_packets_are_measured_without_a_node_of_the_broker(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "toc", verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"bench toc {verb}" in said
    assert "node's folder" not in " ".join(said.split())


def test_several_bursts_are_runs_and_the_slowest_stands_on_top(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "runs.jsonl"
    found = measured(
        capsys,
        "burst",
        "--devices",
        "5,30",
        "--over",
        "200ms",
        "--rest",
        "0s",
        "--record",
        str(kept),
    )
    assert [run["devices"] for run in found["runs"]] == [5, 30]
    assert found["seconds"] == max(run["seconds"] for run in found["runs"])
    assert {run["share_delivered"] for run in found["runs"]} == {1}
    assert [settings["devices"] for settings in found["settings"]] == [5, 30]
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [len(line["samples"]["confirm_ms"]) for line in lines] == [5, 30]


def test_throughput_is_one_object_with_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, "throughput", "--shape", "both", "--seconds", "50ms")
    assert (found["lost"], found["repeated"], found["share_delivered"]) == (0, 0, 1)
    assert found["messages_per_s"] > 0
    assert found["confirm_p99_ms"] > 0
    assert found["delivery_p99_ms"] > 0
    assert "runs" not in found


def test_latency_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(
        capsys, "latency", "--lone", "10", "--rate", "100", "--seconds", "100ms", "--rest", "0s"
    )
    assert {"confirm_p50_ms", "delivery_p99_ms", "fdatasync_p50_ms"} <= found.keys()


def test_latency_by_tls_says_how_much_longer_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []
    measure = latency.measure_by_turns

    async def watched(plans: Sequence[tuple[Own, latency.Settings]]) -> Any:
        urls.extend(side.url for side, _ in plans)
        return await measure(plans)

    monkeypatch.setattr(latency, "measure_by_turns", watched)
    words = ("--lone", "10", "--rate", "100", "--seconds", "100ms", "--rest", "0s", "--tls")
    plain, secure = measured(capsys, "latency", *words)["runs"]
    assert (plain["tls"], plain["tls_confirm_more_ms"], secure["tls"]) == (False, None, True)
    assert [url.partition(":")[0] for url in urls] == ["weir", "weirs"]
    for kind in ("confirm", "delivery"):
        more = secure[f"{kind}_p50_ms"] - plain[f"{kind}_p50_ms"]
        assert secure[f"tls_{kind}_more_ms"] == pytest.approx(more)


def test_people_get_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "burst", "--devices", "3", "--over", "50ms", "--rest", "0s"]) == 0
    assert "3 devices: last confirm after 0." in capsys.readouterr().out
    assert main(["bench", "latency", "--lone", "5", "--seconds", "50ms", "--rest", "0s"]) == 0
    assert "this disk's fdatasync" in capsys.readouterr().out
    assert main(["bench", "throughput", "--shape", "consume", "--messages", "2000"]) == 0
    assert "shape consume" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["timeliness", "--producers", "1,x"], "--producers: '1,x' is no number"),
        (["burst", "--devices", "0"], "--devices: give numbers of 1 or more"),
        (["burst", "--devices", "1000000"], "devices=1,000,000: it must be 1 to 18,000"),
        (["throughput", "--shape", "fall"], "shape=fall: it must be produce, consume or both"),
        (["latency", "--size", "3"], "size=3: it must be at least 16"),
        (["compare", "--peer", "kafka"], "no peer 'kafka': there are redis, nats"),
        (["compare", "--shape", "fall"], "shape=fall: it must be one of timeliness"),
        (["spark", "--partitions", "99"], "partitions=99: it must be 1 to 16"),
    ],
)
def test_wrong_usage_of_a_bench_is_one_line(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["bench", *words])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert what in captured.err
    assert captured.err.count("\n") == 1


def test_a_missing_peer_is_an_error_that_names_the_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["bench", "compare", "--peer", "redis"]) == 1
    assert "run scripts/install-peers" in capsys.readouterr().err


def test_numbers_of_a_list_may_be_grouped() -> None:
    assert several("1,50,4_000", "x") == [1, 50, 4_000]
