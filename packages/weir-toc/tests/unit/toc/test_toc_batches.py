"""Batches: scatterings in one piece do what they do one by one, whatever befalls some of them."""

from __future__ import annotations

import pytest

from rigs.one_rack import OneRack
from weir_toc import packet as wire
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import Left, LeftAlike, Reason, SendFailed, Service
from weir_toc.packet import Acknowledgement, Packet, cost_of

BE, R = Service.BEST_EFFORT, Service.RELIABLE
A, B, C = 1, 2, 3
SIZE = wire.OVERHEAD_BYTES + 3


def windowed(service: Service, **config: int) -> OneRack:
    """A rack of three, where A has a window of B and of C."""
    rack = OneRack(3, **config)
    rack.send(A, service, (B, b"a window"), (C, b"a window"))
    rack.run(6)
    rack.events[A].clear()
    return rack


def queued(rack: OneRack, service: Service, count: int, to: int = B) -> Endpoint:
    """Let A send many to one receiver; what it queues is lost."""
    sender = rack.endpoints[A]
    sender.send_many(rack.now, service, [[(to, b"%03d" % number)] for number in range(count)])
    sender.take_packets()
    return sender


def answered(rack: OneRack, ack: Acknowledgement, number: int = 1_000) -> None:
    """Give A an ACK of B."""
    packet = Packet(wire.ACK, B, A, psn=number, payload=wire.encode_ack(ack))
    rack.endpoints[A].receive(rack.now, [wire.encode(packet)])


@pytest.mark.parametrize("service", Service)
def test_what_an_ack_covers_in_part_is_acknowledged_in_part(service: Service) -> None:
    rack = windowed(service)
    sender = queued(rack, service, 100)
    before = sender.describe()["credits"]
    through = 1 if service is BE else 31
    ranges = ((1, 30), (70, 5)) if service is BE else ((70, 5),)
    answered(rack, Acknowledgement(service.value, 3_000_000, 11, through, 35, 0, ranges))
    state = sender.describe()
    assert state["open"] + state["best_effort"] == 65
    assert state["credits"] == before - 10 * cost_of(3)
    rack.run(1_000 if service is R else 30)
    state = sender.describe()
    assert state["open"] == state["best_effort"] == 0
    lost = {one.ticket - 2 for one in rack.events[A] if isinstance(one, SendFailed)}
    assert lost == ({*range(30, 69), *range(74, 100)} if service is BE else set())


def test_credits_come_back_once_whether_a_batch_is_whole_or_not() -> None:
    rack = windowed(R, program_takes=True)
    tickets = rack.endpoints[A].send_many(rack.now, R, [[(B, b"%03d" % n)] for n in range(150)])
    rack.carry()
    rack.run(6)
    assert len(tickets) == 150
    held = rack.endpoints[A].describe()["credits"]
    for taken, left in ((1, 150), (11, 139), (100, 39), (39, 0)):
        rack.endpoints[B].taken(rack.now, R, taken)
        rack.run(3)
        credits = rack.endpoints[A].describe()["credits"]
        assert held - credits == cost_of(8) + (150 - left) * cost_of(3)


def test_part_of_a_batch_is_released_before_the_rest_is_acknowledged() -> None:
    rack = windowed(BE)
    sender = queued(rack, BE, 60)
    assert sender.describe()["credits"] == 60 * cost_of(3)
    ack = Acknowledgement(BE.value, 3_000_000, 21, 0, 0, 0, ())
    answered(rack, ack)
    assert sender.describe()["credits"] == 40 * cost_of(3)
    rack.run(30)  # all are lost
    answered(rack, ack, 1_001)
    assert sender.describe()["credits"] == 0


def test_one_message_of_a_batch_comes_late() -> None:
    rack = windowed(BE)
    sender = rack.endpoints[A]
    sender.send_many(rack.now, BE, [[(B, b"%03d" % number)] for number in range(20)])
    stamps = [one.stamp for one in sender.take_events() if isinstance(one, Left)]
    sender.take_packets()
    nak = Packet(wire.NAK, B, A, stamps[7], psn=8)
    sender.receive(rack.now, [wire.encode(nak)])
    (failed,) = (one for one in sender.take_events() if isinstance(one, SendFailed))
    assert (failed.stamp, failed.to, failed.reason) == (stamps[7], B, Reason.LATE)
    assert sender.describe()["best_effort"] == 19
    assert sender.describe()["credits"] == 19 * cost_of(3)


