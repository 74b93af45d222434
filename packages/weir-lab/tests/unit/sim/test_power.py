"""The power of the simulated worlds is counted where a bug could be caught, and ends in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as replace_of
from typer.testing import CliRunner

from weir_lab.cli.sim import app
from weir_lab.sim import power
from weir_lab.sim.mutants.planting import Mutant, Patch
from weir_lab.sim.mutants.registry import MUTANTS
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.power import Kept, Power, estimate, measure, read, together
from weir_lab.sim.shape import Shape

POWER = Power("bug", "a rule", 20, 20, 5, 21.0, 10.0, 40.0, 1.0)
BUG = replace(MUTANTS[0], plant=lambda patch: None, breaks=frozenset({"Live"}))


def played(seed: int, caught: bool, at_stake: bool) -> Outcome:
    said = [("Live", "it stood still")] if caught else [("Honest", "another bug")]
    promises = frozenset({"Live"} if at_stake else {"Honest"})
    return Outcome(seed, Shape(), "", 0, 0, said, "", 0.0, 0.0, (), promises)


def measured(
    monkeypatch: pytest.MonkeyPatch, outcome: Callable[[int], Outcome], bug: Mutant = BUG
) -> Power:
    monkeypatch.setattr(power, "run_drawn", outcome)
    return measure(bug)


def test_five_catches_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, lambda seed: played(seed, seed % 3 == 2, True))
    assert (found.caught, found.worlds, found.seeds) == (5, 15, (2, 5, 8, 11, 14))
    assert found.percent == pytest.approx(100 * 4 / 14, abs=0.01)
    assert found.low < found.percent < found.high
    assert not found.is_rare


def test_a_bug_is_not_played_for_longer_than_a_step_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(power, "run_drawn", lambda seed: played(seed, False, True))
    assert measure(BUG, longest_s=0).played == 1, "one world at least"
    assert measure(BUG, worlds=3).played == 3


def test_the_verb_measures_those_at_the_places_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[str] = []

    def many(bugs: Sequence[Mutant], *rest: object) -> Iterator[Power]:
        measured.extend(bug.name for bug in bugs)
        yield from (replace_of(POWER, name=bug.name) for bug in bugs)

    monkeypatch.setattr(power, "measure_many", many)

    def run(*words: str) -> int:
        return CliRunner().invoke(app, ["power", *words, "--json"]).exit_code

    names = [bug.name for bug in MUTANTS]
    assert run("--first", "3", "--count", "2") == 0
    assert measured == names[3:5]
    measured.clear()
    assert run("--first", str(len(names) - 1)) == 0
    assert measured == names[-1:]
    assert run("--first", str(len(names))) == 2


def test_worlds_in_which_it_could_not_be_seen_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, lambda seed: played(seed, False, seed % 4 == 0))
    assert (found.caught, found.worlds, found.played) == (0, 200, 797)
    assert found.percent == 0
    assert found.high > 1
    assert not found.is_rare


def test_a_bug_that_few_worlds_could_show_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, lambda seed: played(seed, False, seed % 20 == 0))
    assert found.is_rare
    assert (found.played, found.worlds) == (2_000, 100)
    assert together([found]).rare == 1


def test_worlds_that_ran_the_planted_line_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    patches: list[Patch] = []

    def plant(patch: Patch) -> None:
        patch.touched = 0
        patches.append(patch)

    def outcome(seed: int) -> Outcome:
        patches[0].touched += 3 * (seed % 10 == 0)
        return played(seed, False, True)

    found = measured(monkeypatch, outcome, replace(BUG, plant=plant))
    assert (found.touched, found.played) == (20, 200)
    assert together([found]).untouched == 0
    never = measured(monkeypatch, lambda seed: played(seed, False, True), replace(BUG, plant=plant))
    assert never.touched == 0
    assert together([found, never]).untouched == 1
    by_attribute = measured(monkeypatch, lambda seed: played(seed, False, True))
    assert by_attribute.touched == -1
    assert together([by_attribute]).untouched == 0


def test_the_weakest_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs = [
        msgspec.structs.replace(POWER, name=f"bug{n}", percent=float(n), seconds=0.5)
        for n in reversed(range(14))
    ]
    whole = together(bugs)
    assert whole.weakest == tuple(f"bug{n}" for n in range(10))
    assert (whole.median_caught, whole.least_caught, whole.seconds) == (6.5, 0.0, 7.0)


def test_what_was_measured_on_this_code_is_kept_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "power.jsonl"
    book = Kept(file, "code", 200, 5)
    assert not book.known
    book.add(POWER)
    book.add(msgspec.structs.replace(POWER, name="other", touched=7))
    assert list(Kept(file, "code", 200, 5).known) == ["bug", "other"]
    assert Kept(file, "code", 200, 5).known["other"].touched == 7
    assert not Kept(file, "changed", 200, 5).known
    assert not Kept(file, "code", 100, 5).known
    Kept(None, "code", 200, 5).add(POWER)
    Kept(file, "changed", 200, 5).add(msgspec.structs.replace(POWER, caught=4))
    assert [(one.name, one.caught) for one in read(file)] == [("bug", 4), ("other", 5)]


def test_what_the_bugs_code_itself_cannot_do_is_no_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashed(seed: int) -> Outcome:
        said = [("Live", "AttributeError at f:1: of a room that was renamed")]
        return replace(played(seed, False, True), violations=said)

    assert measured(monkeypatch, crashed).caught == 0


@pytest.mark.parametrize(
    ("caught", "worlds", "share"), [(0, 200, 0.0), (5, 5, 1.0), (5, 200, 4 / 199), (3, 200, 0.015)]
)
def test_the_estimate_lies_in_its_interval(caught: int, worlds: int, share: float) -> None:
    found, low, high = estimate(caught, worlds, 5)
    assert found == pytest.approx(share)
    assert 0 <= low <= found <= high <= 1
    assert high - low < 0.5


def test_where_nothing_was_at_stake_nothing_is_known() -> None:
    assert estimate(0, 0, 5) == (0.0, 0.0, 1.0)


def test_a_real_bug_is_caught_in_drawn_worlds() -> None:
    bug = next(one for one in MUTANTS if one.name == "dedupe-by-applied-state-only")
    found = measure(bug, worlds=12, enough=1)
    assert found.caught == 1
