"""A simulator that cannot fail proves nothing: each mutant must be caught.

The bytes of weir's modules draw which mutants `make test` plays, so that every change plays others;
`make test-slow` plays the rest. The seed that is kept with a mutant is played first. A seed is
another run with every change of the code: where it has lost its mutant others are tried, and `weir
sim mutants` tells which one to keep.
"""

from __future__ import annotations

import pytest

from rigs.drawn_mutants import cases
from weir.broker.produce.appender import Appender
from weir_lab.sim.mutants.planting import Mutant, Patch
from weir_lab.sim.mutants.registry import KEPT, MUTANTS, hunt
from weir_lab.sim.run import run_seed

#: How many mutants `make test` plays.
DRAWN = 3


@pytest.mark.parametrize("mutant", cases(KEPT, DRAWN))
def test_the_mutant_is_caught(mutant: Mutant) -> None:
    found = hunt(mutant)
    assert found.caught, f"all play on as if nothing were gone: {mutant.rule}"
    assert found.promise in mutant.breaks


def test_a_mutant_leaves_nothing_behind() -> None:
    judge, before = Appender.judge, run_seed(3).trace_hash
    mutant = next(one for one in MUTANTS if one.name == "dedupe-by-applied-state-only")
    with mutant.planted():
        assert Appender.judge is not judge
    assert Appender.judge is judge
    assert run_seed(3).trace_hash == before


def test_names_and_rules_are_told_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.rule and mutant.breaks for mutant in MUTANTS)


def test_a_rule_that_is_not_there_cannot_be_taken_away() -> None:
    with pytest.raises(AttributeError):
        Patch().setattr(Appender, "judged", lambda self: None)


def test_what_a_class_inherits_is_inherited_again_afterwards() -> None:
    class Parent:
        def rule(self) -> str:
            return "parent's"

    class Child(Parent):
        pass

    patch = Patch()
    patch.setattr(Child, "rule", lambda self: "planted")
    assert Child().rule() == "planted"
    patch.undo()
    assert Child().rule() == "parent's"
    assert "rule" not in vars(Child)
