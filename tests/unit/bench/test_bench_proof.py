"""Proofs: what is read from a command's output, what counts as met, and the page."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from weir.bench import proof as proving
from weir.bench.claims import Figure, Goal, Proof
from weir.bench.proof import Row, command, parsed, plain, prove, read, selected, shown
from weir.bench.proof_page import page
from weir.bench.proofs import PROOFS
from weir.bench.runs import as_one, record
from weir.bench.syncing import sync_ms
from weir.bench.timeliness import Settings
from weir.errors import WeirError

OUTPUT = {"a": 2, "runs": [{"s": 4.0, "lost": 0}, {"s": 1.0, "lost": 3}]}


def speaking(text: str, *goals: Goal, code: int = 0, **figures: Figure) -> Proof:
    script = f"import sys; print({text!r}); sys.exit({code})"
    return Proof("spoken", "says what it is told", ("python", "-c", script), figures, goals)


def test_figures_are_found_by_their_paths() -> None:
    figures = {
        "first": Figure("runs.0.s"),
        "share": Figure("runs.1.s", over="runs.0.s"),
        "least": Figure("runs.*.s"),
        "most lost": Figure("runs.*.lost", highest=True),
        "absent": Figure("runs.7.s"),
        "wrong": Figure("runs.s"),
    }
    proof = Proof("p", "", ("weir",), figures)
    assert read(proof, json.dumps(OUTPUT)) == {
        "first": 4.0, "share": 0.25, "least": 1.0, "most lost": 3.0, "absent": None, "wrong": None,
    }  # fmt: skip


def test_lines_of_json_are_a_list_and_other_lines_are_left_out() -> None:
    assert parsed('warming up\n{"n": 1}\n{"n": 2}\n') == [{"n": 1}, {"n": 2}]
    assert parsed("nothing") is None


def test_a_proof_is_met_only_by_all_its_goals(tmp_path: Path) -> None:
    text = json.dumps(OUTPUT)
    met = prove(speaking(text, Goal("a", "≥", 2), a=Figure("a")), tmp_path)
    assert met.met
    assert met.failure is None
    missed = prove(speaking(text, Goal("a", "≤", 1), Goal("a", "=", 2), a=Figure("a")), tmp_path)
    assert not missed.met
    assert missed.failure == "missed: a ≤ 1"
    absent = prove(speaking("{}", Goal("a", "≥", 0), a=Figure("a")), tmp_path)
    assert not absent.met
    assert absent.figures == {"a": None}


def test_a_command_that_fails_is_a_failed_proof_with_its_last_word(tmp_path: Path) -> None:
    row = prove(speaking("no disk in /some/where/file", code=3), tmp_path)
    assert not row.met
    assert row.failure == "exit code 3: no disk in file"


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    script = "import signal; signal.pause()"
    row = prove(Proof("p", "", ("python", "-c", script), timeout_s=0.5), tmp_path)
    assert row.failure == "it did not end within 0.5 s"


def test_rows_are_kept_and_the_page_shows_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    for value in (1, 2):
        spoken = speaking(f'{{"a": {value}}}', Goal("a", "≥", 2), a=Figure("a"))
        monkeypatch.setitem(PROOFS, "burst", spoken)
        monkeypatch.setattr(proving, "PROOFS", {"spoken": spoken, "other": PROOFS["latency"]})
        assert proving.main(["--only", "spoken"]) == (0 if value == 2 else 1)
    rows = (tmp_path / "docs" / "proof.jsonl").read_text().splitlines()
    assert [json.loads(row)["met"] for row in rows] == [False, True]
    text = (tmp_path / "docs" / "PROOF.md").read_text()
    assert "| spoken | a | 2 | ≥ 2 | yes |" in text
    assert "Not run yet: other." in text


def test_a_name_that_is_no_proof_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert proving.main(["--only", "magic"]) == 2
    assert "no proof 'magic': there are timeliness," in capsys.readouterr().err
    with pytest.raises(WeirError, match="no proof"):
        selected("burst,x")
    assert [one.name for one in selected("burst,latency")] == ["burst", "latency"]
    assert len(selected("")) == len(PROOFS)


def test_every_goal_is_of_a_figure_that_is_read() -> None:
    for one in PROOFS.values():
        assert {goal.figure for goal in one.goals} <= set(one.figures), one.name
        script = Path(__file__).parents[3] / one.words[0]
        assert one.words[0] in ("weir", "python", "pytest") or os.access(script, os.X_OK)


def test_tests_are_found_by_the_variable_that_they_read(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text('os.environ.get("WEIR_X", "1")')
    (tmp_path / "tests" / "test_b.py").write_text("WEIR_X")
    words = [*command(Proof("p", "", ("pytest", "{TESTS:WEIR_X}", "{TESTS:WEIR_Y}")), tmp_path)]
    assert words[0] == sys.executable
    assert words[-2:] == ["tests/test_a.py", "tests/no-test-reads-WEIR_Y"]


def test_a_script_of_the_repository_may_run_tests(tmp_path: Path) -> None:
    proof = PROOFS["spark-oldest"]
    assert [*command(proof, tmp_path)] == [str(tmp_path / "scripts/spark-oldest")]
    assert read(proof, "PySpark 4.2.0\n=== 12 passed, 1 skipped in 3 s ===") == {"passed": 12.0}
    assert read(proof, "no word") == {"passed": None}


def test_a_command_is_shown_as_a_user_types_it() -> None:
    assert shown(PROOFS["kill"]).startswith("WEIR_KILLS=20 pytest -q")
    assert "tests that read WEIR_KILLS" in shown(PROOFS["kill"])
    assert shown(PROOFS["latency"]) == "weir bench latency --json"


def test_a_line_for_the_repository_names_no_folder() -> None:
    assert plain("/usr/lib/python3/x.py: no a/b, and https://x.y/z") == "x.py: no a/b, and https:/z"
    assert len(plain("x" * 1_000)) == 300


def test_the_page_marks_what_failed() -> None:
    machine = proving.this_machine()
    row = Row(
        "burst", "many devices", "weir bench burst", {"seconds": 1.5, "share": None},
        ["share = 1"], False, "missed: share = 1 | `x`", 3.0, 0.5, "abc+", machine, "2026-01-02T",
    )  # fmt: skip
    as_json = json.loads(proving.msgspec.json.encode(row))
    text = page([as_json], ["latency"])
    assert "| burst | seconds | 1.5 |  | **no** | abc+ | 2026-01-02 |" in text
    assert "|  | share | none | = 1 |" in text
    assert "0 of 1 proofs met their goals" in text
    assert "missed: share = 1 \\| 'x'" in text


def test_of_several_runs_the_worst_stands_on_top() -> None:
    runs = [{"s": 4.0}, {"s": 1.0}]
    assert as_one(runs[:1], "s", most=True) == {"s": 4.0}
    assert as_one(runs, "s", most=True) == {"s": 4.0, "runs": runs}
    assert as_one(runs, "s", most=False) == {"s": 1.0, "runs": runs}


def test_runs_are_kept_with_their_samples(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    samples = sync_ms(tmp_path, 2)
    for _ in range(2):
        record(path, "weir.bench.x/1", Settings(), {"s": 1}, samples)
    record(None, "weir.bench.x/1", Settings(), {}, None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["samples"] for line in lines] == [samples, samples]
    assert lines[0]["settings"]["size"] == 100
