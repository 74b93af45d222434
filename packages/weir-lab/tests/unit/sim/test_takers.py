"""Simulated consumers that take turns: that there is something to judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from weir.model.ids import Address, group_of
from weir.protocol.client.consumers import Turn
from weir.protocol.client.messages import Reply
from weir.testing.simulator.network import Link
from weir_lab.sim.checkers.judge import violations
from weir_lab.sim.history import History
from weir_lab.sim.programs.subscribers.takers import Taker
from weir_lab.sim.run import Run
from weir_lab.sim.shape import CROWDED, NODE

TURNS = replace(CROWDED, takers=(3,), retentions=(0,), rots=(0,))
#: Seeds that together meet all that the tests below ask for.
SEEDS = (1, 4)


@pytest.fixture(scope="module")
def played() -> list[History]:
    runs = [Run(seed, TURNS) for seed in SEEDS]
    for run in runs:
        run.play()
    return [run.history for run in runs]


def test_all_there_is_is_done_in_turn(played: list[History]) -> None:
    for history in played:
        assert violations(history) == []
        done = {row.value for work in history.works if work.done for row in work.rows}
        drained = [v for records in history.drained.values() for one in records for v in one.values]
        assert done == {*drained}
        assert len(done) > 40


def test_turns_go_from_one_to_another(played: list[History]) -> None:
    for history in played:
        holders = [turn.holder.split("#")[0] for turn in history.turns]
        assert len({*holders}) == 3
        assert sum(one != other for one, other in pairwise(holders)) > 4


def test_who_comes_late_is_refused(played: list[History]) -> None:
    assert any(move.stale >= 0 for history in played for move in history.moves)


def test_work_fails_and_is_tried_again(played: list[History]) -> None:
    assert any(not work.done for history in played for work in history.works)
    assert any(turn.attempts > 1 for history in played for turn in history.turns)


def test_somebody_seeks_meanwhile(played: list[History]) -> None:
    assert any(seek.done for history in played for seek in history.sought)


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_turn_goes_with_the_connection_that_it_came_over(
    ends_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(0, replace(NODE, ordered=(1,), takers=(1,)))
    taker = next(one for one in run.workload.readers if isinstance(one, Taker))
    monkeypatch.setattr(taker.world, "chance", lambda _: False)  # it remembers its turn
    taker.link, other = (Link(taker.world, taker, taker) for _ in range(2))
    asked: list[Callable[[Reply], None]] = []
    monkeypatch.setattr(taker, "ask", lambda request, then: asked.append(then))
    taker.addresses = [Address(0, 0, group_of(1, 0))]
    taker.ready()
    asked.pop()(Turn(7))
    (turn,) = run.history.turns
    taker.link.orphaned = not ends_first  # else its broker ends, and the turn goes on
    taker.link.broke = 10
    taker.lost(taker.link)
    assert turn.gone == (10 if ends_first else -1)
    taker.link, other.broke = other, 20
    taker.lost(other)
    assert turn.gone == (10 if ends_first else -1)
