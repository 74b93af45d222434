"""Simulated hubs: what a reboot leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir.protocol import device as d
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Publish
from weir_lab.sim.programs.publishers.hubs import Hub
from weir_lab.sim.run import Run
from weir_lab.sim.shape import NODE

LOCKS = range(3)
#: The longest time until a side notices that its connection is gone.
NOTICED_MS = 60


def test_a_hub_that_rebooted_hears_nothing_of_the_connection_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(1, replace(NODE, hubs=1, device_messages=100))
    (hub,) = (one for one in run.workload.producers if isinstance(one, Hub))
    world, is_likely = run.world, False
    monkeypatch.setattr(world, "chance", lambda _: is_likely)
    monkeypatch.setattr(world, "between", lambda _, most: most)
    link = hub.link = Link(world, hub, hub)
    monkeypatch.setattr(link, "to_host", lambda _: None)  # no broker is there

    def confirm() -> list[Publish]:
        for sn in LOCKS:
            hub.received(link, d.encode_confirm(sn, sequence=0, code=0, offset=7))
        return [publish for publish in run.history.publishes if publish.confirms]

    hub.received(link, d.encode_welcome(0, 0, 1))
    world.run(world.now + 40 * MS)
    confirmed, before = confirm(), hub.epoch
    assert confirmed
    is_likely = True
    while hub.epoch == before:
        world.run(world.now + MS)
    is_likely = False
    for _ in range(NOTICED_MS):
        assert confirm() == confirmed
        world.run(world.now + MS)
