"""Runs: packets that are handled in one piece do what the same packets do one by one."""

from __future__ import annotations

import random

import pytest

from rigs.one_rack import START, OneRack, T
from weir_toc import packet as wire
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import EndpointConfig, Left, Message, SendFailed, Service
from weir_toc.errors import InvalidScattering, SendBufferFull
from weir_toc.node import Send
from weir_toc.packet import BEGIN, DATA_R, END, OVERHEAD_BYTES, Packet, cost_of

BE, R = Service.BEST_EFFORT, Service.RELIABLE
HEAD = Packet(DATA_R, 1, 2, START + 5, barrier=START + 7, commit=START, psn=(1 << 32) - 3, epoch=1,
              flags=BEGIN | END)  # fmt: skip
PAYLOADS = [b"%02d" % number for number in range(10)]
SIZE = OVERHEAD_BYTES + 2


def run() -> bytearray:
    return wire.encode_run(HEAD, PAYLOADS)


def test_a_run_is_the_bytes_of_its_packets() -> None:
    made = [
        wire.encode(HEAD._replace(stamp=HEAD.stamp + number, payload=payload,
                                  psn=HEAD.psn + number,
                                  barrier=max(START + 7, HEAD.stamp + number)))
        for number, payload in enumerate(PAYLOADS)
    ]  # fmt: skip
    assert b"".join(made) == run()
    assert [*wire.split(run(), SIZE)] == made


def test_a_run_is_decoded_as_its_packets_are() -> None:
    data = wire.encode_run(HEAD._replace(psn=250), PAYLOADS)
    found = wire.decode_run(data, SIZE, START)
    ones = [wire.decode(one, START) for one in wire.split(data, SIZE)]
    assert found is not None
    assert [*found.stamps] == [one.stamp for one in ones]
    assert [*found.payloads] == [one.payload for one in ones]
    assert (found.opcode, found.source, found.to, found.psn) == (DATA_R, 1, 2, 250)
    assert (found.barrier, found.commit) == (ones[-1].barrier, ones[-1].commit)


def test_a_run_with_a_damaged_packet_is_none() -> None:
    data = wire.encode_run(HEAD._replace(psn=250), PAYLOADS)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x41
        is_barrier = 6 <= at % SIZE < 18
        assert (wire.decode_run(damaged, SIZE, START) is not None) == is_barrier


def test_what_is_odd_is_no_run() -> None:
    first, *rest = wire.split(run(), SIZE)
    assert wire.decode_run(run(), SIZE, START) is None  # the numbers wrap
    data = wire.encode_run(HEAD._replace(psn=0), PAYLOADS)
    first, second, *rest = wire.split(data, SIZE)
    assert wire.decode_run(first + b"".join(rest), SIZE, START) is None
    assert wire.decode_run(second + first, SIZE, START) is None
    assert wire.decode_run(data[:-1], SIZE, START) is None
    assert wire.decode_run(data, 5, START) is None
    wrapping = wire.encode_run(HEAD._replace(psn=0, stamp=(1 << 48) - 1), [b"a", b"b"])
    assert wire.decode_run(wrapping, SIZE - 1, 1 << 48) is None
    beacons = b"".join(wire.encode(Packet(wire.BEACON, 1, 2)) for _ in range(3))
    assert not wire.is_run(beacons, OVERHEAD_BYTES)


def test_stamps_of_a_run_may_leave_some_out_but_must_rise() -> None:
    def of(*stamps: int) -> bytes:
        return b"".join(
            wire.encode(HEAD._replace(psn=number, stamp=stamp, payload=b"ab"))
            for number, stamp in enumerate(stamps)
        )

    high = START >> 32 << 32  # both parts of a stamp change there
    for stamps in ((high - 2, high - 1, high, high + 1), (high - 9, high, high + 1, START)):
        found = wire.decode_run(of(*stamps), SIZE, START)
        assert found is not None
        assert (*found.stamps,) == stamps
    assert wire.decode_run(of(START, START + 2, START + 2), SIZE, START) is None
    assert wire.decode_run(of(START, START + 1, START), SIZE, START) is None


