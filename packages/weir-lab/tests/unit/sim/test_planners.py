"""Simulated queries go on behind their last cut with the next connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.errors import Unavailable
from weir.model.batch import stamped
from weir.model.batch_builder import encode
from weir.model.ids import Address, group_of
from weir.protocol.client import messages as m
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import SECOND
from weir_lab.sim.programs.subscribers.planners import Planner
from weir_lab.sim.run import Run
from weir_lab.sim.shape import NODE

Asked = list[tuple[m.Request, Callable[[m.Reply], None]]]
GROUP = group_of(1, 0)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> tuple[Planner, Asked]:
    """A planner that knows its topic, and what it asks."""
    made, asked = Planner(Run(0, NODE).scene, "q"), Asked()
    monkeypatch.setattr(made, "ask", lambda request, then: asked.append((request, then)))
    made.addresses = [Address(0, 0, GROUP)]
    made.link = Link(made.world, made, made)
    made.ready()
    made.world.run(SECOND)
    return made, asked


def cut(stamp: int, *ends: int) -> m.ResolvedCut:
    info = m.TopicInfo(1, "default", "weather", "total", [Address(0, 0, GROUP)])
    return m.ResolvedCut(stamp, [m.TopicCut(info, [0] * len(ends), [*ends], [*ends])])


def fetched(first: int, stamp: int) -> m.Fetched:
    raw = encode([b"a", b"b"], group=GROUP)
    data = stamped(raw, stamp, first) + bytes(raw[88:])
    return m.Fetched(Address(0, 0, GROUP), first, first + 2, first + 2, (data,))


def test_a_portion_is_noted_at_its_cut(planner: tuple[Planner, Asked]) -> None:
    query, asked = planner
    asked[-1][1](cut(7, 2))
    asked[-1][1](fetched(0, 5))
    (reading, *_) = [one for one in query.history.readings if one.reader == "q"]
    assert [(row.stamp, row.offset) for row in reading.rows] == [(5, 0), (5, 1)]
    assert query.history.barriers[0, 2] == 7
    query.world.run(2 * SECOND)
    request = asked[-1][0]
    assert isinstance(request, m.ResolveCut)
    assert (request.after, request.stamp) == ([m.TopicPositions(1, [(0, 2)])], 7)


def test_what_lies_behind_a_cut_is_complained_of(planner: tuple[Planner, Asked]) -> None:
    query, asked = planner
    asked[-1][1](cut(4, 2))
    asked[-1][1](fetched(0, 5))
    assert [promise for promise, _ in query.history.complaints] == ["OneOrder"] * 2


def test_it_goes_on_behind_the_last_cut(planner: tuple[Planner, Asked]) -> None:
    query, asked = planner
    asked[-1][1](cut(7, 2))
    query.link = None
    query.closed()
    query.link = Link(query.world, query, query)
    asked[-1][1](fetched(0, 5))  # by a connection that is gone
    query.ready()
    query.world.run(2 * SECOND)
    request = asked[-1][0]
    assert isinstance(request, m.ResolveCut)
    assert (request.after, request.stamp) == ([], 0)
    asked[-1][1](m.Refusal(Unavailable.code, "its leader is on its way"))
    query.world.run(3 * SECOND)
    assert isinstance(asked[-1][0], m.ResolveCut)
