"""The memory of a receiver: how many senders it has room for, and what the others are told."""

from __future__ import annotations

from bisect import insort
from random import Random

import pytest

import weir_toc
from rigs.one_rack import OneRack
from weir_toc import packet as wire
from weir_toc.endpoint.events import (
    Counters,
    EndpointConfig,
    Left,
    ProcessFailed,
    Reason,
    SendFailed,
    Service,
)
from weir_toc.endpoint.outbox import Outbox
from weir_toc.endpoint.receiving import Receiver
from weir_toc.member import events_of
from weir_toc.packet import Run, cost_of
from weir_toc.topology import process_id

A, B, C, D = (process_id(0, number) for number in (1, 2, 3, 4))
BE, R = Service.BEST_EFFORT, Service.RELIABLE
PART_MAX = 1_000
WINDOW = cost_of(PART_MAX)
LIMIT = 200


def full_rack(count: int = 4) -> OneRack:
    """A has memory for two senders, and B and C have it."""
    rack = OneRack(count, reorder_budget=2 * WINDOW, part_max=PART_MAX, unreachable_after=LIMIT)
    for process in (B, C):
        rack.send(process, R, (A, b"first"))
        rack.run(30)
    assert rack.texts(A) == [b"first", b"first"]
    return rack


def failures(rack: OneRack, process: int) -> list[tuple[int, Reason]]:
    return [(one.to, one.reason) for one in rack.events[process] if isinstance(one, SendFailed)]


@pytest.mark.parametrize("service", Service)
def test_a_sender_without_memory_is_told_that_its_receiver_is_full(service: Service) -> None:
    rack = full_rack()
    ticket = rack.send(D, service, (A, b"third"))
    rack.run(LIMIT - 5)
    assert not failures(rack, D)
    rack.run(15)
    assert SendFailed(ticket, 0, A, Reason.NO_MEMORY, service) in rack.events[D]
    assert rack.endpoints[D].describe()["buffered"] == 0
    for process in (B, C):  # who has a window goes on
        rack.send(process, service, (A, b"again"))
    rack.run(10)
    assert rack.texts(A) == [b"first", b"first", b"again", b"again"]
    assert rack.endpoints[A].describe()["granted"] <= 2 * WINDOW


@pytest.mark.parametrize("service", Service)
def test_a_receiver_that_has_answered_once_is_told_as_unreachable(service: Service) -> None:
    rack = full_rack()
    ticket = rack.send(D, service, (A, b"third"))
    rack.run(10)
    rack.loses = lambda process, data: process == A and data[22] == wire.ACK
    rack.run(LIMIT)
    assert SendFailed(ticket, 0, A, Reason.UNREACHABLE, service) in rack.events[D]


def test_a_few_answers_that_are_lost_do_not_make_a_receiver_unreachable() -> None:
    rack = full_rack()
    rack.send(D, R, (A, b"third"))
    rack.run(LIMIT - 30)
    rack.loses = lambda process, data: process == A and data[22] == wire.ACK
    rack.run(40)
    assert failures(rack, D) == [(A, Reason.NO_MEMORY)]


def rack_with_lost_credits() -> OneRack:
    """A holds credits of all of B's memory for messages that it has given up as lost: no ACK of B
    comes any more.
    """
    rack = OneRack(3, reorder_budget=2 * WINDOW, part_max=PART_MAX, unreachable_after=LIMIT)
    rack.send(A, BE, (B, b"first"))
    rack.run(5)
    rack.loses = lambda process, data: process == B and data[22] == wire.ACK
    for _ in range(2):
        rack.send(A, BE, (B, bytes(PART_MAX)))
    rack.run(30)
    assert failures(rack, A) == [(B, Reason.LOST)] * 2
    assert rack.endpoints[A].describe()["credits"] == 2 * WINDOW
    rack.events[A].clear()
    return rack


@pytest.mark.parametrize("service", Service)
def test_a_receiver_that_answers_no_more_is_given_up_whatever_it_has_granted(
    service: Service,
) -> None:
    rack = rack_with_lost_credits()
    ticket = rack.send(A, service, (B, b"no credit"), (C, b"to C"))
    many = rack.endpoints[A].send_many(rack.now, service, [[(B, b"alike")]] * 3)
    rack.run(LIMIT - 5)
    assert not rack.events[A]
    rack.run(80)  # it asks each timeout
    told = [one for one in rack.events[A] if isinstance(one, SendFailed)]
    left = [one for one in rack.events[A] if isinstance(one, Left)]
    stamp = left[0].stamp if service is BE else 0
    assert [one.ticket for one in left] == ([ticket] if service is BE else [])
    assert {*told} == {
        SendFailed(ticket, stamp, B, Reason.UNREACHABLE, service),
        *(SendFailed(each, 0, B, Reason.UNREACHABLE, service) for each in many),
    }
    assert rack.texts(C) == ([b"to C"] if service is BE else [])
    assert rack.endpoints[A].describe()["buffered"] == 0


@pytest.mark.parametrize("service", Service)
def test_answers_that_come_again_bring_back_the_credits_of_what_was_lost(service: Service) -> None:
    rack = rack_with_lost_credits()
    rack.run(LIMIT)  # it was silent for longer than what is sent now may wait
    rack.send(A, service, (B, b"waits"), (C, b"waits"))
    rack.run(LIMIT - 80)
    rack.loses = lambda _process, _data: False
    rack.run(LIMIT)
    assert not failures(rack, A)
    assert rack.texts(B)[-1] == rack.texts(C)[-1] == b"waits"


