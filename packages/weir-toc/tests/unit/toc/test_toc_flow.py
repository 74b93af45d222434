"""What counts against the two windows of a receiver: what it holds, and what is under way."""

from __future__ import annotations

from random import Random

import pytest

from rigs.one_rack import START, OneRack
from weir_toc import packet as wire
from weir_toc.endpoint.events import EndpointConfig, Left, Reason, SendFailed, Service
from weir_toc.endpoint.flow import Flow, Part
from weir_toc.packet import Acknowledgement, Packet

BE, R = Service.BEST_EFFORT, Service.RELIABLE
A, B, C = 1, 2, 3
SIZE = 1_000


def send(rack: OneRack, service: Service, count: int, alike: bool = True) -> None:
    """Let A send messages to B, of one size or of several."""
    scatterings = [[(B, bytes(SIZE - (0 if alike else n % 2)))] for n in range(count)]
    rack.endpoints[A].send_many(rack.now, service, scatterings)
    rack.carry()


def left(rack: OneRack) -> int:
    return sum(isinstance(one, Left) for one in rack.events[A])


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("service", Service)
def test_what_a_program_has_not_taken_is_no_load_on_the_network(
    service: Service, alike: bool
) -> None:
    rack = OneRack(2, program_takes=True, part_max=SIZE)
    rack.run(3)
    send(rack, service, 1)
    rack.run(6)
    rack.loses = lambda _process, data: wire.mark(data) if data[22] == service.value else False
    send(rack, service, 40, alike)
    rack.run(200)
    assert rack.endpoints[A].describe()["window_least"] < 2 * (SIZE + wire.PACKET_COST)
    rack.holds = lambda _process, data: data[22] == service.value
    send(rack, service, 5, alike)
    assert left(rack) == 42  # one is under way
    rack.holds = lambda _process, _data: False
    rack.release()
    rack.run(200)
    assert left(rack) == len(rack.messages(B)) == 46
    state = rack.endpoints[A].describe()
    assert (state["under_way"], state["buffered"]) == (0, 0)
    assert state["credits"] > 40 * SIZE


def test_what_a_program_has_not_taken_counts_in_the_window_of_its_receiver() -> None:
    rack = OneRack(2, program_takes=True, part_max=SIZE, reorder_budget=30_000)
    send(rack, R, 60)
    rack.run(60)
    here = len(rack.messages(B))
    assert here == left(rack) < 25
    rack.endpoints[B].taken(rack.now, R, here)
    rack.run(20)
    assert left(rack) > here


def test_what_is_released_before_it_is_acknowledged_has_left_the_network() -> None:
    rack = OneRack(2)
    send(rack, BE, 1)
    rack.run(6)
    sender = rack.endpoints[A]
    rack.loses = lambda _process, data: data[22] == BE.value
    send(rack, BE, 60)

    def answer(number: int, released: int, *ranges: tuple[int, int]) -> int:
        ack = Acknowledgement(BE.value, 3_000_000, released, 0, 0, 0, ranges)
        packet = Packet(wire.ACK, B, A, psn=100 + number, payload=wire.encode_ack(ack))
        sender.receive(rack.now, [wire.encode(packet)])
        return sender.describe()["under_way"] // (SIZE + wire.PACKET_COST)

    assert answer(0, 1) == 60
    assert answer(1, 21) == 40
    assert answer(2, 21, (0, 61)) == 0
    assert sender.describe()["credits"] == 40 * (SIZE + wire.PACKET_COST)


