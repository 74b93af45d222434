"""Processes on one rack: both services, credits, fragments, memory, recalls."""

from __future__ import annotations

import pytest

from rigs.one_rack import OneRack, T
from weir_toc import packet as wire
from weir_toc.endpoint.events import (
    Counters,
    EndpointConfig,
    Excluded,
    Left,
    Message,
    ProcessFailed,
    Reason,
    SendFailed,
    Service,
    Settled,
)
from weir_toc.endpoint.recalls import RECALLS_AT_ONCE
from weir_toc.endpoint.receiving import Receiver
from weir_toc.errors import Fenced, InvalidScattering, SendBufferFull
from weir_toc.packet import Packet, cost_of
from weir_toc.topology import switch_id

BE, R = Service.BEST_EFFORT, Service.RELIABLE
A, B, C = 1, 2, 3


def of_kind(*opcodes: int):  # type: ignore[no-untyped-def]
    return lambda _process, data: data[22] in opcodes


@pytest.mark.parametrize("service", [BE, R])
def test_all_deliver_in_one_order(service: Service) -> None:
    rack = OneRack(3)
    for n in range(10):
        for process in (C, A, B):
            rack.send(process, service, *((to, b"%d %d" % (process, n)) for to in (A, B, C)))
        rack.run(0.5)
    rack.run(5)
    assert rack.texts(A) == rack.texts(B) == rack.texts(C)
    assert len(rack.texts(A)) == 30
    keys = [(one.stamp, one.source) for one in rack.messages(A)]
    assert keys == sorted(set(keys))


def test_a_scattering_has_one_stamp_and_a_payload_for_each_receiver() -> None:
    rack = OneRack(3)
    ticket = rack.send(A, R, (B, b"b"), (C, b"c"))
    rack.run(5)
    (left,) = (one for one in rack.events[A] if isinstance(one, Left))
    assert left.ticket == ticket
    assert rack.events[B][-1] == Message(R, left.stamp, A, b"b")
    assert rack.events[C][-1] == Message(R, left.stamp, A, b"c")


def test_best_effort_is_delivered_strictly_below_the_barrier() -> None:
    rack = OneRack(2)
    rack.send(A, BE, (B, b"x"))
    stamp = next(one.stamp for one in rack.events[A] if isinstance(one, Left))
    barrier, _ = rack.endpoints[B].barriers
    assert barrier <= stamp
    assert rack.texts(B) == []
    rack.run(3)
    assert rack.texts(B) == [b"x"]


def test_a_reliable_message_is_delivered_at_its_commit_barrier_and_not_before() -> None:
    """At it, as best effort is not: no later stamp has the value of a commit barrier."""
    rack = OneRack(2)
    rack.send(A, R, (B, b"connects"))
    rack.run(5)
    rack.loses = of_kind(wire.BEACON)
    rack.now += T // 8
    rack.send(A, R, (B, b"x"))
    stamp = next(one.stamp for one in reversed(rack.events[A]) if isinstance(one, Left))
    rack.run(1)  # B promises more than that, and nobody hears of it
    for commit, texts in ((stamp - 1, [b"connects"]), (stamp, [b"connects", b"x"])):
        beacon = wire.encode_beacon(switch_id("rack-0"), 1, stamp - 1, commit)
        rack.endpoints[B].receive(rack.now, [bytes(beacon)])
        rack.carry()
        assert rack.endpoints[B].barriers[1] == commit
        assert rack.texts(B) == texts


def test_a_message_to_oneself_goes_the_way_of_all_others() -> None:
    rack = OneRack(2)
    rack.send(A, R, (A, b"to me"), (B, b"to you"))
    rack.run(5)
    assert (rack.texts(A), rack.texts(B)) == ([b"to me"], [b"to you"])


def test_a_lost_best_effort_packet_is_reported_and_not_sent_again() -> None:
    rack = OneRack(2)
    rack.send(A, BE, (B, b"connects"))
    rack.run(5)
    rack.loses = of_kind(wire.DATA_BE)
    ticket = rack.send(A, BE, (B, b"lost"))
    rack.loses = lambda _process, _data: False
    rack.run(30)
    assert rack.texts(B) == [b"connects"]
    (failed,) = (one for one in rack.events[A] if isinstance(one, SendFailed))
    assert (failed.ticket, failed.to, failed.reason) == (ticket, B, Reason.LOST)


