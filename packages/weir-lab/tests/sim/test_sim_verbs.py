"""`weir sim`: what it prints for people and for programs, and how it ends."""

from __future__ import annotations

import json

import pytest

from weir.broker.produce.appender import Appender
from weir.cli.main import main


def test_a_run_is_told_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", "--shape", "node", "--seeds", "3", "--seed", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seeds"], told["violations"], told["failed"]) == (3, 0, [])
    assert told["operations"] > 200
    assert told["faults"] > 3
    assert told["seconds"] > 0


def test_a_run_that_breaks_a_promise_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Appender, *_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(Appender, "accept", broken)
    assert main(["sim", "run", "--shape", "node", "--seeds", "1", "--seed", "3"]) == 1
    said = capsys.readouterr()
    assert "weir sim run --shape node --seed 3 --seeds 1" in said.err
    assert "KeyError" in said.err
    assert "VIOLATIONS" in said.out


def test_a_set_runs_in_other_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", "--shape", "set", "--seeds", "1", "--jobs", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] >= 20


def test_mutants_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "sim",
        "mutants",
        "--only",
        "rings-are-shorter-than-their-windows",
        "--only",
        "ack-forgotten",
        "--json",
    ]
    assert main(asked) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["planted"], told["caught"], told["missed"]) == (2, 2, 0)


def test_an_unknown_mutant_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "mutants", "--only", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err
