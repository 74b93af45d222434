"""Benchmarks of packets in short forms: real processes, every message checked."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rigs.drawn_mutants import some_of
from weir.cli.main import main
from weir_lab.bench.toc.conformance import PLACES, Result, Runs
from weir_lab.bench.toc.crew import PATIENCE_SECONDS, Shape, crew
from weir_lab.bench.toc.lossy import CutSocket, opener
from weir_lab.bench.toc.rate import RateResult
from weir_lab.bench.toc.tree import missing_for, missing_for_trees
from weir_toc.hosts.udp import UdpSocket
from weir_toc.net import linux
from weir_toc.places import Place

HERE = ("127.0.0.1", 0)


def conformance(*words: str) -> int:
    shape = "--processes 3 --racks 2 --spines 1 --cores 0 --losses 0.02 --interval-ms 60 --pace 30"
    return main(["bench", "toc", "conformance", *shape.split(), *words, "--json"])


@pytest.mark.parametrize("place", some_of(1, *PLACES))
def test_conformance_checks_every_message_at_each_place(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = conformance("--place", place, "--seconds", "1")
    printed = capsys.readouterr()
    assert printed.out, printed.err
    found = json.loads(printed.out)
    assert found["schema"] == "weir.bench.toc.conformance/1"
    (one,) = found["places"]
    assert one["name"] == place
    why = missing_for(Place(place))
    assert one["missing"] == why
    if why:
        assert code == (1 if found["trees"] else 0)
        pytest.skip(why)
    assert found["violations"] == 0, one["runs"][0]["examples"]
    assert code == (1 if found["false_removals"] else 0)
    (run,) = one["runs"]
    assert run["scatterings"] > 50
    assert run["messages"] > 50
    assert run["resent"] + run["told"] > 0
    # Also what a program in the kernel has passed on one by one is taken in one piece.
    assert run["runs"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_eight_processes_keep_all_guarantees_at_each_place(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if why := missing_for(Place(place)):
        pytest.skip(why)
    main(["bench", "toc", "conformance", "--place", place, "--seconds", "15", "--interval-ms", "50",
          "--json"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["violations"] == 0, [run["examples"] for run in found["places"][0]["runs"]]
    assert found["messages"] > 5_000
    without, with_loss = found["places"][0]["runs"]
    if not without["false_removals"] and found["trees"]:
        # All links of a tree are FIFO.
        assert without["late"] == without["nak"] == found["late_without_loss"] == 0
    assert with_loss["told"] > 0


@pytest.mark.parametrize("place", ["switch", "xdp"])
def test_a_place_that_needs_a_tree_says_what_is_missing_for_one(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(linux, "missing_rights", lambda: ["CAP_NET_ADMIN"])
    assert conformance("--place", place) == 0
    found = json.loads(capsys.readouterr().out)
    (one,) = found["places"]
    assert not one["runs"]
    assert "CAP_NET_ADMIN" in one["missing"]
    assert (found["trees"], found["missing"], found["passed"]) == (False, 1, 0)
    assert not missing_for(Place.HOST)  # that runs on loopback then


def test_a_place_that_is_missing_where_it_could_run_is_a_failure() -> None:
    missing = Runs("xdp", [], "weir-toc has no program for switches yet")
    for trees in (True, False):
        assert Result(trees, [missing], 0, 1, 0, 0, 0, 0, 0, 0).clean is not trees
    assert Result(True, [], 3, 0, 9, 0, 0, 5, 5, 0).clean
    assert not Result(True, [], 3, 0, 9, 1, 0, 0, 0, 0).clean
    assert not Result(True, [], 3, 0, 9, 0, 1, 0, 0, 0).clean


def test_a_place_that_cannot_be_measured_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--processes", "1"],
        ["--losses", "0.9"],
        ["--losses", "x"],
        ["--seconds", "0"],
        ["--place", "nowhere"],
    ):
        assert main(["bench", "toc", "conformance", *words]) == 2
        assert capsys.readouterr().err.count("\n") < 12


def test_nobody_has_to_read_what_the_network_prints(tmp_path: Path) -> None:
    with crew(tmp_path, Shape()) as made:
        made.start_network()
        assert [one.stdout for one in made.running.values()] == [None, None]
        until = time.monotonic() + PATIENCE_SECONDS
        printed = tmp_path / "controller-1.out"
        while b'"event": "controller", "member": 1' not in printed.read_bytes():
            made.check()
            assert time.monotonic() < until


def test_a_seed_loses_the_same_packets_again() -> None:
    def run(seed: int) -> list[bytes]:
        receiver, sender = UdpSocket(HERE), opener(0.5, seed)(HERE, None)
        for number in range(100):
            sender.send([(b"%03d" % number, receiver.address, 3)])
        found = [one.data for one in receiver.read()]
        assert len(found) + sender.counters.lost == 100
        sender.close()
        receiver.close()
        return found

    assert run(1) == run(1) != run(2)
    assert opener(0, 1) is UdpSocket


def test_a_cut_cable_loses_what_is_sent_by_it_until_it_heals() -> None:
    near, far = UdpSocket(HERE), UdpSocket(HERE)
    sender = CutSocket(HERE)
    lines: list[str] = []

    def sent(*told: str) -> list[list[bytes]]:
        lines[:] = told
        sender.obey(lines)
        sender.send([(b"near", near.address, 4), (b"far", far.address, 3)])
        return [[one.data for one in receiver.read()] for receiver in (near, far)]

    def cut(receiver: UdpSocket) -> str:
        return "cut {}:{}\n".format(*receiver.address)

    assert sent() == [[b"near"], [b"far"]]
    assert sent(cut(far)) == [[b"near"], []]
    assert sent(cut(near)) == [[], []]
    assert sent("heal\n") == [[b"near"], [b"far"]]
    for one in (near, far, sender):
        one.close()


def test_rate_compares_every_message(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--messages 3000 --lone 3 --interval-ms 200 --json"
    code = main(["bench", "toc", "rate", *words.split()])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["schema"] == "weir.bench.toc.rate/1"
    assert (found["lost"], found["misplaced"]) == (0, 0)
    assert found["idle_rss_mb"] > 1
    best_effort, reliable = found["services"]
    assert best_effort["received"] + best_effort["failed"] >= best_effort["sent"] == 3_000
    assert reliable["received"] == 3_000
    assert reliable["latency_p50_ms"] > 0
    assert found["reliable_per_s"] > 0


@pytest.mark.parametrize("place", [pytest.param("host", marks=pytest.mark.slow), "xdp"])
def test_rate_compares_every_message_that_crosses_a_tree(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--messages 3000 --lone 3 --interval-ms 200 --place {place} --json"
    code = main(["bench", "toc", "rate", *words.split()])
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["place"] == place
    why = missing_for_trees() or missing_for(Place(place))
    assert found["missing"] == why
    if why:
        assert code == (1 if found["trees"] else 0)
        assert (found["services"], found["best_effort_per_s"]) == ([], 0)
        pytest.skip(why)
    assert code == 0
    assert (found["lost"], found["misplaced"], found["idle_rss_mb"]) == (0, 0, 0)
    best_effort, reliable = found["services"]
    assert best_effort["received"] + best_effort["failed"] >= best_effort["sent"] == 3_000
    assert reliable["received"] == 3_000
    assert reliable["latency_p50_ms"] > 0
    assert found["reliable_per_s"] > 0


@pytest.mark.parametrize("place", ["host", "switch", "xdp"])
def test_a_rate_that_needs_a_tree_says_what_is_missing_for_one(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(linux, "missing_rights", lambda: ["CAP_NET_ADMIN"])
    assert main(["bench", "toc", "rate", "--place", place, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "CAP_NET_ADMIN" in found["missing"]
    assert (found["trees"], found["services"]) == (False, [])
    assert main(["bench", "toc", "rate", "--place", place]) == 0
    assert f"{place} is missing: " in capsys.readouterr().out


def test_a_rate_that_is_missing_where_it_could_be_measured_is_a_failure() -> None:
    for trees in (True, False):
        assert RateResult(0, 0, 0, 0, 0, [], "no program", trees).clean is not trees


def test_a_rate_that_cannot_be_measured_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--messages", "1"],
        ["--size", "8"],
        ["--interval-ms", "0"],
        ["--place", "nowhere"],
    ):
        assert main(["bench", "toc", "rate", *words]) == 2
        assert "Traceback" not in capsys.readouterr().err
