"""Simulated producers: what they make of answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.errors import PartitionEnded, Unavailable
from weir.model.ids import Address, group_of
from weir.protocol.client.messages import ProducerGrant, Refusal, Reply
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import SECOND
from weir_lab.sim.programs.publishers.producers import Producer
from weir_lab.sim.run import Run
from weir_lab.sim.shape import NODE


def test_what_was_given_up_does_not_go_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(0, NODE)
    producer = Producer(run.scene, "p", 0, 1)
    answers: list[Callable[[Reply], None]] = []
    monkeypatch.setattr(producer, "ask", lambda request, then: answers.append(then))
    monkeypatch.setattr(producer.world, "chance", lambda _: False)  # neither mischief nor repeats
    producer.link = Link(producer.world, producer, producer)
    producer.addresses = [Address(0, 0, group_of(1, 0))]
    producer.ready()
    answers.pop()(ProducerGrant(1, 0))
    producer.world.run(SECOND)
    producer.closed()
    producer.ready()
    first, again = answers
    first(Refusal(PartitionEnded.code, "it has ended"))
    again(Refusal(Unavailable.code, "this node stops"))
    assert producer.finished
    assert not run.history.complaints
    (publish,) = run.history.publishes
    assert publish.ended
