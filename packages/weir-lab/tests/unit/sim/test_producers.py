"""Simulated producers: what they make of answers."""

from __future__ import annotations

from weir.errors import PartitionEnded, Unavailable
from weir.model.ids import Address, group_of
from weir.protocol.client.messages import ProducerGrant, Refusal
from weir.testing.simulator.network import Link
from weir_lab.sim.programs.publishers.producers import Producer
from weir_lab.sim.run import _Run
from weir_lab.sim.shape import NODE


def test_what_was_given_up_does_not_go_out_again() -> None:
    run = _Run(0, NODE)
    producer = Producer(run._scene, "p", 0, 1)
    producer.link = Link(producer.world, producer, producer)
    producer.addresses = [Address(0, 0, group_of(1, 0))]
    producer._opened(ProducerGrant(1, 0))
    producer._next()
    (batch,) = producer._held
    first = batch.send
    producer._send(batch)
    producer._answered(batch, first, Refusal(PartitionEnded.code, "it has ended"))
    producer._answered(batch, batch.send, Refusal(Unavailable.code, "this node stops"))
    assert producer.finished
    assert not run.history.complaints
    assert batch.publish.ended
