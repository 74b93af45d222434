"""Bugs are planted, and tests of the rooms miss what is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rigs.drawn_mutants import drawn
from weir_lab.planted.access import (
    OF_DEVICES,
    OF_LOGINS,
    OF_QUOTAS,
    OF_RULES,
    OF_TICKETS,
    OF_TOKENS,
)
from weir_lab.planted.bug import Bug
from weir_lab.planted.run import BUGS, Result
from weir_lab.planted.sets import BUGS as OF_SETS
from weir_lab.planted.tags import OF_TAGS
from weir_lab.sim.mutants.planting import Mutant
from weir_lab.sim.mutants.registry import ACCESS, FILTERS, MUTANTS
from weir_lab.sim.mutants.source import PlantingRefused

ROOT = Path(__file__).parents[5]
#: How many bugs `make test` plants.
DRAWN = 5


def run(*names: str) -> tuple[int, Result, str]:
    made = subprocess.run(
        [sys.executable, "-m", "weir_lab.planted.run", *names],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert made.stdout, made.stderr
    return made.returncode, msgspec.json.decode(made.stdout, type=Result), made.stderr


def all_are_caught(*names: str) -> None:
    code, result, said = run(*names)
    assert not result.missed, said
    assert (code, result.planted) == (0, len(names))
    assert result.caught == result.planted


@pytest.mark.parametrize("bug", [*BUGS, *MUTANTS, *ACCESS, *FILTERS], ids=lambda bug: bug.name)
def test_what_a_bug_replaces_stands_there_once(bug: Bug | Mutant) -> None:
    with bug.planted():
        pass


def test_drawn_bugs_are_missed_by_tests() -> None:
    all_are_caught(*drawn([bug.name for bug in BUGS], DRAWN))


@pytest.mark.slow  # `make proof` plants all, too
def test_each_bug_is_missed_by_a_test() -> None:
    all_are_caught(*(bug.name for bug in BUGS))


def test_there_are_enough_of_each_kind() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert len({bug.rule for bug in BUGS}) == len(BUGS)
    for kind in (OF_LOGINS, OF_TICKETS, OF_TOKENS, OF_RULES, OF_DEVICES, OF_TAGS):
        assert len(kind) >= 5
    assert OF_QUOTAS
    assert OF_SETS


def test_a_test_that_cannot_fail_catches_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from weir_lab.planted import run as room

    blind = Bug("blind", "x", *_piece(), "a test of something else")
    monkeypatch.setattr(room, "_pytest", lambda tests: 0)
    result = room.run([blind])
    assert (result.planted, result.caught, result.missed) == (1, 0, ["blind"])
    monkeypatch.setattr(room, "_pytest", lambda tests: 1)
    with pytest.raises(room.PlantedFailed, match="without any bug"):
        room.run([blind])
    codes = iter((0, 1))
    monkeypatch.setattr(room, "_pytest", lambda tests: next(codes))
    assert room.run([blind]).missed == ["blind"], "its line was never run"


def _piece() -> tuple[str, str, str]:
    return BUGS[0].module, BUGS[0].piece, BUGS[0].instead


def test_a_piece_that_is_gone_is_refused() -> None:
    gone = Bug("gone", "x", BUGS[0].module, "no such piece", "pass")
    with pytest.raises(PlantingRefused, match="stands 0 times"), gone.planted():
        pass
