"""Simulated readers that end at a cut: each cut is read over one connection."""

from __future__ import annotations

import pytest

from weir.errors import NotLeader
from weir.model.ids import Address, group_of
from weir.protocol.client import messages as m
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import SECOND
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.subscribers.cutters import Cutter
from weir_lab.sim.run import _Run
from weir_lab.sim.shape import NODE


def test_a_cut_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    cutter = Cutter(_Run(0, NODE)._scene, "c")
    asked = list[m.Request]()
    monkeypatch.setattr(cutter, "ask", lambda request, then: asked.append(request))
    cutter.addresses = [Address(0, 0, group_of(1, 0))]
    cutter.link = Link(cutter.world, cutter, cutter)
    cutter._begin(cutter.link)
    cut = cutter._cut
    cutter._read(cut, 5, m.Barriers(True, ((0, 5, 9),)))
    cutter._fetched(cut, 0, 0, m.Refusal(NotLeader.code, "its leader is on its way"))
    cutter.link = None
    cutter.closed()
    cutter.link = Link(cutter.world, cutter, cutter)
    cutter.world.run(SECOND)
    assert [type(request) for request in asked] == [m.AskBarriers, m.Fetch]


def test_a_topic_is_asked_for_once_on_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(_Run(0, NODE)._scene, "c")
    asked = list[m.Request]()
    monkeypatch.setattr(client, "ask", lambda request, then: asked.append(request))
    client.link = Link(client.world, client, client)
    client._greeted(m.Refusal(NotLeader.code, "its leader is on its way"))
    client._created(m.Refusal(NotLeader.code, "its leader is on its way"))
    client.link = Link(client.world, client, client)
    client._greeted(m.Refusal(NotLeader.code, "its leader is on its way"))
    client.world.run(SECOND)
    assert [type(request) for request in asked] == [m.CreateTopic] * 2