def sent_run(rack: OneRack, service: Service, count: int) -> list[tuple[bytearray, int]]:
    """Let 1 send to 2; return what it queues, in pieces."""
    rack.send(1, service, (2, b"a window"))
    rack.run(4)
    parts = [[(2, b"%03d" % number)] for number in range(count)]
    rack.endpoints[1].send_many(rack.now, service, parts)
    return rack.endpoints[1].take_runs()


def packets_to(effects: list, to: int) -> list[bytearray]:  # type: ignore[type-arg]
    """Return the packets to one neighbour, one by one."""
    found = [one for one in effects if isinstance(one, Send) and one.to == to]
    return [bytearray(p) for one in found for p in wire.split(one.data, one.size or len(one.data))]


@pytest.mark.parametrize("service", Service)
def test_a_switch_promises_nothing_of_a_run_that_the_run_breaks(service: Service) -> None:
    pieces = sent_run(rack := OneRack(2), service, 150)
    assert [len(data) // size for data, size in pieces if len(data) > size] == [64, 64, 22]
    rack.run(0.25)  # 2 has promised more than the stamps: what comes from 1 is the minimum
    last = (0, 0)
    stamps: list[int] = []
    for data, size in pieces:
        for out in packets_to(rack.switch.receive_run(rack.now, 1, bytearray(data), size), 2):
            packet = wire.decode(out, rack.now)
            if packet.opcode == service.value:
                assert packet.stamp >= last[0]
                assert packet.stamp > last[1]
                stamps.append(packet.stamp)
            assert packet.barrier >= last[0]
            assert packet.commit >= last[1]
            last = packet.barrier, packet.commit
    assert len(stamps) == 150
    assert stamps == sorted(stamps)


@pytest.mark.parametrize("service", Service)
def test_runs_lead_to_what_their_packets_lead_to(service: Service) -> None:
    racks = OneRack(2), OneRack(2)
    for rack, in_pieces in zip(racks, (True, False), strict=True):
        for data, size in sent_run(rack, service, 150):
            if in_pieces:
                effects = rack.switch.receive_run(rack.now, 1, bytearray(data), size)
                for one in effects:
                    if isinstance(one, Send):
                        piece = bytes(one.data), one.size or len(one.data)
                        rack.endpoints[one.to].receive_runs(rack.now, [piece])
            else:
                for packet in wire.split(data, size):
                    rack.give(1, bytearray(packet))
        rack.carry()
        rack.run(6)
    one, other = racks
    assert one.messages(2) == other.messages(2)
    assert len(one.messages(2)) == 151
    assert one.endpoints[2].counters.runs == 3
    one.endpoints[2].counters.runs = 0
    for process in (1, 2):
        assert one.endpoints[process].counters == other.endpoints[process].counters
        assert one.endpoints[process].describe() == other.endpoints[process].describe()
    assert one.endpoints[1].describe()["open"] == one.endpoints[1].describe()["best_effort"] == 0


@pytest.mark.parametrize("service", Service)
@pytest.mark.parametrize("seed", range(6))
def test_many_at_once_are_sent_in_their_order_whatever_is_lost(service: Service, seed: int) -> None:
    dice = random.Random(seed)
    rack = OneRack(3)
    rack.send(1, service, (2, b"a window"), (3, b"and here"))
    rack.run(6)
    rack.loses = lambda _process, data: dice.random() < 0.03 and data[22] != wire.JOIN
    tickets: list[int] = []
    sent = []
    for number in range(40):
        many = [
            [(to, b"%d %d" % (number, one)) for to in dice.choice(([2], [2], [2, 3], [3]))]
            for one in range(dice.randrange(12))
        ]
        tickets += rack.endpoints[1].send_many(rack.now, service, many)
        sent += many
        rack.carry()
        rack.run(dice.choice((0.25, 1)))
    rack.run(200)
    assert tickets == [*range(2, len(sent) + 2)]
    left = {one.ticket: one.stamp for one in rack.events[1][1:] if isinstance(one, Left)}
    del left[1]
    assert [*left] == tickets
    assert [*left.values()] == sorted(left.values())
    failed = {(one.ticket, one.to) for one in rack.events[1] if isinstance(one, SendFailed)}
    for process in (2, 3):
        due = [(left[ticket], payload)
               for ticket, parts in zip(tickets, sent, strict=True)
               for to, payload in parts if to == process]  # fmt: skip
        got = [(one.stamp, one.payload) for one in rack.messages(process)[1:]]
        assert got == [one for one in due if one in got]  # once, and in this order
        missing = {one[0] for one in due if one not in got}
        assert missing <= {left[ticket] for ticket, to in failed if to == process}
        assert service is BE or not failed


def test_of_many_that_cannot_be_sent_none_is() -> None:
    rack = OneRack(2, send_buffer=2 * cost_of(60))
    one = rack.endpoints[1]
    with pytest.raises(InvalidScattering, match="send fewer at once"):
        one.send_many(rack.now, R, [[(2, bytes(60))], [(2, bytes(61))]])
    one.send(rack.now, R, [(2, b"first")])  # it waits for a window
    with pytest.raises(SendBufferFull):
        one.send_many(rack.now, R, [[(2, bytes(60))], [(2, bytes(60))]])
    for wrong in ([], [(2, b""), (2, b"")], [(0, b"")]):
        with pytest.raises(InvalidScattering):
            one.send_many(rack.now, R, [[(2, b"x")], wrong])
    assert one.describe()["buffered"] == cost_of(5)
    assert [*one.send_many(rack.now, R, [])] == []
    assert [*one.send_many(rack.now, R, [[(2, b"x")]])] == [2]
    rack.carry()
    rack.run(6)
    assert rack.texts(2) == [b"first", b"x"]


def test_a_run_without_a_window_is_dropped_and_sent_again() -> None:
    rack = OneRack(2)
    pieces = sent_run(rack, R, 8)
    other = Endpoint(2, 1, rack.now)  # knows no sender
    floors = wire.encode_floors(rack.now, rack.now)
    joined = Packet(wire.JOINED, 1 << 31, 2, epoch=1, payload=floors)
    other.receive(rack.now, [bytes(wire.encode(joined))])
    other.receive_runs(rack.now, [(bytes(data), size) for data, size in pieces])
    assert not any(isinstance(one, Message) for one in other.take_events())
    rack.run(12)
    assert rack.texts(2)[1:] == [b"%03d" % number for number in range(8)]
    assert rack.endpoints[1].counters.resent >= 8
    assert rack.now - START < 40 * T


def held_run(rack: OneRack, source: int, service: Service, count: int) -> tuple[bytes, int]:
    """Let a process send to 3; return what it queues as one piece, on its way to 3."""
    parts = [[(3, b"%d %d" % (source, number))] for number in range(count)]
    rack.endpoints[source].send_many(rack.now, service, parts)
    ((data, size),) = rack.endpoints[source].take_runs()
    return bytes(data), size


@pytest.mark.parametrize("service", Service)
def test_runs_of_two_senders_are_delivered_in_one_order(service: Service) -> None:
    rack = OneRack(3)
    for source in (1, 2):
        rack.send(source, service, (3, b"a window"))
    rack.run(6)
    first = held_run(rack, 1, service, 5)
    rack.now += 2
    second = held_run(rack, 2, service, 5)
    seen = len(rack.messages(3))
    rack.endpoints[3].receive_runs(rack.now, [second, first, second])
    rack.run(8)
    keys = [(one.stamp, one.source) for one in rack.messages(3)[seen:]]
    assert keys == sorted(keys)
    assert len(keys) == 10
    assert [one[1] for one in keys] != [1] * 5 + [2] * 5
    assert rack.endpoints[3].counters.duplicates == 5


def test_a_run_that_comes_late_is_refused() -> None:
    rack = OneRack(3)
    rack.send(1, BE, (3, b"a window"))
    rack.run(6)
    late = held_run(rack, 1, BE, 5)
    rack.run(4)
    before = len(rack.messages(3))
    rack.endpoints[3].receive_runs(rack.now, [late])
    rack.carry()
    assert rack.endpoints[3].counters.late == 5
    assert rack.endpoints[1].counters.naks == 5
    assert len(rack.messages(3)) == before


def test_a_run_for_another_process_is_damage() -> None:
    rack = OneRack(3)
    rack.send(1, BE, (3, b"a window"), (2, b"a window"))
    rack.run(6)
    rack.endpoints[2].receive_runs(rack.now, [held_run(rack, 1, BE, 5)])
    assert rack.endpoints[2].counters.damaged == 5


def test_what_a_program_has_taken_of_several_is_released() -> None:
    rack = OneRack(2, program_takes=True)
    sent_run(rack, R, 1)  # it is lost, and sent again
    for count in (9, 9):
        pieces = [[(2, b"%03d" % number)] for number in range(count)]
        rack.endpoints[1].send_many(rack.now, R, pieces)
        rack.carry()
        rack.run(6)
    before = rack.endpoints[1].describe()["credits"]
    assert before == cost_of(8) + 19 * cost_of(3)
    rack.endpoints[2].taken(rack.now, R, 20)
    rack.run(4)
    assert rack.endpoints[1].describe()["credits"] == 0


def test_a_run_raises_the_register_of_its_input_and_of_no_other_epoch() -> None:
    rack = OneRack(2)
    ((data, size),) = [one for one in sent_run(rack, R, 9) if len(one[0]) > one[1]]
    stale = bytearray(data)
    packets = [wire.decode(one, rack.now)._replace(epoch=7) for one in wire.split(stale, size)]
    stale = bytearray(b"".join(wire.encode(one) for one in packets))
    before = rack.switch.registers()[1].barrier
    effects = rack.switch.receive_run(rack.now, 1, stale, size)
    assert rack.switch.counters.fenced == 9
    assert packets_to(effects, 2) == []
    assert rack.switch.registers()[1].barrier == before
    rack.switch.receive_run(rack.now, 1, bytearray(data), size)
    assert rack.switch.registers()[1].barrier == packets[-1].barrier > before


def test_a_run_above_the_window_takes_no_memory_above_it() -> None:
    rack = OneRack(2, reorder_budget=cost_of(100), part_max=100)
    rack.send(1, R, (2, b"a window"))
    rack.run(6)
    head = HEAD._replace(psn=1, commit=0, barrier=0, stamp=rack.now + T)
    payloads = [b"%03d" % number for number in range(50)]
    rack.endpoints[2].receive_runs(
        rack.now, [(wire.encode_run(head, payloads), OVERHEAD_BYTES + 3)]
    )
    assert rack.endpoints[2].counters.buffered_max <= cost_of(100)
    assert rack.endpoints[2].counters.over_budget == 49


def test_a_run_promises_nothing_where_only_beacons_carry_barriers() -> None:
    rack = OneRack(2)
    data, size = sent_run(rack, Service.BEST_EFFORT, 150)[0]
    config = EndpointConfig(interval=T, barriers_in_data=False)
    found = []
    for endpoint in (Endpoint(2, 1, rack.now, config), rack.endpoints[2]):
        if not endpoint.is_admitted:
            floors = wire.encode_floors(rack.switch.up.barrier, rack.switch.up.commit)
            joined = Packet(wire.JOINED, rack.switch.switch.id, 2, epoch=1, payload=floors,
                            barrier=START, commit=START)  # fmt: skip
            endpoint.receive(rack.now, [wire.encode(joined)])
            connect = Packet(wire.CONNECT, 1, 2, payload=wire.encode_count(1 << 16))
            endpoint.receive(rack.now, [wire.encode(connect)])
        endpoint.tick(rack.now + T)
        before = endpoint.barriers
        endpoint.receive_runs(rack.now + T, [(data, size)])
        found.append((endpoint.counters.runs, endpoint.barriers == before))
    assert found == [(1, True), (1, False)]
