"""What no process of this protocol sends, and what no program should: refused, and no harm done."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.one_rack import START, OneRack, T
from weir_toc import packet as wire
from weir_toc.controller.entries import Decisions
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import Message, Service
from weir_toc.errors import InvalidScattering
from weir_toc.packet import BEGIN, END, NEIGHBOUR, WHOLE, Acknowledgement, Packet

BE, R = Service.BEST_EFFORT, Service.RELIABLE
A, B, C, STRANGER = 1, 2, 3, 7
FULL = wire.PAYLOAD_BYTES_MAX


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


def test_each_damaged_byte_of_a_beacon_but_its_barriers_is_found_also_behind_a_whole_one() -> None:
    rack = acquainted()  # so beacons have come
    endpoint = rack.endpoints[A]
    endpoint.tick(rack.now + T)  # it promises more than it has heard
    before, damaged_before = endpoint.barriers, endpoint.counters.damaged
    higher = before[0] + 1
    places = [*range(6), *range(18, wire.OVERHEAD_BYTES)]
    switch = rack.switch.switch.id
    for at in places:
        damaged = wire.encode_beacon(switch, 1, higher, before[1])
        damaged[at] ^= 1
        endpoint.receive(rack.now, [damaged])
    assert endpoint.barriers == before
    assert endpoint.counters.damaged == damaged_before + len(places)
    endpoint.receive(rack.now, [wire.encode_beacon(switch, 1, higher, before[1])])
    assert endpoint.barriers == (higher, before[1])
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


class Unruly:
    """B is given packets that C never sent; PSN 0 of both services has been used."""

    def __init__(self, service: Service, **settings: int) -> None:
        self.service = service
        self.rack = OneRack(3, **settings)
        for each in Service:
            self.rack.send(A, each, (A, b"connects"), (B, b"connects"))
            self.rack.send(C, each, (B, b"connects"))
        self.rack.run(5)
        self.receiver = self.rack.endpoints[B]
        self.before = len(self.rack.messages(B))
        self.stamp = self.rack.now + T

    def packet(self, psn: int, flags: int, payload: bytes = b"x", later: int = 0) -> Packet:
        return Packet(self.service.value, C, B, self.stamp + later, START, START, psn=psn,
                      flags=flags, epoch=1, payload=payload)  # fmt: skip

    def recall(self, psn: int, count: int, later: int = 0) -> Packet:
        return self.packet(psn, 0, wire.encode_count(count), later)._replace(opcode=wire.RECALL)

    def give(self, *packets: Packet) -> None:
        self.receiver.receive(self.rack.now, map(wire.encode, packets))

    def give_run(self, psn: int, count: int, later: int = 0) -> None:
        run = wire.encode_run(self.packet(psn, WHOLE, b"", later), [b"in a run"] * count)
        size = wire.OVERHEAD_BYTES + len(b"in a run")
        self.receiver.receive_runs(self.rack.now, [(run, size)])

    @property
    def held(self) -> int:
        """The bytes that B holds."""
        return self.receiver.describe()["reordering"]

    def delivered(self) -> list[bytes]:
        """Let barriers pass all that was given; return what B has delivered since."""
        self.rack.run(10)
        found = self.rack.messages(B)[self.before :]
        keys = [(one.stamp, one.source) for one in found if one.service is self.service]
        assert len({*keys}) == len(keys)
        self.before = len(self.rack.messages(B))
        assert self.held == 0
        return [one.payload for one in found]


def fragment(psn: int, flags: int) -> tuple[int, int, bytes]:
    return psn, flags, b"%d" % psn * (1 if flags & END else FULL)


@pytest.mark.parametrize("service", [BE, R])
@pytest.mark.parametrize(
    ("pieces", "refused"),
    [
        ([(1, BEGIN), (9, 0), (3, END)], [3]),
        ([(1, BEGIN), (3, END), (9, 0)], [9]),
        ([(5, 0), (6, BEGIN), (7, END)], [6]),
        ([(5, BEGIN), (4, 0), (7, END)], [4]),
        ([(1, BEGIN), (2, BEGIN), (3, END)], [2]),
        ([(1, BEGIN), (3, END), (4, END)], [4]),
        ([(4, END), (3, END), (2, BEGIN)], [3]),
        ([(2, BEGIN), (1, BEGIN), (4, END)], [1]),
        ([(3, 0), (5, 0), (4, BEGIN)], [4]),
        ([(5, 0), (3, 0), (4, END)], [4]),
        ([(3, END), (5, BEGIN)], [5]),
        ([(5, BEGIN), (3, END)], [3]),
        ([(1, BEGIN), (4, END), (2, WHOLE)], [2]),
    ],
)
def test_fragments_that_overlap_make_no_message(
    service: Service, pieces: list[tuple[int, int]], refused: list[int]
) -> None:
    unruly = Unruly(service)
    for psn, flags in pieces:
        held = unruly.held
        unruly.give(unruly.packet(*fragment(psn, flags)))
        assert (unruly.held == held) == (psn in refused)
    assert unruly.receiver.counters.damaged == len(refused)
    assert unruly.delivered() == []
    assert unruly.receiver.counters.incomplete == 1
    check_goes_on(unruly.rack)


@pytest.mark.parametrize("service", [BE, R])
def test_what_was_refused_may_come_again_as_it_should(service: Service) -> None:
    unruly = Unruly(service)
    unruly.give(unruly.packet(*fragment(1, BEGIN)), unruly.packet(*fragment(2, BEGIN)))
    unruly.give(unruly.packet(*fragment(3, END)), unruly.packet(*fragment(2, 0)))
    assert unruly.delivered() == [b"1" * FULL + b"2" * FULL + b"3"]


@pytest.mark.parametrize("service", [BE, R])
def test_one_message_of_a_sender_has_a_stamp(service: Service) -> None:
    unruly = Unruly(service)
    unruly.give(unruly.packet(1, WHOLE, b"first"), unruly.packet(2, WHOLE, b"second"))
    unruly.give(unruly.packet(*fragment(3, BEGIN)), unruly.packet(*fragment(4, END)))
    unruly.give_run(5, 2)
    assert unruly.receiver.counters.damaged == 4
    assert unruly.delivered() == [b"first", b"in a run"]


@pytest.mark.parametrize("service", [BE, R])
def test_a_run_repeats_no_stamp_of_another(service: Service) -> None:
    unruly = Unruly(service)
    unruly.give_run(1, 4)
    unruly.give_run(5, 6, later=1)
    unruly.give(unruly.packet(11, WHOLE, b"alone"))
    assert unruly.receiver.counters.damaged == 4
    assert unruly.delivered() == [b"in a run"] * 7


@pytest.mark.parametrize("service", [BE, R])
def test_a_run_repeats_no_stamp_of_one_that_was_overtaken(service: Service) -> None:
    unruly = Unruly(service)
    unruly.give(unruly.packet(2, WHOLE, b"2", later=4), unruly.packet(1, WHOLE, b"1"))
    unruly.give_run(3, 6, later=1)
    assert unruly.receiver.counters.damaged == 1
    assert unruly.delivered() == [b"1", *[b"in a run"] * 3, b"2", *[b"in a run"] * 2]


@pytest.mark.parametrize("service", [BE, R])
def test_a_run_repeats_no_stamp_of_a_message_in_fragments(service: Service) -> None:
    unruly = Unruly(service)
    unruly.give(unruly.packet(*fragment(1, BEGIN), later=1))
    unruly.give_run(5, 3)
    unruly.give(unruly.packet(*fragment(2, END), later=1))
    assert unruly.delivered() == [b"in a run", b"1" * FULL + b"2", b"in a run"]


@pytest.mark.parametrize("service", [BE, R])
@pytest.mark.parametrize(
    ("flags", "size"), [(BEGIN, FULL - 1), (0, FULL - 1), (BEGIN, 0), (END, 0), (0, 0)]
)
def test_fragments_of_another_size_than_due_are_refused(
    service: Service, flags: int, size: int
) -> None:
    unruly = Unruly(service)
    unruly.give(unruly.packet(2, flags, bytes(size)))
    assert unruly.receiver.counters.damaged == 1
    assert unruly.held == 0


@pytest.mark.parametrize("service", [BE, R])
def test_memory_of_fragments_comes_back_whole(service: Service) -> None:
    unruly = Unruly(service)
    pieces = [(1, BEGIN, FULL), (2, 0, FULL), (3, END, 1), (4, BEGIN, FULL), (5, END, FULL)]
    for psn, flags, size in pieces:
        unruly.give(unruly.packet(psn, flags, bytes(size), psn // 4))
    assert unruly.held == sum(size + wire.PACKET_COST for _, _, size in pieces)
    assert [len(one) for one in unruly.delivered()] == [2 * FULL + 1, 2 * FULL]


def test_what_is_incomplete_is_dropped_when_the_process_settles() -> None:
    unruly = Unruly(R)
    unruly.give(unruly.packet(*fragment(1, BEGIN)), unruly.packet(2, WHOLE, b"whole", later=1))
    unruly.receiver.exclude()
    unruly.receiver.settle(unruly.rack.now, Decisions(((B, unruly.stamp),), ()))
    assert [one.payload for one in unruly.receiver.take_events()] == [b"whole"]  # type: ignore[union-attr]
    assert unruly.held == 0


@pytest.mark.parametrize("service", [BE, R])
def test_a_number_below_the_first_one_is_refused(service: Service) -> None:
    unruly = Unruly(service)
    unruly.give(unruly.packet(-1, WHOLE), unruly.packet(-2, BEGIN, bytes(FULL)))
    assert unruly.held == 0
    assert unruly.receiver.counters.damaged == 2
    unruly.give(unruly.packet(1, WHOLE, b"after", later=1))
    assert unruly.delivered() == [b"after"]


@pytest.mark.parametrize(
    ("psn", "count"), [(1, 0), (1, (1 << 32) - 1), (100, 2), (101, 1), (-1, 1), (-1, 2)]
)
def test_a_recall_of_what_no_window_holds_is_refused(psn: int, count: int) -> None:
    unruly = Unruly(R, reorder_budget=100 * wire.PACKET_COST, part_max=1_000)
    unruly.give(unruly.packet(1, WHOLE, b"stays"), unruly.recall(psn, count))
    assert unruly.receiver.counters.damaged == 1
    answers = [wire.decode(one, unruly.rack.now) for one in unruly.receiver.take_packets()]
    assert wire.RECALL_ACK not in [one.opcode for one in answers]
    assert unruly.delivered() == [b"stays"]


def test_recalls_are_remembered_as_far_as_a_window_goes() -> None:
    unruly = Unruly(R, reorder_budget=100 * wire.PACKET_COST, part_max=1_000)
    unruly.give(unruly.packet(1, WHOLE, b"stays", later=1_000))
    for psn in range(2, 300):
        unruly.give(unruly.recall(psn, 1, later=psn))
    assert unruly.receiver.counters.damaged == 300 - 1 - 100
    assert unruly.delivered() == [b"stays"]
    unruly.stamp = unruly.rack.now + T
    unruly.give(unruly.packet(101, WHOLE, b"next"))
    assert unruly.delivered() == [b"next"]


@pytest.mark.parametrize("service", [BE, R])
def test_holes_of_a_reliable_sender_are_kept_as_far_as_a_window_goes(service: Service) -> None:
    unruly = Unruly(service, reorder_budget=100 * wire.PACKET_COST, part_max=1_000)
    for psn in range(2, 300, 3):  # 1 never comes
        unruly.stamp = unruly.rack.now + T
        unruly.give(unruly.packet(psn, WHOLE, b"%d" % psn))
        assert unruly.delivered() == ([b"%d" % psn] if service is BE or psn < 101 else [])
    unruly.stamp = unruly.rack.now + T
    unruly.give_run(300, 4)
    assert unruly.delivered() == ([b"in a run"] * 4 if service is BE else [])
    check_goes_on(unruly.rack)


def test_a_run_is_taken_as_far_as_a_window_goes() -> None:
    unruly = Unruly(R, reorder_budget=100 * wire.PACKET_COST, part_max=1_000)
    unruly.give_run(99, 4)
    assert unruly.delivered() == [b"in a run"] * 2


@pytest.mark.parametrize("service", [BE, R])
def test_a_barrier_at_its_stamp_leaves_a_best_effort_message_alone(service: Service) -> None:
    """Its other fragments may still come then: the commit barrier alone covers its own stamp."""
    unruly = Unruly(service)
    unruly.rack.now += 100
    unruly.receiver.send(unruly.rack.now, service, [(A, b"raises what B has promised")])
    unruly.rack.carry()
    unruly.stamp = now = unruly.receiver.barriers[0] + 100
    first = unruly.packet(*fragment(1, BEGIN))._replace(barrier=now, commit=now)
    unruly.give(first)
    assert unruly.receiver.barriers == (now, now)
    assert bool(unruly.held) == (service is BE)
    unruly.give(unruly.packet(*fragment(2, END)))
    assert unruly.delivered() == ([b"1" * FULL + b"2"] if service is BE else [])


@pytest.mark.parametrize("service", [BE, R])
@pytest.mark.parametrize(
    "pieces", [[(2, END), (1, BEGIN)], [(2, 0), (1, BEGIN)], [(2, END | wire.ECN), (1, BEGIN)]]
)
def test_what_has_left_memory_is_told_as_released(
    service: Service, pieces: list[tuple[int, int]]
) -> None:
    unruly = Unruly(service)
    unruly.give(*(unruly.packet(*fragment(*one)) for one in pieces))
    whole = [b"1" * FULL + b"2"] if pieces[0][1] else []
    told: list[int] = []

    def note(process: int, data: bytearray) -> bool:
        if process == B and data[22] == wire.ACK:
            ack = wire.decode_ack(bytes(data[wire.OVERHEAD_BYTES :]))
            told.extend([ack.released] if ack.service == service.value else [])
        return False

    unruly.rack.loses = note
    assert unruly.delivered() == whole
    assert told[-1] == 3


def test_best_effort_delivers_once_what_it_has_forgotten() -> None:
    unruly = Unruly(BE)
    message = [unruly.packet(*fragment(2, BEGIN)), unruly.packet(*fragment(3, END))]
    part = unruly.packet(*fragment(5, BEGIN), later=1)
    psns = range(7, 2 * wire.RANGES_MAX + 9, 2)
    unruly.give(*message, part, *(unruly.packet(psn, WHOLE, b"%d" % psn, psn) for psn in psns))
    unruly.give(*message, part, unruly.packet(7, WHOLE, b"7", 7))
    assert (unruly.receiver.counters.duplicates, unruly.receiver.counters.damaged) == (4, 0)
    unruly.give(unruly.packet(1, WHOLE), unruly.packet(4, WHOLE))  # of the stamp of 2 and 3
    assert (unruly.receiver.counters.duplicates, unruly.receiver.counters.damaged) == (4, 2)
    assert unruly.delivered() == [b"2" * FULL + b"3", *(b"%d" % psn for psn in psns)]


#: A PSN, how much later its stamp is, flags, and a size. C has sent none of this.
strange = st.tuples(
    st.integers(1, 7), st.integers(0, 2), st.sampled_from([0, BEGIN, END, WHOLE]),
    st.sampled_from([0, 1, FULL - 1, FULL, FULL, FULL]),
)  # fmt: skip
#: A first PSN, how much later its stamp is, and a last PSN.
recalled = st.tuples(st.integers(1, 7), st.integers(0, 2), st.integers(1, 7))


@pytest.mark.parametrize("service", [BE, R])
@given(data=st.data())
def test_whatever_comes_no_two_messages_are_mixed(service: Service, data: st.DataObject) -> None:
    """A message is what fragments of one stamp hold whose numbers follow each other.

    Whole ones between arrive all the same, and all memory comes back.
    """
    unruly = Unruly(service)
    packets = [
        unruly.packet(psn, flags, bytes((at,)) * size, later)
        for at, (psn, later, flags, size) in enumerate(data.draw(st.lists(strange, max_size=30)))
    ]
    last = 8 + data.draw(st.integers(1, 3))
    good = [unruly.packet(psn, (psn == 8) * BEGIN + (psn == last) * END, bytes((psn,)) * FULL, 3)
            for psn in range(8, last + 1)]  # fmt: skip
    ends = data.draw(st.lists(recalled, max_size=3)) if service is R else []
    recalls = [unruly.recall(one, end - one + 1, at) for one, at, end in ends if one <= end]
    unruly.give(*data.draw(st.permutations([*packets, *good, *recalls])))
    *found, whole = unruly.delivered()
    assert whole == b"".join(one.payload for one in good)
    messages = unruly.rack.messages(B)[-len(found) - 1 : -1]
    for message in messages:
        assert is_made_of([one for one in packets if one.stamp == message.stamp], message.payload)


def is_made_of(packets: Sequence[Packet], payload: bytes) -> bool:
    """Whether packets of following numbers, from a first to a last one, hold a payload."""

    def goes_on(psn: int, rest: bytes) -> bool:
        return any(
            (one.flags == END and one.payload == rest)
            or (not one.flags and one.payload == rest[:FULL] and goes_on(psn + 1, rest[FULL:]))
            for one in packets if one.psn == psn
        )  # fmt: skip

    return any(
        one.payload == payload if one.flags == WHOLE
        else one.flags == BEGIN and one.payload == payload[:FULL]
        and goes_on(one.psn + 1, payload[FULL:])
        for one in packets
    )  # fmt: skip