def test_a_late_best_effort_message_is_dropped_and_answered_with_a_nak() -> None:
    rack = OneRack(2)
    rack.send(A, BE, (B, b"connects"))
    rack.run(5)
    rack.holds = of_kind(wire.DATA_BE)  # beacons overtake it, which no FIFO link lets happen
    ticket = rack.send(A, BE, (B, b"late"))
    rack.holds = lambda _process, _data: False
    rack.run(5)
    rack.release()
    rack.run(1)
    assert rack.texts(B) == [b"connects"]
    assert rack.endpoints[B].counters.late == 1
    (failed,) = (one for one in rack.events[A] if isinstance(one, SendFailed))
    assert (failed.ticket, failed.reason) == (ticket, Reason.LATE)
    assert rack.endpoints[A].describe()["credits"] == 0


def test_a_repeated_packet_is_delivered_once_and_is_not_late() -> None:
    rack = OneRack(2)
    copies = []

    def copy(process: int, data: bytearray) -> bool:
        if data[22] in (wire.DATA_BE, wire.DATA_R):
            copies.append((process, bytearray(data)))
        return False

    rack.loses = copy
    rack.send(A, BE, (B, b"one"))
    rack.send(A, R, (B, b"two"))
    rack.run(5)
    for process, data in copies:
        rack.give(process, data)
    rack.run(25)
    assert sorted(rack.texts(B)) == [b"one", b"two"]
    assert rack.endpoints[B].counters.duplicates == 2
    assert not [one for one in rack.events[A] if isinstance(one, SendFailed)]


def test_reliable_packets_are_sent_again_and_hold_the_commit_barrier() -> None:
    rack = OneRack(2)
    rack.send(A, R, (B, b"connects"))
    rack.run(5)
    rack.loses = of_kind(wire.DATA_R)
    rack.send(A, R, (B, b"first"))
    stamp = [one for one in rack.events[A] if isinstance(one, Left)][-1].stamp
    rack.run(5)
    assert rack.endpoints[B].barriers[1] < stamp  # none may pass what is not acknowledged
    assert rack.endpoints[B].barriers[0] > stamp
    rack.loses = lambda _process, _data: False
    rack.run(80)
    assert rack.texts(B) == [b"connects", b"first"]
    assert rack.endpoints[A].counters.resent
    assert rack.endpoints[B].barriers[1] > stamp


@pytest.mark.parametrize("size", [0, 1, 1_400, 1_401, 32_768])
@pytest.mark.parametrize("service", [BE, R])
def test_large_parts_go_in_fragments(size: int, service: Service) -> None:
    rack = OneRack(2)
    payload = bytes(n % 251 for n in range(size))
    rack.send(A, service, (B, payload))
    rack.run(6)
    assert rack.texts(B) == [payload]


def test_a_message_with_a_lost_fragment_is_dropped_whole() -> None:
    rack = OneRack(2)
    rack.send(A, BE, (B, b"connects"))
    rack.run(5)
    rack.loses = lambda _process, data: data[22] == wire.DATA_BE and not data[23] & 7
    rack.send(A, BE, (B, bytes(5_000)))
    rack.run(5)
    assert rack.texts(B) == [b"connects"]
    assert rack.endpoints[B].counters.incomplete == 1
    assert rack.endpoints[B].describe()["reordering"] == 0


def test_calls_that_nobody_could_carry_out_are_refused() -> None:
    rack = OneRack(2, send_buffer=13_000)
    too_large = [(B, bytes(7_000)), (C, bytes(7_000))]
    for parts in (
        too_large,
        [],
        [(B, b"x"), (B, b"y")],
        [(0, b"x")],
        [(1 << 31, b"x")],
        [(B, bytes(32_769))],
    ):
        with pytest.raises(InvalidScattering):
            rack.send(A, R, *parts)
    rack.loses = of_kind(wire.CONNECT)
    rack.send(A, R, (B, bytes(9_000)))
    with pytest.raises(SendBufferFull):
        rack.send(A, R, (B, bytes(2_000)))


def test_a_receiver_that_never_answers_is_given_up() -> None:
    rack = OneRack(1, unreachable_after=50)
    ticket = rack.send(A, R, (9, b"nobody"))
    rack.run(200)
    assert SendFailed(ticket, 0, 9, Reason.UNREACHABLE, R) in rack.events[A]
    assert rack.endpoints[A].describe()["buffered"] == 0


