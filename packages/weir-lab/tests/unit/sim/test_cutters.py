"""Simulated readers that end at a cut: each cut is read over one connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.errors import NotLeader
from weir.model.ids import Address, group_of
from weir.protocol.client import messages as m
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import SECOND
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.subscribers.cutters import Cutter
from weir_lab.sim.run import Run
from weir_lab.sim.shape import NODE

Asked = list[tuple[m.Request, Callable[[m.Reply], None]]]


def asked_by(program: Client, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Connect a program, and return what it will ask, and who hears the answer."""
    asked: Asked = []
    monkeypatch.setattr(program, "ask", lambda request, then: asked.append((request, then)))
    program.link = Link(program.world, program, program)
    return asked


def answer(asked: Asked, *replies: m.Reply) -> None:
    """Answer what was asked last, and what is asked upon that."""
    for reply in replies:
        asked[-1][1](reply)


def test_a_cut_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    cutter = Cutter(Run(0, NODE).scene, "c")
    asked = asked_by(cutter, monkeypatch)
    cutter.addresses = [Address(0, 0, group_of(1, 0))]
    cutter.ready()
    cutter.world.run(SECOND)
    told = m.Barriers(1, [(0, 5, 9)], reached=True)
    answer(asked, told, told, m.Refusal(NotLeader.code, "its leader is on its way"))
    cutter.link = None
    cutter.closed()
    cutter.link = Link(cutter.world, cutter, cutter)
    cutter.world.run(2 * SECOND)
    assert [type(request) for request, _ in asked] == [m.AskBarriers, m.AskBarriers, m.Fetch]


def test_a_topic_is_asked_for_once_on_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(Run(0, NODE).scene, "c")
    asked = asked_by(client, monkeypatch)
    late = m.Refusal(NotLeader.code, "its leader is on its way")
    client.opened()
    answer(asked, late, late)
    client.link = Link(client.world, client, client)
    client.opened()
    answer(asked, late)
    client.world.run(SECOND)
    assert [type(request) for request, _ in asked] == [m.Hello, m.CreateTopic] * 2