def test_what_is_recalled_has_left_the_network() -> None:
    rack = OneRack(3)
    rack.send(A, R, (B, b"connects"), (C, b"connects"))
    rack.run(6)
    rack.loses = lambda _process, data: data[22] in (R.value, wire.RECALL)
    rack.send(A, R, (B, bytes(SIZE)), (C, bytes(SIZE)))
    sender = rack.endpoints[A]
    assert sender.describe()["under_way"] == 2 * (SIZE + wire.PACKET_COST)
    sender.process_failed(rack.now, C, rack.now)
    assert sender.describe()["under_way"] == 0
    assert sender.describe()["credits"] == SIZE + wire.PACKET_COST


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_under_way_or_held_in_the_end(seed: int) -> None:
    """Whatever is lost, given up, released before it is acknowledged, or sent again."""
    dice = Random(seed)
    rack = OneRack(2, program_takes=bool(seed % 2), part_max=3_000, lost_after=5)
    lossy = dice.choice((0.0, 0.05, 0.3))
    rack.loses = lambda _process, data: data[22] != wire.BEACON and dice.random() < lossy
    taken = dict.fromkeys(Service, 0)
    sender = rack.endpoints[A]

    def take() -> None:
        for service in Service if seed % 2 else ():
            count = sum(one.service is service for one in rack.messages(B)) - taken[service]
            taken[service] += count
            rack.endpoints[B].taken(rack.now, service, count)

    for _ in range(40):
        service, size = dice.choice([*Service]), dice.choice((3, 3, 3, 2_500))
        count = dice.randrange(1, 80) if size == 3 else 2
        sender.send_many(rack.now, service, [[(B, bytes(size))] for _ in range(count)])
        rack.carry()
        rack.run(dice.choice((0.25, 1, 3)))
        take()
        state = sender.describe()
        assert 0 <= state["under_way"] <= state["credits"]
    rack.loses = lambda _process, _data: False
    for _ in range(30):
        rack.run(20)
        take()
    state = sender.describe()
    assert state["open"] == state["best_effort"] == state["under_way"] == state["credits"] == 0


# -- losses ----------------------------------------------------------------------------------------


def test_one_part_may_leave_whatever_the_marks_and_none_above_the_window() -> None:
    flow = Flow(B, START, EndpointConfig(part_max=SIZE))
    one = Part(B, bytes(SIZE))
    flow.congestion.bytes = 1
    assert not flow.fits(one.size)
    flow.window = one.size
    assert flow.fits(one.size)
    flow.grant(one)
    assert (flow.used, flow.congestion.under_way) == (one.size, one.size)
    assert not flow.fits(one.size)
    flow.arrived(one)
    assert not flow.fits(one.size)
    flow.release(one)
    flow.release(one)
    assert (flow.used, flow.congestion.under_way) == (0, 0)
    assert flow.fit(one.size) == 1
    flow.window, flow.congestion.bytes = 100 * one.size, 10 * one.size
    flow.grant(one)
    assert flow.fit(one.size) == 9
    flow.arrived(one)
    assert flow.fit(one.size) == 10


@pytest.mark.parametrize("service", Service)
def test_lost_packets_shrink_the_window_once_for_what_was_under_way(service: Service) -> None:
    rack = OneRack(2)
    send(rack, service, 1)
    rack.run(6)
    for _ in range(40):
        send(rack, service, 50)
        rack.run(4)
    before = rack.endpoints[A].describe()["window_least"]
    numbers = iter(range(1_000))
    rack.loses = lambda _process, data: (
        data[22] == service.value and next(numbers) in (10, 20, 30, 200, 201)
    )
    send(rack, service, 100)
    rack.run(0.25)
    send(rack, service, 20)
    rack.run(6)
    send(rack, service, 4)
    rack.run(30)
    after = rack.endpoints[A].describe()["window_least"]
    assert before // 2 <= after < before * 3 // 5


@pytest.mark.parametrize("service", Service)
def test_messages_of_which_nothing_is_heard_shrink_the_window(service: Service) -> None:
    rack = OneRack(2)
    send(rack, service, 1)
    rack.run(6)
    before = rack.endpoints[A].describe()["window_least"]
    rack.loses = lambda _process, data: data[22] == service.value
    send(rack, service, 3)
    rack.run(30)  # nothing later tells of them
    after = rack.endpoints[A].describe()["window_least"]
    assert after == before // 2 if service is BE else after < before


def test_a_lost_burst_is_sent_again_as_fast_as_acks_come() -> None:
    """A buffer takes 64 packets of each burst: each ACK shows that packets arrive again."""
    rack = OneRack(2)
    passed: dict[int, int] = {}

    def overflows(_process: int, data: bytearray) -> bool:
        if data[22] != R.value:
            return False
        passed[rack.now] = passed.get(rack.now, 0) + 1
        return passed[rack.now] > 64

    rack.loses = overflows
    for number in range(256):
        rack.endpoints[A].send(rack.now, R, ((B, b"%d" % number),))
    rack.carry()
    rack.run(20)
    assert rack.texts(B) == [b"%d" % number for number in range(256)]


# -- best effort that is lost ----------------------------------------------------------------------


