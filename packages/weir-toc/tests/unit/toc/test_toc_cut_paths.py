"""Packets between two processes are lost while beacons pass: the controller forwards them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rigs.one_rack import START, OneRack
from weir_toc import packet as wire
from weir_toc.endpoint.events import Service
from weir_toc.hosts.frames import REQUEST_BYTES_MAX, forward_of, framed_json
from weir_toc.packet import FORWARD_BYTES_MAX, Packet

R = Service.RELIABLE
A, B, C = 1, 2, 3
#: Longer than five timeouts of a new path last, and shorter than four of them.
CUT, NOT_CUT = 160, 60
Pair = tuple[int, int]


class CutRack(OneRack):
    """A, B and C, which know each other, and a controller that forwards at once."""

    def __init__(self, knows: bool = True, **settings: int) -> None:
        #: Pairs whose packets are lost.
        self.cut: set[Pair] = set()
        #: What was forwarded, and the pairs for which nothing is.
        self.forwards: list[tuple[int, int, list[bytearray]]] = []
        self.unreached: set[Pair] = set()
        super().__init__(3, **settings)
        self.loses = lambda process, data: (process, wire.receiver_of(data)) in self.cut
        if knows:
            for process in (A, B, C):
                self.send(process, R, *((to, b"connects") for to in (A, B, C)))
            self.run(8)
        self.known = len(self.texts(B))

    def carry(self) -> None:
        super().carry()
        moved = True
        while moved:
            moved = False
            for source, endpoint in self.endpoints.items():
                for to, packets in endpoint.take_forwards():
                    self.forwards.append((source, to, packets))
                    if (source, to) not in self.unreached:
                        self.endpoints[to].forwarded(self.now, source, packets)
                        moved = True
            super().carry()

    def new(self, process: int) -> list[bytes]:
        """Return what a process has delivered since all know each other."""
        return self.texts(process)[self.known :]

    def forwarded(self, source: int) -> int:
        return self.endpoints[source].counters.forwarded

    @property
    def questions(self) -> list[Packet]:
        """What was forwarded and asks for a confirmation."""
        packets = [wire.decode(data, self.now) for _, _, some in self.forwards for data in some]
        return [one for one in packets if one.flags & wire.CONFIRM]

    def lag(self, process: int) -> float:
        """How old the commit barrier of a process is, in intervals."""
        return (self.now - self.endpoints[process].barriers[1]) / 1e6


WAYS = {
    "there": [(A, B)],
    "back": [(B, A)],
    "both ways": [(A, B), (B, A)],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_message_comes_through_the_controller_and_barriers_go_on(way: str) -> None:
    rack = CutRack()
    rack.cut |= {*WAYS[way]}
    rack.send(A, R, (B, b"one"), (C, b"one"))
    rack.run(NOT_CUT)
    assert not rack.new(B)
    assert not rack.new(C)
    assert not rack.forwarded(A)
    assert rack.lag(C) > 50
    rack.run(CUT)
    assert rack.new(B) == rack.new(C) == [b"one"]
    assert rack.lag(C) < 4
    assert not rack.endpoints[A].describe()["open"]


def test_nothing_is_acknowledged_that_the_receiver_does_not_have() -> None:
    rack = CutRack()
    rack.cut |= {(A, B)}
    rack.unreached |= {(A, B)}
    rack.send(A, R, (B, b"one"), (C, b"one"))
    rack.run(CUT + 100)
    assert 2 < rack.forwarded(A) < 10
    assert rack.endpoints[A].describe()["open"] == 1
    assert not rack.new(C)
    rack.unreached.clear()
    rack.run(30)
    assert rack.new(B) == rack.new(C) == [b"one"]


def test_a_lost_answer_is_asked_for_again_and_nothing_is_delivered_twice() -> None:
    rack = CutRack()
    rack.cut |= {(A, B)}
    rack.unreached |= {(B, A)}
    rack.cut |= {(B, A)}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT + 100)
    assert rack.endpoints[A].describe()["open"] == 1
    assert rack.endpoints[B].counters.duplicates > 1
    rack.unreached.clear()
    rack.run(30)
    assert rack.new(B) == [b"one"]
    assert not rack.endpoints[A].describe()["open"]


def test_a_forward_that_comes_late_and_twice_is_delivered_once() -> None:
    rack = CutRack()
    rack.cut |= {(A, B)}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT)
    source, to, packets = rack.forwards[0]
    for _ in range(2):
        rack.endpoints[to].forwarded(rack.now, source, packets)
        rack.carry()
        rack.run(3)
    assert rack.new(B) == [b"one"]


@pytest.mark.parametrize("size", [0, 1_400, 32_768])
def test_messages_keep_their_order_and_what_is_forwarded_at_once_has_a_limit(size: int) -> None:
    rack = CutRack()
    rack.cut |= {(A, B), (B, A)}
    sent = [bytes([number]) * size for number in range(40)]
    for one in sent:
        rack.send(A, R, (B, one))
    rack.run(4 * CUT)
    assert rack.new(B) == sent
    for source, _, packets in rack.forwards:
        assert sum(map(len, packets)) <= FORWARD_BYTES_MAX
        assert len(framed_json(forward_of(source, packets))) <= REQUEST_BYTES_MAX


def test_a_batch_is_forwarded_too() -> None:
    rack = CutRack()
    rack.cut |= {(A, B)}
    sent = [bytes([number]) for number in range(60)]
    rack.endpoints[A].send_many(rack.now, R, [[(B, one)] for one in sent])
    rack.carry()
    rack.run(2 * CUT)
    assert rack.new(B) == sent


def test_the_network_is_used_again_once_it_carries_packets() -> None:
    rack = CutRack()
    rack.cut |= {(A, B)}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT)
    rack.cut.clear()
    rack.send(A, R, (B, b"two"))
    rack.run(10)
    count = rack.forwarded(A)
    for _ in range(20):
        rack.send(A, R, (B, b"more"))
        rack.run(1)
    rack.run(5)
    assert rack.forwarded(A) == count
    rack.cut |= {(A, B)}
    rack.send(A, R, (B, b"three"))
    rack.run(NOT_CUT)
    assert rack.forwarded(A) == count
    assert rack.new(B) == [b"one", b"two", *[b"more"] * 20]


@pytest.mark.parametrize("way", WAYS)
def test_what_follows_on_a_path_that_is_cut_does_not_wait_for_five_timeouts(way: str) -> None:
    rack = CutRack()
    rack.cut |= {*WAYS[way]}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT)
    rack.send(A, R, (B, b"two"))
    rack.run(10)
    assert rack.new(B) == [b"one", b"two"]


def test_an_answer_by_the_controller_is_no_round_trip_of_the_network() -> None:
    """Else each message on a path that is cut would wait for as long as it took to find that."""
    rack = CutRack()
    rack.cut |= {(B, A)}
    sent = [bytes([number]) for number in range(60)]  # so many that some are not sent again
    rack.endpoints[A].send_many(rack.now, R, [[(B, one)] for one in sent])
    rack.carry()
    rack.run(CUT)
    assert rack.new(B) == sent
    rack.cut |= {(A, B)}
    rack.send(A, R, (B, b"next"))
    rack.run(10)
    assert rack.new(B) == [*sent, b"next"]


def test_fragments_that_are_lost_are_forwarded_though_small_messages_arrive() -> None:
    rack = CutRack()
    rack.loses = lambda process, data: process == A and len(data) > 1_000
    rack.send(A, R, (B, large := bytes(1_400)))
    for _ in range(CUT):
        rack.send(A, R, (B, b"small"))
        rack.run(1)
    rack.run(10)
    assert rack.new(B) == [large, *[b"small"] * CUT]


def test_a_first_contact_comes_through_the_controller() -> None:
    rack = CutRack(knows=False)
    rack.cut |= {(A, B), (B, A)}
    rack.send(A, R, (B, b"one"))
    rack.run(2 * CUT)
    assert rack.texts(B) == [b"one"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("service", Service)
def test_credits_come_through_the_controller(service: Service, way: str) -> None:
    """All that left is acknowledged as the path is cut: what is lost is that it was delivered."""
    rack = CutRack(reorder_budget=60_000, part_max=6_000)
    texts = [b"%d" % number + bytes(5_000) for number in range(20)]
    for text in texts:
        rack.endpoints[A].send(rack.now, service, ((B, text),))
    rack.carry()
    assert not rack.new(B)
    rack.cut |= {*WAYS[way]}
    rack.run(20)
    arrived = len(rack.new(B))
    assert 0 < arrived < len(texts)
    rack.run(4 * CUT)
    assert rack.endpoints[A].describe()["buffered"] == 0
    # Of best effort it is told what is lost, or seems so.
    assert (rack.new(B) == texts) == (service is R or way == "back")


@pytest.mark.parametrize("way", WAYS)
def test_a_recall_comes_through_the_controller(way: str) -> None:
    rack = CutRack()
    register = rack.switch.registers()[C]
    rack.cut |= {(A, C)}
    rack.send(A, R, (B, b"recalled"), (C, b"recalled"))
    rack.run(3)
    rack.cut |= {*WAYS[way]}
    for process in (A, B):
        rack.endpoints[process].process_failed(rack.now, C, register.commit)
    rack.carry()
    rack.run(NOT_CUT)
    assert rack.endpoints[A].describe()["open"] == 1
    rack.run(CUT)
    assert not rack.endpoints[A].describe()["open"]
    assert not rack.new(B)


def test_a_forward_of_what_is_recalled_is_not_delivered() -> None:
    rack = CutRack()
    register = rack.switch.registers()[C]
    rack.cut |= {(A, B), (A, C)}
    rack.unreached |= {(A, B), (A, C)}
    rack.send(A, R, (B, b"recalled"), (C, b"recalled"))
    rack.run(CUT)
    late = next(packets for source, to, packets in rack.forwards if (source, to) == (A, B))
    for process in (A, B):
        rack.endpoints[process].process_failed(rack.now, C, register.commit)
    rack.unreached.clear()
    rack.run(30)
    assert not rack.endpoints[A].describe()["open"]
    rack.endpoints[B].forwarded(rack.now, A, late)
    rack.run(5)
    assert not rack.new(B)
    assert rack.endpoints[B].counters.duplicates


def of(opcode: int, source: int = A, to: int = B, **fields: int) -> bytearray:
    return wire.encode(Packet(opcode, source, to, psn=9, **fields))


WHOLE = {"stamp": START + 10**10, "flags": wire.BEGIN | wire.END}


@pytest.mark.parametrize(
    "data",
    [of(wire.DATA_R, source=C, **WHOLE), of(wire.DATA_R, to=C, **WHOLE), of(wire.BEACON),
     of(wire.DATA_BE), of(wire.NAK), of(wire.ACK), of(wire.DATA_R)[:30], of(wire.FENCED)],
)  # fmt: skip
def test_what_no_sender_lets_forward_is_damage(data: bytearray) -> None:
    rack = CutRack()
    before = rack.endpoints[B].counters.damaged
    rack.endpoints[B].forwarded(rack.now, A, [data])
    assert rack.endpoints[B].counters.damaged == before + 1
    assert rack.endpoints[B].is_admitted


def test_a_barrier_of_what_is_forwarded_does_not_count() -> None:
    rack = CutRack()
    before = rack.endpoints[B].barriers
    high = before[1] + 500_000
    data = of(wire.DATA_R, stamp=high + 1, barrier=high, commit=high, flags=wire.BEGIN | wire.END)
    rack.endpoints[B].forwarded(rack.now, A, [data])
    assert rack.endpoints[B].barriers == before


def outgoing(rack: CutRack, process: int) -> Iterable[bytearray]:
    return [one for source, _, packets in rack.forwards if source == process for one in packets]


def test_what_is_forwarded_carries_no_barriers() -> None:
    rack = CutRack()
    rack.cut |= {(A, B), (B, A)}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT)
    assert {bytes(one[6:18]) for one in (*outgoing(rack, A), *outgoing(rack, B))} == {bytes(12)}


def test_an_excluded_process_neither_takes_nor_gives() -> None:
    rack = CutRack()
    rack.cut |= {(A, B), (B, A)}
    rack.unreached |= {(A, B)}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT)
    assert rack.forwards
    source, to, packets = rack.forwards[-1]
    rack.endpoints[to].exclude()
    rack.endpoints[to].forwarded(rack.now, source, packets)
    assert not rack.endpoints[to].take_forwards()
    rack.endpoints[A].exclude()
    rack.forwards.clear()
    rack.run(CUT)
    assert not rack.forwards


def test_a_smaller_window_is_confirmed_through_the_controller() -> None:
    rack = CutRack(reorder_budget=200_000)
    rack.cut |= {(A, B), (B, A)}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT)
    rack.join()
    rack.run(5)
    rack.send(4, R, (B, b"joined"))
    rack.run(60)
    assert rack.new(B) == [b"one", b"joined"]
    assert rack.endpoints[B].granted <= 200_000


@pytest.mark.parametrize("way", WAYS)
def test_a_smaller_window_of_who_sends_nothing_is_confirmed_through_the_controller(
    way: str,
) -> None:
    """Others get what it gives back: without that, there is no room for a message of theirs."""
    rack = CutRack(reorder_budget=170_000)
    rack.cut |= {*WAYS[way]}
    rack.join()
    rack.run(5)
    rack.send(4, R, (B, large := bytes(32_000)))
    rack.run(NOT_CUT // 2)
    assert not rack.new(B)
    assert not rack.forwards
    rack.run(NOT_CUT)
    assert rack.new(B) == [large]
    assert rack.endpoints[B].granted <= 170_000
    assert len(rack.forwards) < 20
    rack.forwards.clear()
    rack.run(2 * CUT)
    assert len(rack.forwards) < 20


def test_a_confirmation_that_does_not_arrive_goes_through_the_controller() -> None:
    """Its sender hears the question by the network, and the controller loses what asks for it."""
    rack = CutRack(reorder_budget=170_000)
    rack.cut |= {(A, B)}
    rack.unreached |= {(B, A)}
    rack.join()
    rack.run(5)
    rack.send(4, R, (B, large := bytes(32_000)))
    rack.run(NOT_CUT)
    assert not rack.new(B)
    assert not rack.forwarded(A)
    rack.run(CUT)
    assert rack.new(B) == [large]
    assert rack.endpoints[B].granted <= 170_000
    assert rack.forwarded(A)
    rack.run(10)
    rack.forwards.clear()
    rack.run(2 * CUT)
    assert not [one for one in rack.forwards if one[0] == A]  # the last ACK asks for none


def test_a_confirmation_whose_answer_is_lost_is_repeated_by_the_network() -> None:
    rack = CutRack(reorder_budget=170_000)
    lost: list[bytearray] = []

    def loses(process: int, data: bytearray) -> bool:
        """Lose the first ACKs of B to A that ask for no confirmation any more."""
        packet = wire.decode(data, rack.now)
        is_answer = packet.opcode == wire.ACK and (process, packet.to) == (B, A)
        if is_answer and len(lost) < 2 and rack.endpoints[B].granted < 170_000:
            lost.append(data)
            return True
        return False

    rack.join()
    rack.run(5)
    rack.loses = loses
    rack.send(4, R, (B, b"joined"))
    rack.run(2 * CUT)
    assert len(lost) == 2
    assert rack.new(B) == [b"joined"]
    assert not rack.forwards


def test_a_full_window_is_not_asked_for_through_the_controller() -> None:
    """Its sender can only confirm a smaller one once the program has taken what it sent."""
    rack = CutRack(reorder_budget=170_000, program_takes=True)
    for _ in range(40):
        rack.send(A, R, (B, bytes(1_000)))
    rack.run(10)
    rack.join()
    rack.run(5)
    rack.send(4, R, (B, b"joined"))
    rack.run(3 * CUT)
    assert not rack.forwards


def test_nor_is_it_by_answers_that_the_controller_forwards() -> None:
    rack = CutRack(reorder_budget=170_000, program_takes=True)
    rack.cut |= {(B, A)}
    for _ in range(40):
        rack.send(A, R, (B, bytes(1_000)))
    rack.run(CUT)
    rack.join()
    rack.run(5)
    rack.forwards.clear()
    rack.send(4, R, (B, b"joined"))
    rack.run(CUT)
    assert not rack.questions
    endpoint = rack.endpoints[B]
    endpoint.taken(rack.now, R, len(rack.texts(B)))
    rack.run(CUT)
    assert rack.questions
    assert rack.texts(B)[-1] == b"joined"


def test_acks_go_by_the_network_alone_once_nothing_is_forwarded_for_long() -> None:
    rack = CutRack()
    rack.cut |= {(A, B)}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT)
    rack.cut.clear()
    rack.run(250)
    rack.forwards.clear()
    for _ in range(10):
        rack.send(A, R, (B, b"more"))
        rack.run(1)
    assert not rack.forwards


def test_acks_of_what_the_network_brings_go_through_the_controller_once_an_interval() -> None:
    rack = CutRack()
    rack.cut |= {(B, A)}
    rack.send(A, R, (B, b"one"))
    rack.run(CUT)
    rack.forwards.clear()
    for _ in range(40):
        for _ in range(20):
            rack.send(A, R, (B, b"x"))
        rack.run(1)
    answers = [one for one in rack.forwards if one[0] == B]
    assert 10 < len(answers) <= 90
