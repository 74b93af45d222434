"""Worlds in which the client as it ships adds versions of a schema and publishes values of them.

WEIR_SCHEMA_SEEDS says how many are played of one node, and of three nodes half as many.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rigs.drawn_mutants import one_in
from weir_lab.sim.checkers.applications import SchemaNamed
from weir_lab.sim.history import History
from weir_lab.sim.observations import Typed
from weir_lab.sim.run import run_seed, run_seeds
from weir_lab.sim.shape import NODE_READS, SET_READS

pytest.importorskip("fastavro")

SEEDS = int(os.environ.get("WEIR_SCHEMA_SEEDS", "2"))
NODE = replace(NODE_READS, typed=(10,), planners=0, shipped=(True,))
SET = replace(SET_READS, typed=(10,), planners=0, shipped=(True,))


@one_in(3)
@pytest.mark.timeout(120 + 10 * SEEDS)
def test_a_number_stands_for_one_version_and_may_be_named_at_once() -> None:
    at_stake = 0
    for shape, seeds in {NODE: SEEDS, SET: SEEDS // 2}.items():
        outcomes = list(run_seeds(0, seeds, shape))
        broken = [one.report() for one in outcomes if one.violations]
        assert not broken, "\n\n".join(broken[:3])
        at_stake += sum("SchemaNamed" in one.promises for one in outcomes)
    assert at_stake > SEEDS // 2


@one_in(3)
def test_a_version_is_not_looked_for_where_it_is_not_known_yet() -> None:
    """A node that was cut off listed versions, and described a topic, without the newest one."""
    outcome = run_seed(5, SET)
    assert not outcome.violations, outcome.report()


@one_in(3)
def test_a_consumer_that_gave_up_pulls_by_another_connection() -> None:
    """One that was cancelled while it told an error pulled on by the same connection: in order, it
    was granted what lay behind a message that it did not know it had.
    """
    outcome = run_seed(21, SET)
    assert not outcome.violations, outcome.report()


def test_versions_are_judged() -> None:
    typed = Typed({1: b"a"}, {b"1|x", b"1|y"}, {b"1|x": 1}, is_read=True)
    assert list(SchemaNamed().check(History(typed=typed))) == [
        "b'1|y' was confirmed, and is not there"
    ]
    typed.read[b"1|y"] = 2
    assert list(SchemaNamed().check(History(typed=typed))) == ["b'1|y' has version 2"]
    typed.is_read = False
    assert not list(SchemaNamed().check(History(typed=typed)))
