"""The rule of barriers explored at random, and each of its parts taken away: then it must break.

WEIR_BARRIER_SEEDS sets how many seeds are run, WEIR_BARRIER_FAULTS how many at most to find what is
missing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import pytest

from weir.cli.main import main
from weir_lab.barriers.actor import BarrierChecks, OrderedActor
from weir_lab.barriers.faults import ACTORS, PATCHES
from weir_lab.barriers.rehearsal import Explorer

SEEDS = int(os.environ.get("WEIR_BARRIER_SEEDS", "50"))
FAULT_SEEDS = int(os.environ.get("WEIR_BARRIER_FAULTS", "200"))
#: Seeds that find what is missing, where it takes hundreds to find one.
KNOWN = {"Forgetful": 4, "Hasty": 520, "Unstamped": 1016, "with_the_learners": 1065}
#: It takes thousands of seeds to find these; the scripts of `test_barrier_counterexamples.py` show
#: each in one.
RARE = ("without_an_entry_of_its_own_term", "by_the_new_half")
RULES = [*ACTORS, *PATCHES]


def test_no_barrier_is_ever_broken() -> None:
    promised = 0
    for seed in range(SEEDS):
        promised += Explorer(seed).explore().promised
    assert promised > 2 * SEEDS, "hardly a barrier lay above what was committed anyhow"


def find(name: str) -> int:
    """Explore without a part of the rule, until a barrier breaks; return how many seeds it took."""
    actor = ACTORS.get(name, OrderedActor)
    for count, seed in enumerate([KNOWN.get(name, 0), *range(FAULT_SEEDS)], 1):
        try:
            Explorer(seed, actor).explore()
        except AssertionError as error:
            if "was handed out" not in str(error):
                raise
            return count
    raise AssertionError(f"{FAULT_SEEDS:,} seeds do not find that {name} is missing")


@pytest.mark.timeout(60 + FAULT_SEEDS // 10)
@pytest.mark.parametrize(
    "name", RULES if "WEIR_BARRIER_FAULTS" in os.environ else [n for n in RULES if n not in RARE]
)
def test_without_a_part_of_the_rule_a_barrier_breaks(
    name: str, monkeypatch: pytest.MonkeyPatch, tell: Callable[..., None]
) -> None:
    if name in PATCHES:
        PATCHES[name](monkeypatch)
    tell(rules=1, seeds=find(name))


def test_what_was_explored_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "barriers", "--seed", "3", "--seeds", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seeds"], told["broken"]) == (2, 0)
    assert told["committed"] > 0


def test_seconds_are_those_of_one_core(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def displaced(self: Explorer) -> BarrierChecks:
        time.sleep(1.0)  # as if another process had the core
        return self.barriers

    monkeypatch.setattr(Explorer, "explore", displaced)
    assert main(["sim", "barriers", "--seeds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] < 0.9


def test_a_seed_that_breaks_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Explorer) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(Explorer, "explore", broken)
    assert main(["sim", "barriers", "--seed", "3", "--seeds", "2", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["broken"] == 2
    assert "seed 4: planted" in said.err
