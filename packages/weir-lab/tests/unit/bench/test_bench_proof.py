"""Proofs: their commands, and what is read from the output."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import msgspec
import pytest

from weir.errors import WeirError
from weir_lab.bench.harness.runs import as_one, record
from weir_lab.bench.latency import sync_ms
from weir_lab.bench.timeliness import Settings
from weir_lab.bench.toc.conformance import Result, Run, Runs
from weir_lab.proofs import run as proving
from weir_lab.proofs.access import OF_ACCESS, OF_HANDSHAKES, OF_LOGINS
from weir_lab.proofs.catalogue import PROOFS, TARGETS
from weir_lab.proofs.claims import NONE_LOST, Figure, Proof, Target
from weir_lab.proofs.ledger import Ledger, missed, shown
from weir_lab.proofs.run import command, parsed, plain, read, read_named, selected
from weir_lab.sim import power
from weir_lab.sim.checkers.exercised import ALL
from weir_lab.sim.mutants.registry import MUTANTS

ROOT = Path(__file__).parents[5]
OUTPUT = {"a": 2, "runs": [{"s": 4.0, "lost": 0}, {"s": 1.0, "lost": 3}]}


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


def test_a_side_of_a_comparison_is_found_by_its_name() -> None:
    output = json.dumps({"rows": [{"side": "weir", "p": 3}, {"side": "a:b", "p": 4}]})
    figures = {
        "own": Figure("rows.[weir].p"),
        "peer": Figure("rows.[a:b].p"),
        "no": Figure("rows.[c].p"),
    }
    proof = Proof("p", "", ("weir",), figures)
    assert read(proof, output) == {"own": 3, "peer": 4, "no": None}


def test_lines_of_json_are_a_list_and_other_lines_are_left_out() -> None:
    assert parsed('warming up\n{"n": 1}\n{"n": 2}\n') == [{"n": 1}, {"n": 2}]
    assert parsed("nothing") is None


def test_tests_give_figures_by_name() -> None:
    figures = {"kills": Figure("kills"), "worst": Figure("ms", whole="most"), "n": Figure("passed")}
    proof = Proof("p", "", ("pytest",), figures)
    told = [{"kills": 2, "ms": 7}, {"kills": 3, "ms": 5}]
    assert read(proof, "2 passed in 1 s", told) == {"kills": 5, "worst": 7, "n": 2}
    assert read(proof, "no tests ran") == {"kills": None, "worst": None, "n": None}


def test_a_run_of_packets_that_failed_has_its_figures() -> None:
    runs = [Runs("host", [Run(0.0, 60.0, 9, 40, 2, 1, 3, 4, 5, 6, 7, [])]), Runs("xdp", [], "no")]
    found = Result(True, runs, passed=0, missing=1, messages=40, violations=2, false_removals=1,
                   late=3, nak=4, late_without_loss=3)  # fmt: skip
    assert read(PROOFS["toc-conformance"], msgspec.json.encode(found).decode()) == {
        "messages": 40, "violations": 2, "false removals": 1, "late": 3, "late without loss": 3,
        "NAK": 4, "places passed": 0, "places missing": 1,
    }  # fmt: skip


def test_a_name_that_is_no_proof_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert proving.main(["--only", "magic"]) == 2
    assert "no proof 'magic': there are timeliness," in capsys.readouterr().err
    with pytest.raises(WeirError, match="no proof"):
        selected("burst,x", "proof")
    assert [one.name for one in selected("burst,raft", "proof")] == ["burst", "raft"]
    for target in TARGETS:
        assert selected("", target.name) == [*target.proofs]
    assert len(PROOFS) == sum(len(target.proofs) for target in TARGETS)


def test_each_target_is_one_of_make() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in TARGETS:
        assert re.search(rf"^{target.name}: \$\(STAMP\) ## .*\n\t\$\(PROOF\)$", rules, re.M)
    assert re.search(r"^PROOF = .* --target \$@ ", rules, re.M)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_target_ends_within_its_time(target: Target) -> None:
    ledger = Ledger(ROOT)
    took = {proof.name: ledger.seconds(proof) for proof in target.proofs}
    assert [name for name, seconds in took.items() if seconds is None] == [], "without an estimate"
    assert sum(seconds or 0 for seconds in took.values()) <= 60 * target.minutes


def test_figures_take_170_minutes_and_worlds_300_at_most() -> None:
    minutes = {target.name: target.minutes for target in TARGETS}
    assert minutes["proof"] <= 170
    assert minutes["proof-worlds"] <= 300


def test_rows_of_access_take_20_minutes_at_most() -> None:
    ledger = Ledger(ROOT)
    rows = (*OF_ACCESS, *OF_HANDSHAKES, *OF_LOGINS)
    assert sum(ledger.seconds(proof) or 0 for proof in rows) <= 20 * 60
    assert PROOFS["rotate"] not in selected("", "proof")


def test_each_kind_of_world_is_played_a_thousand_times() -> None:
    swept = {
        proof.sweep.name: proof.sweep.seeds
        for proof in selected("", "proof")
        if proof.sweep and "sim" in proof.words
    }
    assert swept == {"node": 1_000, "even": 1_000}


@pytest.mark.parametrize("name", ["calm", "calm-stalls", "far-link"])
def test_nobody_is_elected_in_ten_minutes_of_load(name: str) -> None:
    words = PROOFS[name].words
    assert int(words[words.index("--seconds") + 1]) >= 600
    goals = {goal.figure: (goal.relation, goal.value) for goal in PROOFS[name].goals}
    assert goals["elections"] == ("=", 0)
    assert goals["seconds"] == ("≥", 600)


#: What stands on the page without a goal, for it explains a row or compares its sides.
_WITHOUT_GOAL = ["order-few", "order-many"]


def test_every_row_has_a_goal_in_figures_of_its_own() -> None:
    """`lost = 0` is reached by a broker that does nothing."""
    of_all = {goal.figure for goal in NONE_LOST} | {"out of order", "violations"}
    lacking = [
        one.name for one in PROOFS.values() if not {goal.figure for goal in one.goals} - of_all
    ]
    assert lacking == _WITHOUT_GOAL


@pytest.mark.parametrize(
    ("name", "figure", "relation", "value"),
    [
        ("consume", "messages/s", "≥", 8_500_000),
        ("both", "messages/s sustained", "≥", 650_000),
        ("strangers", "a device's confirm beside pings, ms", "≤", 250),
        ("compare-latency", "times the best that syncs", "≥", 1),
        ("compare-latency", "weir: ms to a lone confirm, median", "≤", 0.75),
        ("latency", "ms over fdatasync", "≤", 0.3),
        ("latency-tls", "lone confirm, ms more by TLS", "≤", 0.2),
        ("latency-tls", "delivery, ms more by TLS", "≤", 0.2),
        ("timeliness-tls-set", "by TLS, of plain", "≥", 0.6),
        ("tenants", "kept of its rate", "≥", 0.9),
        ("calm", "messages/s", "≥", 10_000),
        ("calm-stalls", "messages/s", "≥", 10_000),
        ("tenants", "of the quota, by the flood", "≤", 1.1),
        ("burst-logins", "seconds, anybody", "≤", 1.05),
        ("journey", "publish_calls", "≤", 350),
        ("journey", "publish_files", "≤", 45),
        ("journey", "publish_changes", "≤", 350),
        ("journey", "ack_calls", "≤", 620),
        ("journey", "barrier_calls", "≤", 900),
        ("journey", "lone_calls", "≤", 110),
    ],
)
def test_a_bar_is_missed_by_what_is_worse(
    name: str, figure: str, relation: str, value: float
) -> None:
    worse = value * (0.99 if relation == "≥" else 1.01)
    assert f"{figure} {relation} {value:,g}" in missed(PROOFS[name], {figure: worse})
    assert f"{figure} {relation} {value:,g}" not in missed(PROOFS[name], {figure: value})


def test_ten_thousand_worlds_are_of_the_default_distribution() -> None:
    row = PROOFS["drawn-seeds"]
    assert "--shape" not in row.words
    assert row.sweep is not None
    assert row.sweep.seeds == 10_000
    assert row in selected("", "proof-worlds")
    goals = {goal.figure: (goal.relation, goal.value) for goal in row.goals}
    assert goals["violations"] == ("=", 0)
    for promise in ALL:
        assert goals[f"worlds of {promise}"] == ("≥", 2_000)
        assert row.figures[f"worlds of {promise}"].path == f"worlds_of.{promise}"


def test_each_planted_bug_is_a_step_of_power() -> None:
    row = PROOFS["power"]
    assert row.sweep is not None
    assert (row.sweep.seeds, row.sweep.step) == (len(MUTANTS), 1)
    assert row.timeout_s > power.LONGEST_S
    found = read(row, json.dumps({"planted": 1, "median_caught": 2.5, "bugs": []}))
    assert "caught %, median ≥ 20" in missed(row, found)
    told = {"bugs": [{"name": "a", "percent": 2.5}, {"name": "b", "percent": 50}]}
    assert read_named(row, json.dumps(told)) == {"a": 2.5, "b": 50}
    assert read_named(row, "no JSON") == {}


def test_no_sweep_plays_what_another_of_its_target_plays() -> None:
    for target in TARGETS:
        names = [proof.sweep.name for proof in target.proofs if proof.sweep]
        assert len(names) == len(set(names)), target.name


def test_every_goal_is_of_a_figure_that_is_read() -> None:
    for one in PROOFS.values():
        assert {goal.figure for goal in one.goals} <= set(one.figures), one.name
        script = ROOT / one.words[0]
        assert one.words[0] in ("weir", "python", "pytest") or os.access(script, os.X_OK)


def test_tests_are_found_by_the_variable_that_they_read(tmp_path: Path) -> None:
    tests = tmp_path / "packages" / "weir-mq" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_a.py").write_text('os.environ.get("WEIR_X", "1")')
    (tests / "test_b.py").write_text("WEIR_X")
    words = [*command(Proof("p", "", ("pytest", "{TESTS:WEIR_X}", "{TESTS:WEIR_Y}")), tmp_path)]
    assert words[0] == sys.executable
    assert words[-2:] == ["packages/weir-mq/tests/test_a.py", "tests/no-test-reads-WEIR_Y"]


def test_a_script_of_the_repository_may_run_tests(tmp_path: Path) -> None:
    proof = PROOFS["spark-oldest"]
    assert [*command(proof, tmp_path)] == [str(tmp_path / "scripts/spark-oldest")]
    assert read(proof, "PySpark 4.2.0\n=== 12 passed, 1 skipped in 3 s ===") == {"tests": 12.0}
    assert read(proof, "no word") == {"tests": None}


def test_a_command_is_shown_as_a_user_types_it() -> None:
    assert shown(PROOFS["kill"]).startswith("WEIR_KILLS=20 pytest -q")
    assert "tests that read WEIR_KILLS" in shown(PROOFS["kill"])
    assert shown(PROOFS["latency"]) == "weir bench latency --json"


def test_a_line_for_the_repository_names_no_folder() -> None:
    assert plain("/usr/lib/python3/x.py: no a/b, and https://x.y/z") == "x.py: no a/b, and https:/z"
    assert len(plain("x" * 1_000)) == 300


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