@pytest.mark.parametrize("service", Service)
def test_a_batch_fails_with_its_receiver(service: Service) -> None:
    rack = windowed(service, reorder_budget=200 * cost_of(3), part_max=60)
    sender = queued(rack, service, 900)
    left = sum(isinstance(one, Left) for one in sender.take_events())
    assert 0 < left < 900
    sender.process_failed(rack.now, B, rack.now)
    events = sender.take_events()
    sender.recalls_noted(rack.now, B)
    failed = [one for one in (*events, *sender.take_events()) if isinstance(one, SendFailed)]
    assert sorted(one.ticket for one in failed) == [*range(2, 902)]
    assert sum(not one.stamp for one in failed) == 900 - left
    state = sender.describe()
    assert state["buffered"] == state["credits"] == state["open"] == state["best_effort"] == 0
    assert {one.reason for one in failed} == {Reason.PROCESS_FAILED}
    again = sender.send_many(rack.now, service, [[(B, b"x")]] * 5)
    told = [one.ticket for one in sender.take_events() if isinstance(one, SendFailed)]
    assert told == [*again]


def test_a_batch_to_nobody_is_given_up() -> None:
    rack = OneRack(2, unreachable_after=50)
    rack.run(4)
    sender = rack.endpoints[A]
    sender.send_many(rack.now, R, [[(77, b"%d" % (number % 10))] for number in range(30)])
    rack.run(200)
    failed = [one for one in rack.events[A] if isinstance(one, SendFailed)]
    assert [one.ticket for one in failed] == [*range(1, 31)]
    assert {one.reason for one in failed} == {Reason.UNREACHABLE}
    assert sender.describe()["buffered"] == 0


def test_a_batch_leaves_as_windows_allow_and_in_its_turn() -> None:
    rack = windowed(R, reorder_budget=300 * cost_of(3), part_max=60)
    sender = rack.endpoints[A]
    sender.send_many(rack.now, R, [[(B, b"%03d" % number)] for number in range(700)])
    last = sender.send(rack.now, R, [(B, b"end")])
    parts = [one for one in sender.take_event_runs() if isinstance(one, LeftAlike)]
    assert 0 < sum(len(one.tickets) for one in parts) < 700
    rack.run(400)
    assert rack.texts(B)[1:] == [*(b"%03d" % number for number in range(700)), b"end"]
    left = [one.ticket for one in rack.events[A] if isinstance(one, Left)]
    assert left[-1] == last


def test_calls_that_leave_at_once_leave_in_one_piece_and_each_is_told() -> None:
    rack = OneRack(2)
    sender = rack.endpoints[A]
    tickets = [sender.send(rack.now, R, [(B, b"%d" % number)]) for number in range(8)]
    rack.carry()
    rack.run(6)
    left = [one for one in rack.events[A] if isinstance(one, Left)]
    assert [one.ticket for one in left] == tickets
    assert [one.stamp for one in left] == [*range(left[0].stamp, left[0].stamp + 8)]
    assert rack.texts(B) == [b"%d" % number for number in range(8)]


def test_what_is_sent_again_of_a_batch_keeps_its_stamp_and_number() -> None:
    rack = windowed(R)
    sender = rack.endpoints[A]
    sender.send_many(rack.now, R, [[(B, b"%03d" % number)] for number in range(70)])
    first = {one.stamp: one for one in decoded(rack, sender)}
    rack.now += 200 * 1_000_000
    sender.tick(rack.now)
    again = decoded(rack, sender)
    assert len(again) == 32
    for one in again:
        assert (one.psn, one.payload, one.flags) == (
            first[one.stamp].psn, first[one.stamp].payload, first[one.stamp].flags,
        )  # fmt: skip


def decoded(rack: OneRack, sender: Endpoint) -> list[Packet]:
    """Return the reliable packets that a process has queued."""
    packets = [wire.decode(one, rack.now) for one in sender.take_packets()]
    return [one for one in packets if one.opcode == wire.DATA_R]