def test_credits_are_granted_in_the_order_of_arrival() -> None:
    rack = OneRack(3, reorder_budget=131_072)
    for to in (A, B, C):
        rack.send(A, R, (to, b"connects"))
    rack.run(5)
    rack.loses = of_kind(wire.ACK)  # nothing is released from here on
    tickets = [rack.send(A, R, (B, bytes(32_000)), (C, bytes(32_000))) for _ in range(6)]
    overtakes = rack.send(A, R, (A, b"to myself"))
    rack.run(2)
    left = [one.ticket for one in rack.events[A] if isinstance(one, Left)]
    assert overtakes in left
    waiting = [ticket for ticket in tickets if ticket not in left]
    assert waiting == tickets[-len(waiting) :]
    rack.loses = lambda _process, _data: False
    rack.run(300)
    left = [one.ticket for one in rack.events[A] if isinstance(one, Left) if one.ticket in tickets]
    assert left == tickets


def test_windows_never_exceed_the_budget_and_shrink_when_senders_join() -> None:
    rack = OneRack(2, reorder_budget=100_000, part_max=10_000)
    rack.send(A, R, (B, b"x"))
    rack.run(5)
    receiver = rack.endpoints[B]
    assert receiver.describe()["granted"] == 100_000
    for _ in range(4):
        joined = rack.join()
        rack.run(3)
        rack.send(joined, R, (B, b"hello"))
        for _ in range(40):
            rack.run(0.5)
            assert receiver.describe()["granted"] <= 100_000
    assert rack.texts(B).count(b"hello") == 4


def test_memory_is_bounded_while_a_barrier_stands_still() -> None:
    rack = OneRack(3, reorder_budget=100_000, part_max=10_000)
    for _ in range(30):
        rack.send(A, R, (B, bytes(10_000)))
    rack.loses = lambda process, _data: process == C  # a silent process stops all
    rack.run(30)
    counters = rack.endpoints[B].counters
    assert counters.delivered < 30
    assert 0 < counters.buffered_max <= 100_000
    rack.loses = lambda _process, _data: False
    rack.switch.remove(rack.now, C, epoch=1)
    rack.run(300)
    assert len(rack.texts(B)) == 30
    assert counters.buffered_max <= 100_000


@pytest.mark.parametrize("size", [0, 1])
def test_messages_without_a_payload_take_memory_too(size: int) -> None:
    rack = OneRack(3, reorder_budget=100_000, part_max=10_000, send_buffer=1_000_000)
    rack.send(A, R, (B, b"x"))
    rack.run(5)
    rack.loses = lambda process, _data: process == C  # a silent process stops all
    sent = 0

    def fill() -> None:
        nonlocal sent
        while sent < 10_000:
            rack.send(A, R, (B, bytes(size)))
            sent += 1

    with pytest.raises(SendBufferFull):
        fill()
    assert 2_000 < sent < 4_000  # those that wait to leave, and those at their receiver
    rack.run(30)
    assert 200 < rack.endpoints[B].describe()["reordering"] // (size + 400) <= 100_000 // 400


def test_a_barrier_above_what_this_process_has_sent_is_corrupt() -> None:
    rack = OneRack(2)
    endpoint = rack.endpoints[A]
    before = endpoint.barriers
    forged = Packet(wire.BEACON, 1 << 31, barrier=rack.now + T * 900, commit=rack.now, epoch=1)
    endpoint.receive(rack.now, [wire.encode(forged)])
    assert endpoint.counters.corrupt_barriers == 1
    assert endpoint.barriers == before