@pytest.mark.parametrize("alike", [True, False])
def test_what_came_without_its_ack_counts_until_it_is_taken(alike: bool) -> None:
    rack = OneRack(2, program_takes=True, part_max=SIZE, reorder_budget=30_000)
    send(rack, BE, 1)
    rack.run(6)
    rack.loses = lambda process, data: process == B and data[22] == wire.ACK
    send(rack, BE, 5, alike)
    rack.run(30)
    assert sum(isinstance(one, SendFailed) for one in rack.events[A]) == 5
    rack.loses = lambda _process, _data: False
    for _ in range(5):
        send(rack, BE, 10, alike)
        rack.run(30)
    assert not rack.endpoints[B].counters.over_budget
    here = 0
    for _ in range(10):
        rack.endpoints[B].taken(rack.now, BE, len(rack.messages(B)) - here)
        here = len(rack.messages(B))
        rack.run(30)
    assert here == 56
    assert rack.endpoints[A].describe()["credits"] == 0


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_what_came_of_a_lost_message_counts_until_its_barrier_has_passed(missing: int) -> None:
    size = 4 * wire.PAYLOAD_BYTES_MAX
    rack = OneRack(3, part_max=size, reorder_budget=30_000, lost_after=4)
    send(rack, BE, 1)
    rack.run(6)
    rack.holds = lambda process, _data: process == C  # barriers stand
    packets = iter(range(4))
    rack.loses = lambda _process, data: data[22] == wire.DATA_BE and next(packets) == missing
    rack.send(A, BE, (B, bytes(size)))
    rack.loses = lambda _process, _data: False
    rack.run(5)
    assert [one.reason for one in rack.events[A] if isinstance(one, SendFailed)] == [Reason.LOST]
    for _ in range(30):
        send(rack, BE, 1)
    assert not rack.endpoints[B].counters.over_budget
    assert rack.endpoints[A].describe()["buffered"]
    rack.holds = lambda _process, _data: False
    rack.release()
    rack.run(50)
    assert len(rack.messages(B)) == 31
    assert rack.endpoints[A].describe()["credits"] == 0


@pytest.mark.parametrize("missing", [range(4), range(1, 4)])
def test_credits_return_of_what_did_not_come(missing: range) -> None:
    """The window holds one message: nothing comes behind it that would be released later."""
    size = 4 * wire.PAYLOAD_BYTES_MAX
    rack = OneRack(2, part_max=size, reorder_budget=12_000)
    rack.send(A, BE, (A, b"to itself"))
    send(rack, BE, 1)
    rack.run(6)
    passed = iter(range(100))
    rack.loses = lambda _process, data: data[22] == wire.DATA_BE and next(passed) % 4 in missing
    rack.endpoints[A].send_many(rack.now, BE, [[(B, bytes(size))] for _ in range(3)])
    rack.run(10)
    assert left(rack) == 3
    rack.run(21)
    assert left(rack) == 4  # at once, as an ACK was asked for
    rack.run(200)
    state = rack.endpoints[A].describe()
    assert left(rack) == 5
    assert (state["buffered"], state["credits"]) == (0, 0)


def test_only_an_ack_that_is_newer_than_a_loss_tells_what_came() -> None:
    flow = Flow(B, START, EndpointConfig(part_max=SIZE))
    first, last = Part(B, bytes(4 * SIZE)), Part(B, bytes(4 * SIZE))
    last.first_psn = first.packets
    flow.next_psn[BE] = last.first_psn + last.packets
    for part in (first, last):
        flow.unreleased[BE].append(part)
        flow.grant(part)
        flow.give_up(part, is_lost=True)
    assert flow.congestion.under_way == 0
    ack = Acknowledgement(BE.value, 0, 0, 0, ranges=((0, 1), (last.first_psn, 1)))
    nothing = Acknowledgement(BE.value, 0, 0, 0)
    flow.find_lost(BE, flow.ack_number, nothing)
    flow.find_lost(R, flow.ack_number + 1, nothing)
    assert flow.used == first.size + last.size
    flow.find_lost(BE, flow.ack_number + 1, ack)
    assert flow.used == first.size + last.size
    assert not flow.lost
    flow.released(BE, last.first_psn)
    assert flow.used == last.size
    flow.released(BE, last.first_psn + 1)
    assert flow.used == 0
