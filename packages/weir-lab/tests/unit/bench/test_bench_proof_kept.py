"""What is kept of proofs: rows that count as today's, the order of runs, and sweeps in steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import weir
from weir_lab.proofs import run as proving
from weir_lab.proofs import source_hash
from weir_lab.proofs.catalogue import PROOFS
from weir_lab.proofs.claims import Figure, Goal, Proof, Sweep, Target
from weir_lab.proofs.ledger import Ledger, Row
from weir_lab.proofs.page import page
from weir_lab.proofs.run import stale_first

SOURCE = Path(weir.__file__).parents[4]


def git(root: Path, *words: str) -> None:
    known = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *known, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit, of a module that proofs load."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "part.py").write_text('"""Doc."""\nONE = 1\n')
    (tmp_path / ".gitignore").write_text("*.log\n__pycache__\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "part.py", ".gitignore")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def script(text: str) -> tuple[str, ...]:
    """A command that loads the repository's module."""
    return ("python", "-c", f"import sys; sys.path.insert(0, ''); import weir, part; {text}")


def speaking(text: str, *goals: Goal, code: int = 0, **figures: Figure) -> Proof:
    words = script(f"print({text!r}); sys.exit({code})")
    return Proof("spoken", "says what it is told", words, figures, goals)


def proven(proof: Proof, root: Path) -> Row:
    """Run it, and keep the row."""
    ledger = Ledger(root)
    row = proving.prove(proof, root, ledger)
    ledger.add_row(row)
    return row


def test_a_proof_is_met_only_by_all_its_goals(root: Path) -> None:
    text = json.dumps({"a": 2})
    met = proven(speaking(text, Goal("a", "≥", 2), a=Figure("a")), root)
    assert met.met
    assert met.failure is None
    missed = proven(speaking(text, Goal("a", "≤", 1), Goal("a", "=", 2), a=Figure("a")), root)
    assert not missed.met
    assert missed.failure == "missed: a ≤ 1"
    absent = proven(speaking("{}", Goal("a", "≥", 0), a=Figure("a")), root)
    assert not absent.met
    assert absent.figures == {"a": None}


def test_a_command_that_fails_is_a_failed_proof_with_its_last_word(root: Path) -> None:
    row = proven(speaking("no disk in /some/where/file", code=3), root)
    assert not row.met
    assert row.failure == "exit code 3: no disk in file"


def test_a_command_that_hangs_is_ended(root: Path) -> None:
    words = ("python", "-c", "import signal; signal.pause()")
    assert proven(Proof("p", "", words, timeout_s=0.5), root).failure == (
        "it did not end within 0.5 s"
    )


