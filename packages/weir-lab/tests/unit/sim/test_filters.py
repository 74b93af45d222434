"""Worlds with readers and clusters of some tags: each gets what all get, less other tags."""

from __future__ import annotations

import pytest

from rigs.drawn_mutants import cases
from weir_lab.sim.mutants.planting import Mutant
from weir_lab.sim.mutants.registry import FILTERS, hunt
from weir_lab.sim.scenarios.filters import Filters, Following, Got, judged


def test_each_gets_what_it_wants_in_the_order_of_all() -> None:
    filters = Filters(2)
    assert filters.play() == []
    assert len(filters.confirmed) > 20
    assert all(one.rows for one in filters.readers)
    assert all(filters.handled.values())
    assert filters.world.faults.count > 3


def test_what_is_missing_unwanted_or_out_of_turn_is_told() -> None:
    filters = Filters(0)
    wanted = filters.readers[0].tags
    for mode in filters.tags:
        filters.tags[mode] = wanted
    rows = [Got(at, 0, at, min(wanted), b"k", b"") for at in range(4)]
    filters.readers = [Following(wanted, "total"), Following(wanted, "partition")]
    for reader in filters.readers:
        reader.rows = [*rows]
    for handled in filters.handled.values():
        handled += rows
    assert [*judged(filters, rows)] == []
    filters.readers[0].rows = [rows[1], rows[0], *rows[2:]]
    filters.readers[1].rows = rows[:3]
    filters.confirmed = {(0, 9)}
    filters.handled["shared"].append(rows[0]._replace(tag="x"))
    filters.handled["keyed"][:2] = [rows[1], rows[0]]
    filters.handled["ordered"].pop()
    assert {promise for promise, _ in judged(filters, rows)} == {
        "Durable", "OneOrder", "ReadWhole", "InTurn", "Handled",
    }  # fmt: skip


@pytest.mark.parametrize("mutant", cases(FILTERS, 1))
def test_a_rule_that_is_taken_away_is_missed(mutant: Mutant) -> None:
    found = hunt(mutant, more=4)
    assert found.caught, f"all play on as if nothing were gone: {mutant.rule}"
    assert found.promise in mutant.breaks
