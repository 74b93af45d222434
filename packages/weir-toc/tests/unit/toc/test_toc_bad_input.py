"""What no process of this protocol sends, and what no program should: refused, and no harm done."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rigs.one_rack import OneRack
from weir_toc import packet as wire
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import Message, Service
from weir_toc.errors import InvalidScattering
from weir_toc.packet import NEIGHBOUR, Acknowledgement, Packet

BE, R = Service.BEST_EFFORT, Service.RELIABLE
A, B, STRANGER = 1, 2, 7


def acquainted() -> OneRack:
    rack = OneRack(2)
    for service in Service:
        rack.send(A, service, (A, b"connects"), (B, b"connects"))
    rack.run(5)
    return rack


def check_goes_on(rack: OneRack) -> None:
    """Both services still deliver what A sends, once, and nothing is left behind."""
    before = len(rack.texts(B))
    for service in Service:
        rack.send(A, service, (A, b"after"), (B, b"after"))
    rack.run(30)
    assert rack.texts(B)[before:] == [b"after"] * 2
    state = rack.endpoints[A].describe()
    assert not any(state[key] for key in ("buffered", "open", "best_effort", "under_way"))


def promised(rack: OneRack) -> list[tuple[int, int]]:
    """Return the registers of the switch."""
    return [(one.barrier, one.commit) for one in rack.switch.registers().values()]


@pytest.mark.parametrize("service", [BE, R])
@pytest.mark.parametrize(
    "parts",
    [[], [(B, b"x"), (B, b"y")], [(A, b"x"), (B, b"x"), (A, b"x")], [(0, b"")], [(-1, b"")],
     [(1 << 31, b"")]],
)  # fmt: skip
@pytest.mark.parametrize("times", [1, 8])
def test_a_send_to_nobody_or_twice_to_one_is_refused_and_queues_nothing(
    service: Service, parts: Sequence[tuple[int, bytes]], times: int
) -> None:
    rack = acquainted()
    good = [(B, b"x")]
    with pytest.raises(InvalidScattering):
        rack.endpoints[A].send_many(rack.now, service, [good, *[parts] * times])
    assert rack.endpoints[A].describe()["buffered"] == 0
    check_goes_on(rack)


@pytest.mark.parametrize("service", [BE, R])
def test_a_send_to_oneself_alone_is_delivered_once(service: Service) -> None:
    rack = acquainted()
    before = len(rack.texts(A))
    rack.send(A, service, (A, b"to myself"))
    rack.run(5)
    assert rack.texts(A)[before:] == [b"to myself"]
    check_goes_on(rack)


@pytest.mark.parametrize("opcode", [0, 200, 255])
def test_an_unknown_opcode_is_counted_as_damage(opcode: int) -> None:
    rack = acquainted()
    seen = len(rack.events[A])
    strange = wire.encode(Packet(opcode, B, A, rack.now, epoch=1, payload=b"x"))
    rack.endpoints[A].receive(rack.now, [strange])
    assert rack.endpoints[A].counters.damaged == 1
    rack.carry()
    assert rack.events[A][seen:] == []
    check_goes_on(rack)


@pytest.mark.parametrize("bit", [0, 7])
def test_each_damaged_byte_of_a_message_but_its_barriers_is_found(bit: int) -> None:
    rack = acquainted()
    endpoint = rack.endpoints[A]
    whole = wire.encode(Packet(wire.DATA_R, B, A, rack.now + 1, epoch=1, payload=b"payload"))
    places = [at for at in range(len(whole)) if not 6 <= at < 18]  # switches rewrite these
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        endpoint.receive(rack.now, [damaged])
    assert endpoint.counters.damaged == len(places)
    for size in range(len(whole)):
        endpoint.receive(rack.now, [whole[:size]])
    assert endpoint.counters.damaged == len(places) + len(whole)
    assert endpoint.take_events() == []
    check_goes_on(rack)


@pytest.mark.parametrize("source", [STRANGER, B])
def test_answers_to_what_was_never_sent_change_nothing(source: int) -> None:
    """Of a process that nothing was sent to, and of one that was sent something else."""
    rack = acquainted()
    seen, before = len(rack.events[A]), rack.endpoints[A].describe()
    ack = Acknowledgement(R.value, 0, 0, 0, 0, 0, ((40, 3),))
    answers = [
        Packet(wire.NAK, source, A, rack.now, epoch=1),
        Packet(wire.RECALL_ACK, source, A, rack.now, epoch=1),
    ]
    if source == STRANGER:
        answers.append(Packet(wire.ACK, source, A, epoch=1, payload=wire.encode_ack(ack)))
    rack.endpoints[A].receive(rack.now, map(wire.encode, answers))
    rack.carry()
    assert rack.events[A][seen:] == []
    assert rack.endpoints[A].describe() == before
    check_goes_on(rack)


def test_an_admission_of_another_epoch_is_not_taken() -> None:
    endpoint = Endpoint(A, 2, now=5)
    floors = wire.encode_floors(5, 5)
    for epoch in (1, 3):
        joined = Packet(wire.JOINED, 1 << 31, A, epoch=epoch, payload=floors)
        endpoint.receive(5, [wire.encode(joined)])
    assert endpoint.take_events() == []
    endpoint.receive(5, [wire.encode(Packet(wire.JOINED, 1 << 31, A, epoch=2, payload=floors))])
    assert len(endpoint.take_events()) == 1


@pytest.mark.parametrize(
    ("by", "source", "epoch"), [(STRANGER, STRANGER, 1), (A, A, 0), (A, A, 2), (A, B, 1)]
)
@pytest.mark.parametrize("opcode", [wire.BEACON, wire.DATA_BE, wire.DATA_R, wire.RECALL])
def test_a_switch_takes_nothing_of_an_unknown_process_or_epoch(
    by: int, source: int, epoch: int, opcode: int
) -> None:
    rack = acquainted()
    before, seen = promised(rack), len(rack.events[B])
    to = NEIGHBOUR if opcode == wire.BEACON else B
    far = rack.now + 10**9
    strange = Packet(opcode, source, to, far, far, far, psn=2, epoch=epoch, payload=b"strange")
    effects = rack.switch.receive(rack.now, by, wire.encode(strange))
    assert all(wire.decode(one.data, rack.now).opcode == wire.FENCED for one in effects)  # type: ignore[union-attr]
    assert promised(rack) == before
    rack.carry()
    assert not [one for one in rack.events[B][seen:] if isinstance(one, Message)]
    check_goes_on(rack)


@pytest.mark.parametrize("service", [BE, R])
def test_a_message_to_a_process_that_no_switch_knows_reaches_nobody(service: Service) -> None:
    rack = acquainted()
    before = rack.switch.counters.unroutable
    strange = Packet(service.value, A, STRANGER, rack.now, rack.now, rack.now, epoch=1)
    assert rack.switch.receive(rack.now, A, wire.encode(strange)) == []
    assert rack.switch.counters.unroutable == before + 1
    check_goes_on(rack)
