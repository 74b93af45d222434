"""Credits of what has not left, where a receiver makes its window smaller."""

from __future__ import annotations

import pytest

from rigs.one_rack import OneRack
from weir_toc import packet as wire
from weir_toc.endpoint.events import Left, SendFailed, Service
from weir_toc.packet import Acknowledgement, Packet, cost_of

BE, R = Service.BEST_EFFORT, Service.RELIABLE
A, B, C, D = 1, 2, 3, 4
SIZE = 1_000
COST = cost_of(SIZE)
MANY = 5


def numbered(*receivers: int) -> list[list[tuple[int, bytes]]]:
    """Return scatterings of one size to these receivers."""
    return [[(to, bytes([number]) * SIZE) for to in receivers] for number in range(MANY)]


def left(rack: OneRack, process: int) -> list[int]:
    return [one.ticket for one in rack.events[process] if isinstance(one, Left)]


@pytest.mark.parametrize("service", Service)
def test_senders_do_not_wait_for_credits_that_they_hold_of_each_other(service: Service) -> None:
    """A holds all of C and waits for D; B holds all of D and waits for C."""
    rack = OneRack(4, part_max=SIZE, reorder_budget=MANY * COST)
    for sender, receiver in ((A, C), (B, D)):
        rack.send(sender, service, (receiver, b"connects"))
    rack.run(8)
    for sender in (A, B):
        rack.endpoints[sender].send_many(rack.now, service, numbered(C, D))
    assert [rack.endpoints[one].describe()["credits"] for one in (A, B)] == [MANY * COST] * 2
    rack.run(100)
    for receiver in (C, D):
        for sender in (A, B):
            found = [one.payload[0] for one in rack.messages(receiver)
                     if one.source == sender and len(one.payload) == SIZE]  # fmt: skip
            assert found == [*range(MANY)]
    for sender in (A, B):
        assert not any(isinstance(one, SendFailed) for one in rack.events[sender])
        assert not rack.endpoints[sender].describe()["credits"]


class Granted:
    """A, which knows B, and holds credits of it for messages that wait for C.

    B keeps in memory the first message and `sent` more ones, which it has acknowledged.
    """

    def __init__(self, sent: int = 0) -> None:
        self.rack = OneRack(3, part_max=SIZE)
        self.sender = self.rack.endpoints[A]
        self.confirmed: list[int] = []
        self._acks = 100
        self.rack.send(A, R, (B, bytes(SIZE)))
        self.rack.run(8)
        self.rack.loses = self._note
        for _ in range(sent):
            self.rack.send(A, R, (B, bytes(SIZE)))
        self.told(B, 1_000_000, arrived=1 + sent)
        self.rack.events[A].clear()
        self.tickets = [*self.sender.send_many(self.rack.now, R, numbered(B, C))]

    def _note(self, process: int, data: bytearray) -> bool:
        """All packets are lost but beacons; those of A that confirm a window of B are noted."""
        if process == A and data[22] == wire.CONNECT and wire.receiver_of(data) == B:
            packet = wire.decode(data, self.rack.now)
            if window := wire.decode_count(packet.payload):
                self.confirmed.append(window)
        return data[22] != wire.BEACON

    def told(self, process: int, window: int, arrived: int, released: int | None = None) -> None:
        """A receiver tells A its window, how many packets came, and how many are out of memory.

        It asks for a confirmation of this window.
        """
        self._acks += 1
        gone = 1 if released is None else released
        ack = Acknowledgement(R.value, window, gone, arrived, 0, 0, ())
        packet = Packet(wire.ACK, process, A, psn=self._acks, flags=wire.CONFIRM,
                        payload=wire.encode_ack(ack))  # fmt: skip
        self.confirmed.clear()
        self.sender.receive(self.rack.now, [wire.encode(packet)])
        self.rack.carry()

    @property
    def credits(self) -> float:
        """For how many messages A holds credits."""
        return self.sender.describe()["credits"] / COST


def test_a_smaller_window_is_kept_at_once_by_what_has_not_left() -> None:
    one = Granted()
    assert one.credits == MANY
    one.told(B, 3 * COST + 1, arrived=1)
    assert one.credits == 3
    assert one.confirmed == [3 * COST + 1]
    state = one.sender.describe()
    assert state["under_way"] == 3 * COST
    assert state["buffered"] == 2 * MANY * COST


def test_a_smaller_window_that_is_kept_takes_nothing_back() -> None:
    one = Granted()
    one.told(B, MANY * COST, arrived=1)
    assert one.credits == MANY
    assert one.confirmed == [MANY * COST]


def test_what_has_left_keeps_its_credits_and_its_release_lets_the_next_take_them() -> None:
    one = Granted(sent=3)
    assert one.credits == 3 + MANY
    one.told(B, 2 * COST, arrived=4)
    assert (one.credits, one.confirmed) == (3, [])
    one.told(B, 2 * COST, arrived=4, released=3)
    assert (one.credits, one.confirmed) == (2, [2 * COST])


def test_the_oldest_keep_their_credits_and_all_leave_in_their_order() -> None:
    one = Granted()
    behind = one.sender.send(one.rack.now, R, [(B, bytes(SIZE))])
    one.told(B, 2 * COST, arrived=1)
    one.told(C, MANY * COST, arrived=0, released=0)
    assert left(one.rack, A) == one.tickets[:2]
    for arrived in range(2, 2 + MANY):
        one.told(B, 2 * COST, arrived, released=arrived)
        one.told(C, MANY * COST, arrived - 1, released=arrived - 1)
    assert left(one.rack, A) == [*one.tickets, behind]


def test_best_effort_that_loses_the_receiver_it_waits_for_leaves_when_it_has_credits() -> None:
    one = Granted()
    more = [*one.sender.send_many(one.rack.now, BE, numbered(B, C))]
    one.told(B, COST, arrived=1)
    assert one.credits == 1
    one.sender.process_failed(one.rack.now, C, one.rack.now)
    one.told(B, 3 * COST, arrived=1)
    assert left(one.rack, A) == more[:3]