@pytest.mark.parametrize("service", Service)
def test_a_receiver_that_answers_is_waited_for_while_its_program_takes_nothing(
    service: Service,
) -> None:
    rack = OneRack(2, reorder_budget=2 * WINDOW, part_max=PART_MAX, unreachable_after=LIMIT,
                   program_takes=True)  # fmt: skip
    for _ in range(3):
        rack.send(A, service, (B, bytes(PART_MAX)))
        rack.run(5)
    rack.run(4 * LIMIT)
    rack.loses = lambda process, data: process == B and data[22] == wire.ACK
    rack.run(LIMIT - 80)  # a path that is cut may be mended
    rack.loses = lambda _process, _data: False
    rack.run(2 * LIMIT)
    assert len(rack.messages(B)) == 2
    rack.endpoints[B].taken(rack.now, service, 2)
    rack.run(80)
    assert len(rack.messages(B)) == 3
    assert not failures(rack, A)


def test_a_program_reads_that_its_receiver_is_full() -> None:
    (told,) = events_of([SendFailed(1, 77, A, Reason.NO_MEMORY, BE)])
    assert told == weir_toc.SendFailed(77, A, "no memory at the receiver")


def test_best_effort_leaves_without_a_receiver_that_is_full() -> None:
    rack = full_rack()
    rack.send(D, BE, (A, b"no room"), (C, b"room"))
    rack.run(LIMIT + 10)
    (left,) = [one for one in rack.events[D] if isinstance(one, Left)]
    assert rack.events[D][-1] == SendFailed(left.ticket, left.stamp, A, Reason.NO_MEMORY, BE)
    assert rack.texts(C) == [b"room"]


def test_a_reliable_scattering_to_a_full_receiver_is_sent_to_nobody() -> None:
    rack = full_rack()
    rack.send(D, R, (A, b"no room"), (C, b"room"))
    rack.run(LIMIT + 10)
    assert failures(rack, D) == [(A, Reason.NO_MEMORY)]
    assert rack.texts(C) == []


def test_the_memory_of_a_sender_that_failed_is_for_others() -> None:
    rack = full_rack()
    rack.send(D, R, (A, b"third"))
    rack.run(10)
    rack.loses = lambda process, _data: process == B
    rack.run(15)
    stamp = rack.switch.registers()[B].commit
    for process in (A, C, D):
        rack.endpoints[process].process_failed(rack.now, B, stamp)
    rack.switch.remove(rack.now, B, epoch=1)
    rack.run(10)
    assert rack.texts(A)[-1] == b"third"
    assert not failures(rack, D)


@pytest.mark.parametrize("budget", [WINDOW, 2 * WINDOW - 1, 2 * WINDOW, 3 * WINDOW + 7])
def test_a_budget_has_room_for_as_many_senders_as_least_windows(budget: int) -> None:
    rack = OneRack(6, reorder_budget=budget, part_max=PART_MAX, unreachable_after=LIMIT)
    for process in rack.endpoints:
        rack.send(process, R, (A, bytes(PART_MAX)))
        rack.run(30)
    rack.run(2 * LIMIT)
    assert len(rack.texts(A)) == budget // rack.endpoints[A].config.window_min
    assert rack.endpoints[A].describe()["granted"] <= budget


def test_the_memory_that_docs_name_has_room_for_82_senders() -> None:
    config = EndpointConfig()
    assert (config.reorder_budget, config.window_min) == (3_500_000, 42_368)
    assert config.reorder_budget // config.window_min == 82


def test_a_process_with_little_memory_sends_as_much_as_others() -> None:
    """What others may leave with it says nothing of what it may leave with others."""
    rack = OneRack(1, reorder_budget=1_000_000, part_max=PART_MAX)
    rack.settings["reorder_budget"] = WINDOW
    little = rack.join()
    rack.run(3)
    sender = rack.endpoints[little]
    for _ in range(500):
        rack.send(little, R, (A, bytes(PART_MAX)))
    rack.run(10)
    assert len(rack.texts(A)) == 500
    assert sender.describe()["window_least"] > 10 * WINDOW


@pytest.mark.parametrize("service", Service)
def test_runs_of_several_senders_wait_in_order(service: Service) -> None:
    """Those of one sender lie between those of others, and a failure among them."""
    random = Random(7)
    config = EndpointConfig(program_takes=True)
    receiver = Receiver(config, Outbox(A, 1, 0), Counters(), (0, 0))
    for source in (B, C, D):
        receiver.connect(1, wire.Packet(wire.CONNECT, source, A), 0)
    share = config.reorder_budget // 3  # B gives back what the others get
    receiver.connect(1, wire.Packet(wire.CONNECT, B, A, psn=9), share)
    assert receiver.granted == 3 * share
    expected: list[tuple[int, int]] = []
    psns, stamps = dict.fromkeys((B, C, D), 0), dict.fromkeys((B, C, D), 10)
    for number in range(120):
        source = random.choice([B, C, D])
        first, step, count = stamps[source], random.randint(1, 9), random.randint(2, 8)
        taken = range(first, first + step * count, step)
        run = Run(service.value, source, A, psns[source], taken, [b"x"] * count, 0, 0)
        assert receiver.run(run)
        psns[source] += count
        stamps[source] = taken[-1] + random.randint(1, 9)
        for stamp in taken:
            insort(expected, (stamp, source))
        if number == 60 and service is R:
            receiver.process_failed(9, 300)
    receiver.advance(1 << 40, 1 << 40)
    rows = [
        one[:2]
        for event in receiver.events
        if not isinstance(event, ProcessFailed)
        for one in event.rows  # type: ignore[union-attr]
    ]
    assert rows == expected
    assert len([one for one in receiver.events if isinstance(one, ProcessFailed)]) == (service is R)