def test_rows_are_kept_and_the_page_shows_the_newest(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    for value in (1, 2):
        spoken = speaking(f'{{"a": {value}}}', Goal("a", "≥", 2), a=Figure("a"))
        monkeypatch.setattr(proving, "PROOFS", {"spoken": spoken, "other": PROOFS["latency"]})
        assert proving.main(["--only", "spoken"]) == (0 if value == 2 else 1)
    rows = (root / "docs" / "proof.jsonl").read_text().splitlines()
    assert [json.loads(row)["met"] for row in rows] == [False, True]
    text = (root / "docs" / "PROOF.md").read_text()
    assert "| spoken | a | 2 | ≥ 2 | yes | 1 of 2 | today |" in text
    assert "Of 2 proofs, 1 meet their goals with the code of today, 0 miss a goal" in text
    assert "Not run yet: latency." in text


def test_a_target_runs_its_own_proofs(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    one, other = (replace(speaking("{}"), name=name) for name in ("one", "other"))
    targets = [Target("proof", "", 1, (one,)), Target("proof-peers", "", 1, (other,))]
    monkeypatch.setattr(proving, "TARGETS", targets)
    monkeypatch.setattr(proving, "PROOFS", {"one": one, "other": other})

    def ran(*words: str) -> list[str]:
        assert proving.main([*words]) == 0
        return [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]

    assert ran("--target", "proof-peers") == ["other"]
    assert ran() == ["one"]
    assert ran("--target", "proof-peers", "--only", "one") == ["one"]
    text = (root / "docs" / "PROOF.md").read_text()
    assert "* `make proof-peers`" in text
    with pytest.raises(SystemExit):
        proving.main(["--target", "proof-magic"])


def test_what_changed_since_is_stale_and_does_not_count_as_met(root: Path) -> None:
    spoken = speaking('{"a": 2}', Goal("a", "≥", 2), a=Figure("a"))
    proven(spoken, root)
    part = root / "part.py"

    def shows() -> str:
        text = page([spoken], Ledger(root))
        return next(line for line in text.splitlines() if line.startswith("| spoken"))

    assert "| yes | 1 of 1 | today |" in shows()
    part.write_text('# A comment, and another docstring.\n"""Other."""\n\nONE = (1)\n')
    assert "| yes | 1 of 1 | today |" in shows()
    part.write_text("ONE = 2\n")
    assert "| stale | 1 of 1 | **stale** |" in shows()
    assert "Of 1 proofs, 0 meet" in page([spoken], Ledger(root))
    part.unlink()
    assert "**stale**" in shows()
    part.write_text("ONE = 1\n")
    assert "| yes |" in shows()
    other = Proof("spoken", "", spoken.words, spoken.figures, spoken.goals, {"WEIR_X": "2"})
    assert Ledger(root).is_stale(other), "its settings are others"
    more = Proof("spoken", "", spoken.words, {**spoken.figures, "b": Figure("b")}, spoken.goals)
    assert Ledger(root).is_stale(more), "it has no such figure"


def test_runs_of_before_lists_of_code_were_kept_are_stale(root: Path) -> None:
    spoken = speaking('{"a": 2}', Goal("a", "≥", 2), a=Figure("a"))
    proven(spoken, root)
    rows = root / "docs" / "proof.jsonl"
    row = json.loads(rows.read_text())
    rows.write_text(json.dumps({k: v for k, v in row.items() if k not in ("code", "loaded")}))
    assert "| stale | 1 of 1 | **stale** |" in page([spoken], Ledger(root))


def test_goals_that_changed_judge_the_runs_there_are(root: Path) -> None:
    proven(speaking('{"a": 2}', Goal("a", "≥", 2), a=Figure("a")), root)
    harder = speaking('{"a": 2}', Goal("a", "≥", 3), a=Figure("a"))
    text = page([harder], Ledger(root))
    assert "| spoken | a | 2 | ≥ 3 | **no** | 0 of 1 | today |" in text
    assert "Of 1 proofs, 0 meet their goals with the code of today, 1 miss a goal" in text
    assert "**missed: a ≥ 3**" in text


def test_the_page_marks_what_failed(root: Path) -> None:
    proof = speaking("a|`x`", Goal("share", "=", 1), code=3, share=Figure("share"))
    proven(proof, root)
    text = page([proof, PROOFS["latency"]], Ledger(root))
    assert "| spoken | share | none | = 1 | **no** | 0 of 1 | today |" in text
    assert "Of 2 proofs, 0 meet their goals with the code of today, 1 miss a goal" in text
    assert "exit code 3: a\\|'x'" in text
    assert "Not run yet: latency." in text


def test_the_versions_of_packages_count(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = Proof("spoken", "", script('import msgspec; print("{}")'))
    proven(proof, root)
    assert not Ledger(root).is_stale(proof)
    monkeypatch.setattr(source_hash, "_version", lambda package: "0.1")
    assert Ledger(root).is_stale(proof)


def test_code_of_a_child_that_is_killed_counts(root: Path) -> None:
    child = script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")[-1]
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    proof = Proof("spoken", "", ("python", "-c", text))
    row = proven(proof, root)
    assert "part.py" in Ledger(root).loaded(row.loaded)
    (root / "part.py").write_text("ONE = 2")
    assert Ledger(root).is_stale(proof)


def test_a_module_is_told_of_when_its_import_begins(tmp_path: Path) -> None:
    told = tmp_path / "told"
    text = "import weir; import weir.codec; import os; os._exit(0)"
    environment = {**os.environ, "WEIR_LOADED_MODULES": str(told)}
    subprocess.run([sys.executable, "-c", text], env=environment, check=True)
    names = told.read_text().splitlines()
    assert {"weir", "weir.codec"} <= set(names)
    assert len(names) == len(set(names))
    code = source_hash.loaded_code(SOURCE, names)
    weir = "packages/weir-mq/src/weir"
    assert {f"{weir}/__init__.py", f"{weir}/codec.py"} <= set(code)
    assert not any(name.startswith(f"{weir}/broker") for name in code)
    told.unlink()
    told.mkdir()  # a file that cannot be written ends nobody
    subprocess.run([sys.executable, "-c", text], env=environment, check=True)


def test_tests_count_with_their_conftest_and_scripts_whole(root: Path) -> None:
    rig = "packages/weir-mq/tests/rigs/a.py"
    for name in ("tests/conftest.py", "tests/unit/test_a.py", "script.sh", rig):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("a")
    words = ["tests/unit/test_a.py", "-q", "script.sh", "/x"]
    code = source_hash.loaded_code(root, ["", "rigs.a"], words)
    assert code == [rig, "script.sh", "tests/conftest.py", "tests/unit/test_a.py"]
    was = source_hash.code_hash(root, code, "a")
    assert was != source_hash.code_hash(root, code, "b")
    (root / "script.sh").write_text("a more")
    assert was != source_hash.code_hash(root, code, "a")


def test_nothing_is_kept_of_a_dirty_tree(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setattr(proving, "PROOFS", {"spoken": speaking("{}")})
    (root / "new.py").touch()
    assert proving.main(["--only", "spoken"]) == 2
    assert "commit first, or undo: new.py changed" in capsys.readouterr().err
    (root / "new.py").unlink()
    changing = Proof("spoken", "", script("open('part.py', 'a').write('TWO = 2'); print('{}')"))
    monkeypatch.setattr(proving, "PROOFS", {"spoken": changing})
    assert proving.main(["--only", "spoken"]) == 2
    assert "spoken is not kept" in capsys.readouterr().err
    assert not (root / "docs" / "proof.jsonl").exists()
    git(root, "checkout", "-q", "part.py")
    assert proving.main(["--page"]) == 0, "what proofs write themselves makes no tree dirty"
    monkeypatch.setattr(proving, "PROOFS", {"spoken": speaking("{}")})
    assert proving.main(["--only", "spoken"]) == 0
    assert proving.main(["--only", "spoken"]) == 0


def test_outside_of_a_repository_nobody_knows_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert proving.main(["--only", "latency"]) == 2
    assert "no git repository" in capsys.readouterr().err


def test_what_is_stale_runs_first(root: Path) -> None:
    words = speaking("{}").words
    fresh, old, never = (Proof(name, "", words) for name in ("fresh", "old", "never"))
    for proof in (fresh, old):
        proven(proof, root)
    changed = Proof("old", "", words, {"b": Figure("b")})
    proofs = [fresh, changed, never]
    ledger = Ledger(root)
    assert [one.name for one in stale_first(proofs, ledger, only=False)] == [
        "old", "never", "fresh",
    ]  # fmt: skip
    assert [one.name for one in stale_first(proofs, ledger, only=True)] == ["old", "never"]


def test_an_estimate_counts_until_a_run_of_todays_command_ended(root: Path) -> None:
    def guessed(text: str, seconds: float | None, code: int = 0) -> Proof:
        return replace(speaking(text, code=code), seconds=seconds)

    never = guessed("{}", 40)
    assert (Ledger(root).seconds(never), Ledger(root).is_estimated(never)) == (40, True)
    assert Ledger(root).seconds(guessed("{}", None)) is None
    failing = guessed("{}", 40, code=3)
    proven(failing, root)
    assert Ledger(root).seconds(failing) == 40, "a run that failed took no time of its own"
    row = proven(never, root)
    assert (Ledger(root).seconds(never), Ledger(root).is_estimated(never)) == (row.seconds, False)
    longer = guessed('{"a": 2}', 50)
    assert (Ledger(root).seconds(longer), Ledger(root).is_estimated(longer)) == (50, True)
    assert Ledger(root).seconds(guessed('{"a": 2}', None)) == row.seconds


def test_the_page_adds_up_the_times_of_a_target(root: Path) -> None:
    took = proven(speaking("{}"), root).seconds
    other = replace(speaking("{}"), name="other", seconds=540 - took)
    third = replace(speaking("{}"), name="third", seconds=60)
    target = Target("proof", "says things", 170, (speaking("{}"), other, third))
    text = page([other], Ledger(root), [target])
    assert (
        "* `make proof` says things: 3 proofs in 10 of at most 170 minutes. The times of 2 are "
        "estimates" in text
    )


def sweeping(seeds: int, name: str = "swept") -> Proof:
    """Of which each step writes down its first seed, and fails at the seeds of STOP."""
    words = script(
        "import os; seed = sys.argv[1]; open('docs/seeds.log', 'a').write(seed + ' ');"
        "seed in os.environ.get('STOP', '').split() and sys.exit(3);"
        "print('{\"seeds\": ' + sys.argv[2] + ', \"first\": ' + seed + '}')"
    )
    figures = {
        "seeds": Figure("seeds"),
        "least": Figure("first", whole="least"),
        "most": Figure("first", whole="most"),
        "mean": Figure("first", whole="mean"),
    }
    goals = (Goal("seeds", "=", seeds),)
    return Proof(
        name, "", (*words, "{SEED}", "{SEEDS}"), figures, goals, sweep=Sweep("some", seeds, 10)
    )


def test_a_sweep_goes_on_at_the_step_where_it_was_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = root / "docs" / "seeds.log"
    swept = sweeping(40)
    monkeypatch.setenv("STOP", "20")
    row = proven(swept, root)
    assert (row.met, row.figures["seeds"]) == (False, None)
    assert row.failure is not None
    assert row.failure.startswith("seeds from 20 on: exit code 3")
    monkeypatch.delenv("STOP")
    row = proven(swept, root)
    assert log.read_text().split() == ["0", "10", "20", "20", "30"]
    assert (row.met, row.figures) == (True, {"seeds": 40, "least": 0, "most": 30, "mean": 15})
    assert not Ledger(root).is_stale(swept)
    # A shorter sweep of the same name has nothing left to do, and a longer one only the rest.
    first = proven(sweeping(20, "first"), root)
    assert first.figures == {"seeds": 20, "least": 0, "most": 10, "mean": 5}
    proven(sweeping(50, "longer"), root)
    assert log.read_text().split()[5:] == ["40"]
    # Other code: nothing that was played counts, and it is dropped.
    (root / "part.py").write_text("ONE = 2\n")
    git(root, "commit", "-qam", "two")
    assert Ledger(root).is_stale(swept)
    proven(sweeping(20, "first"), root)
    assert log.read_text().split()[6:] == ["0", "10"]
    assert len((root / "docs" / "proof-steps.jsonl").read_text().splitlines()) == 2


def test_two_steps_of_a_sweep_run_at_once(root: Path) -> None:
    # Each waits for the other's file: one after the other, they would never end.
    words = script(
        "import pathlib, time; seed = int(sys.argv[1]); pathlib.Path(f'docs/{seed}.log').touch()\n"
        "while not pathlib.Path(f'docs/{seed ^ 1}.log').exists(): time.sleep(0.01)\n"
        "print('{\"seeds\": 1, \"first\": ' + sys.argv[1] + '}')"
    )
    figures = {"seeds": Figure("seeds"), "last": Figure("first", whole="most")}
    sweep = Sweep("some", 4, step=1, at_once=2)
    swept = Proof("p", "", (*words, "{SEED}"), figures, sweep=sweep, timeout_s=20)
    row = proven(swept, root)
    assert row.figures == {"seeds": 4, "last": 3}
    steps = [one["seconds"] for one in Ledger(root).steps(swept).values()]
    assert row.seconds == pytest.approx(sum(steps) / 2, abs=0.1)


def test_the_lowest_of_what_a_sweep_names_stand_on_the_page(root: Path) -> None:
    words = script(
        "import json; seed = int(sys.argv[1]);"
        "bugs = [{'name': f'bug-{seed}', 'percent': 90 - 5 * seed}];"
        "print(json.dumps({'caught': 90 - 5 * seed, 'bugs': bugs}))"
    )
    figures = {
        "median": Figure("caught", whole="median"),
        "least": Figure("caught", whole="least"),
    }
    sweep = Sweep("some", 11, step=1, at_once=2)
    proof = Proof("p", "", (*words, "{SEED}"), figures, sweep=sweep, named="bugs.percent")
    row = proven(proof, root)
    assert row.figures == {"median": 65, "least": 40}
    assert len(row.named) == 11
    text = page([proof], Ledger(root))
    assert " The lowest: bug-10 40, bug-9 45, bug-8 50, bug-7 55, bug-6 60, " in text
    assert "bug-1 85." in text, "ten of them"
    assert "bug-0" not in text
    assert "The lowest" not in page([speaking("{}")], Ledger(root))


def test_every_step_ends_within_a_quarter_of_an_hour() -> None:
    assert all(proof.timeout_s <= 900 for proof in PROOFS.values())


def test_every_row_says_what_was_counted() -> None:
    for proof in PROOFS.values():
        assert not any(goal.figure == "passed" for goal in proof.goals), proof.name
        assert all(goal.relation != "≥" or goal.value > 0 for goal in proof.goals), proof.name
        if proof.words[0] == "pytest":
            assert proof.goals, proof.name


def test_the_hash_of_worlds_covers_what_they_play(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[tuple[str, int]] = []

    def note(root: Path, code: Sequence[str], *settings: str) -> str:
        hashed.append((root.name, len(code)))
        return f"{root}"

    monkeypatch.setattr(source_hash, "code_hash", note)
    source_hash.worlds_hash.cache_clear()
    try:
        assert source_hash.worlds_hash()
    finally:
        source_hash.worlds_hash.cache_clear()
    assert [name for name, _ in hashed] == ["weir_raft", "weir", "sim"]
    assert all(count > 10 for _, count in hashed)