def test_a_message_below_a_false_commit_barrier_is_neither_delivered_nor_acknowledged() -> None:
    """It would be out of order. Its sender is not told that it has arrived, so it stays open."""
    rack = OneRack(2)
    rack.send(A, R, (B, b"connects"))
    rack.run(5)
    rack.loses = of_kind(wire.DATA_R)
    rack.send(A, R, (B, b"lost"))
    rack.loses = of_kind()
    rack.send(A, R, (B, b"behind it"))
    rack.run(1)
    receiver = rack.endpoints[B]
    false = Packet(wire.BEACON, 1 << 31, barrier=rack.now - T, commit=rack.now - T // 2, epoch=1)
    receiver.receive(rack.now, [wire.encode(false)])
    rack.carry()
    assert rack.texts(B) == [b"connects", b"behind it"]
    rack.run(300)
    assert rack.texts(B) == [b"connects", b"behind it"]
    assert rack.endpoints[A].describe()["open"] == 1
    assert rack.endpoints[A].counters.resent == receiver.counters.damaged > 3
    assert (receiver.counters.duplicates, receiver.counters.corrupt_barriers) == (0, 0)


def test_packets_of_no_protocol_are_counted() -> None:
    rack = OneRack(2)
    endpoint = rack.endpoints[A]
    wrong = [
        b"short",
        wire.encode(Packet(wire.ACK, B, A, epoch=1, payload=b"no ACK")),
        wire.encode(Packet(wire.DATA_R, B, C, epoch=1, payload=b"of another")),
    ]
    endpoint.receive(rack.now, wrong)
    assert endpoint.counters.damaged == 3
    assert endpoint.take_events() == []


def test_a_process_that_was_silent_is_excluded() -> None:
    rack = OneRack(2)
    rack.loses = lambda process, _data: process == B
    rack.run(12)
    rack.loses = lambda _process, _data: False
    rack.run(2)
    assert Excluded() in rack.events[B]
    with pytest.raises(Fenced):
        rack.send(B, R, (A, b"x"))
    assert rack.endpoints[B].take_packets() == []


# -- failures ------------------------------------------------------------------------------------


def failed_c() -> tuple[OneRack, int, int]:
    """A sends to B and C; C dies without an ACK. Return also the ticket and the stamp of F."""
    rack = OneRack(3)
    for process in (A, B, C):
        rack.send(process, R, *((to, b"connects") for to in (A, B, C)))
    rack.run(5)
    stamp = rack.switch.registers()[C].commit
    rack.loses = lambda process, _data: process == C
    ticket = rack.send(A, R, (B, b"recalled"), (C, b"recalled"))
    rack.run(15)
    return rack, ticket, stamp


def test_what_the_program_has_not_taken_of_a_failed_process_is_counted_once() -> None:
    rack = OneRack(2, program_takes=True)
    stamps = [rack.send(B, R, (A, bytes(1_000))) for _ in range(3)]
    rack.run(10)
    assert len(rack.messages(A)) == len(stamps)
    assert rack.endpoints[A].describe()["reordering"] == 3 * 1_400
    rack.endpoints[A].taken(rack.now, R, 1)
    assert rack.endpoints[A].describe()["reordering"] == 2 * 1_400
    rack.endpoints[A].process_failed(rack.now, B, rack.messages(A)[-1].stamp)
    assert rack.endpoints[A].describe()["reordering"] == 2 * 1_400
    rack.endpoints[A].taken(rack.now, R, 2)
    assert rack.endpoints[A].describe()["reordering"] == 0


def test_memory_of_a_failed_process_is_granted_to_nobody_until_it_is_free() -> None:
    rack = OneRack(3, reorder_budget=100_000, part_max=10_000, program_takes=True)
    for _ in range(3):
        rack.send(C, R, (B, bytes(10_000)))
    rack.run(10)
    receiver = rack.endpoints[B]
    held = receiver.describe()["reordering"]
    assert held == 3 * cost_of(10_000)
    receiver.process_failed(rack.now, C, rack.messages(B)[-1].stamp)
    for _ in range(30):
        rack.send(A, R, (B, bytes(10_000)))
    rack.run(30)
    assert receiver.granted == 100_000 - held
    assert receiver.counters.buffered_max <= 100_000
    receiver.taken(rack.now, R, 3)
    rack.run(3)
    assert receiver.granted == 100_000


def test_recalls_are_asked_for_few_at_once_and_all_in_the_end() -> None:
    rack, _, stamp = failed_c()
    for _ in range(99):
        rack.send(A, R, (B, b"x"), (C, b"x"))
    rack.holds = lambda process, data: process == A and data[22] == wire.RECALL
    rack.endpoints[A].process_failed(rack.now, C, stamp)
    rack.carry()
    assert len(rack.held) == RECALLS_AT_ONCE
    rack.holds = lambda _process, _data: False
    rack.held.clear()  # lost: they are asked for again
    rack.endpoints[B].process_failed(rack.now, C, stamp)
    rack.run(100)
    assert sum(isinstance(one, SendFailed) for one in rack.events[A]) == 100
    assert rack.events[A].count(Settled(C)) == 1
    rack.switch.remove(rack.now, C, epoch=1)
    rack.run(20)
    assert rack.texts(B) == [b"connects"] * 3


def test_a_scattering_to_a_failed_process_is_recalled_everywhere() -> None:
    rack, ticket, stamp = failed_c()
    for process in (A, B):
        rack.endpoints[process].process_failed(rack.now, C, stamp)
    rack.carry()
    assert Settled(C) in rack.events[A]
    assert Settled(C) in rack.events[B]
    failed = [one for one in rack.events[A] if isinstance(one, SendFailed)]
    assert [(one.ticket, one.to) for one in failed] == [(ticket, C)]
    rack.switch.remove(rack.now, C, epoch=1)
    later = rack.send(A, R, (B, b"later"))
    rack.run(20)
    assert rack.texts(B) == [b"connects"] * 3 + [b"later"]
    assert rack.events[A].count(ProcessFailed(C, rack.events[A][-1].stamp)) <= 1
    for process in (A, B):
        assert sum(isinstance(one, ProcessFailed) for one in rack.events[process]) == 1
    assert later > ticket


def test_the_commit_barrier_stays_below_what_is_recalled() -> None:
    rack, _, stamp = failed_c()
    rack.loses = lambda process, data: process == C or data[22] == wire.RECALL_ACK
    for process in (A, B):
        rack.endpoints[process].process_failed(rack.now, C, stamp)
    rack.carry()
    assert Settled(C) not in rack.events[A]
    recalled = [one.stamp for one in rack.events[A] if isinstance(one, Left)][-1]
    rack.switch.remove(rack.now, C, epoch=1)
    rack.run(20)
    assert rack.endpoints[B].barriers[1] < recalled
    rack.loses = lambda process, _data: process == C
    rack.run(80)
    assert Settled(C) in rack.events[A]
    assert rack.endpoints[B].barriers[1] > recalled


def test_nothing_of_a_failed_process_above_its_stamp_is_delivered() -> None:
    rack = OneRack(3)
    for process in (A, B, C):
        rack.send(process, R, *((to, b"connects") for to in (A, B, C)))
    rack.run(5)
    stamp = rack.switch.registers()[C].commit
    rack.loses = lambda process, data: process == C and data[22] == wire.BEACON
    rack.send(C, R, (A, b"above"))
    rack.endpoints[A].process_failed(rack.now, C, stamp)
    rack.run(15)
    rack.switch.remove(rack.now, C, epoch=1)
    rack.run(15)
    assert rack.texts(A) == [b"connects"] * 3
    kinds = [type(one) for one in rack.events[A] if isinstance(one, Message | ProcessFailed)]
    assert kinds == [Message] * 3 + [ProcessFailed]


def test_what_was_not_sent_to_a_failed_process_never_leaves() -> None:
    rack, _, stamp = failed_c()
    rack.endpoints[A].process_failed(rack.now, C, stamp)
    ticket = rack.send(A, R, (B, b"x"), (C, b"x"))
    rack.carry()
    assert SendFailed(ticket, 0, C, Reason.PROCESS_FAILED, R) in rack.events[A]
    assert rack.endpoints[A].describe()["buffered"] == 0


def test_an_ack_that_was_overtaken_tells_no_window() -> None:
    rack = OneRack(2)
    rack.send(A, R, (B, b"connects"))
    rack.run(5)

    def acknowledge(number: int, window: int) -> None:
        ack = wire.Acknowledgement(wire.DATA_R, window, 1, 1)
        packet = wire.Packet(wire.ACK, B, A, psn=number, payload=wire.encode_ack(ack))
        rack.endpoints[A].receive(rack.now, [wire.encode(packet)])

    acknowledge(1_000, 2_000)
    acknowledge(999, 60_000)
    ticket = rack.send(A, R, (B, bytes(4_000)))
    assert not any(isinstance(one, Left) and one.ticket == ticket for one in rack.events[A])
    acknowledge(1_001, 60_000)
    rack.carry()
    assert any(isinstance(one, Left) and one.ticket == ticket for one in rack.events[A])


def test_a_confirmation_of_an_earlier_time_frees_no_window() -> None:
    """A window may be told twice: what was confirmed of the first time is none of the second."""
    sent: list[wire.Packet] = []

    class Box:
        def queue(self, _now: int, packet: wire.Packet) -> None:
            sent.append(packet)

    config = EndpointConfig(reorder_budget=100_000, part_max=10_000)
    receiver = Receiver(config, Box(), Counters(), (0, 0))

    def connect(source: int, window: int, number: int = 0) -> int:
        """Return the window that it is told, by an ACK with this number."""
        receiver.connect(1, wire.Packet(wire.CONNECT, source, B, psn=number), window)
        receiver.acknowledge(1)
        ack = next(one for one in reversed(sent) if one.to == source)
        return wire.decode_ack(ack.payload).window

    assert connect(7, 0) == 100_000
    assert connect(8, 0) == 0
    old = max(one.psn for one in sent if one.to == 7)
    assert connect(7, 50_000, old) == 50_000
    assert connect(8, 0) == 50_000
    receiver.process_failed(8, 0)
    assert connect(7, 0) == 100_000
    assert connect(9, 0) == 0
    assert connect(7, 50_000, old) == 50_000  # sent before, and repeated by the network
    assert connect(9, 0) == 0
    assert connect(7, 50_000, max(one.psn for one in sent if one.to == 7)) == 50_000
    assert connect(9, 0) == 50_000
