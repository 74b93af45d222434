"""The alarm of old commit barriers: what processes tell of them, and what is reported of it."""

from __future__ import annotations

import pytest

from rigs.one_rack import START, OneRack, T
from weir_toc import packet as wire
from weir_toc.controller.codec import held_to, promise_from, promise_to
from weir_toc.controller.lag import (
    LAG_INTERVALS,
    READ_INTERVALS,
    UNREAD_NS_MIN,
    LagAlarm,
    Lagging,
    LinkReading,
    NodeReading,
)
from weir_toc.controller.promises import Alarms, Held, Promise, PromiseAlarm, Reason, Wait
from weir_toc.endpoint.events import Service
from weir_toc.errors import ControlError
from weir_toc.topology import Topology, process_id, switch_id

A, B, C = (process_id(0, one) for one in (1, 2, 3))
READ = READ_INTERVALS * T
LIMIT = LAG_INTERVALS * T
R = Service.RELIABLE


class Readings:
    """Three processes that tell their promises each ten intervals, of the age that each has."""

    def __init__(self) -> None:
        self.lag = LagAlarm(Topology.tree(1), T)
        self.alarm = PromiseAlarm(self.lag, T)
        self.now = START
        self.age = dict.fromkeys((A, B, C), T)
        self.late = dict.fromkeys((A, B, C), 0)
        self.waits = dict.fromkeys((A, B, C), (Wait.NOTHING, 0))
        self.silent: set[int] = set()
        self.told: list[Held] = []
        self.read(2)

    def read(self, times: int = 1) -> list[Held]:
        """Let all read, and return what was reported."""
        before = len(self.told)
        for _ in range(times):
            self.now += READ
            for process, age in self.age.items():
                if process in self.silent:
                    continue
                late = self.late[process]
                self.lag.read(NodeReading(process, self.now, self.now, late, {}))
                promise = Promise(self.now - age, age, *self.waits[process])
                self.told += self.alarm.read(process, self.now, promise)
        return self.told[before:]


def test_an_old_promise_is_reported_with_what_it_waits_for_and_when_it_is_over() -> None:
    readings = Readings()
    assert readings.read(5) == []
    readings.age[A], readings.waits[A] = LIMIT + 2 * T, (Wait.ACK, B)
    assert readings.read(2) == []
    since = readings.now - READ
    held = Held(A, B, Reason.ACK, LIMIT + 2 * T, since)
    assert readings.read(1) == [held] == readings.alarm.held
    assert readings.read(5) == []
    assert readings.alarm.reported == 1
    readings.age[A] = LIMIT
    assert readings.read() == [held._replace(is_over=True)]
    assert readings.alarm.held == []
    assert readings.read(5) == []


def test_one_that_is_only_a_little_behind_the_others_is_not_reported() -> None:
    readings = Readings()
    readings.age = {A: LIMIT + T, B: T, C: T}
    assert readings.read(5) == []  # five intervals behind the median
    readings.age = {A: 10 * LIMIT, B: 10 * LIMIT, C: 10 * LIMIT}
    assert readings.read(1) == []
    readings.age = dict.fromkeys(readings.age, 10 * LIMIT)
    assert readings.read(10) == []  # all are as old under load, and rise
    readings.age[C] = T
    assert readings.read(5) == []  # most are


def test_all_whose_promises_stand_are_reported() -> None:
    readings = Readings()
    readings.read(2)
    for process in (A, C):
        readings.waits[process] = (Wait.RECALL, B)
    for _ in range(4):
        for process in (A, C):
            readings.age[process] += READ
        readings.read()
    assert [(one.process, one.waits_for) for one in readings.told] == [(A, B), (C, B)]
    assert {one.reason for one in readings.told} == {Reason.RECALL}


def test_a_promise_that_stands_and_is_not_old_is_not_reported() -> None:
    readings = Readings()
    for _ in range(5):
        readings.now += READ
        assert readings.alarm.read(A, readings.now, Promise(START, LIMIT)) == []


@pytest.mark.parametrize("forgets", [False, True])
def test_what_both_alarms_have_reported_is_over_once_nodes_tell_nothing(forgets: bool) -> None:
    alarms = Alarms(Topology.tree(1), T)
    now = START
    rack = switch_id("rack-0")
    ages = {A: 2 * LIMIT, B: T, C: T}
    told: list[object] = []
    for _ in range(3):
        now += READ
        links = {one: LinkReading(one, age) for one, age in ages.items()}
        told += alarms.lag.read(NodeReading(rack, now, now, 0, links))
        for process in (B, C, A):
            told += alarms.promises.read(process, now, Promise(now - ages[process], ages[process]))
    assert len(told) == 2
    assert alarms.expire(now) == []
    lagging, held = alarms.forget() if forgets else alarms.expire(now + UNREAD_NS_MIN + 1)
    assert alarms.promises.held == []
    assert isinstance(lagging, Lagging)
    assert isinstance(held, Held)
    assert lagging.is_over
    assert held.is_over


def test_one_that_is_old_in_turns_is_not_reported() -> None:
    readings = Readings()
    for _ in range(6):
        readings.age[A] = 2 * LIMIT
        readings.read(2)
        readings.age[A] = T
        readings.read()
    assert readings.told == []


@pytest.mark.parametrize("wait", [Wait.ACK, Wait.RECALL])
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_receiver_that_has_stopped_or_pauses_is_the_cause(wait: Wait, is_silent: bool) -> None:
    readings = Readings()
    readings.age[A], readings.waits[A] = 2 * LIMIT, (wait, B)
    if is_silent:
        readings.silent.add(B)
    readings.late[B] = 4 * T
    (held,) = readings.read(3)
    assert (held.reason, held.waits_for) == (Reason.STOPPED, B)


def test_a_wait_for_the_controller_or_for_nothing_is_no_fault_of_a_receiver() -> None:
    readings = Readings()
    readings.silent.add(B)
    readings.age[A], readings.waits[A] = 2 * LIMIT, (Wait.NOTE, B)
    (held,) = readings.read(3)
    assert held.reason is Reason.NOTE
    readings = Readings()
    readings.age[A] = 2 * LIMIT
    (held,) = readings.read(3)
    assert (held.reason, held.waits_for) == (Reason.SENDER, 0)


def test_a_process_that_tells_nothing_any_more_holds_nothing_back() -> None:
    readings = Readings()
    readings.age[A] = 2 * LIMIT
    (held,) = readings.read(3)
    told = readings.now
    assert readings.alarm.expire(told + UNREAD_NS_MIN) == []
    assert readings.alarm.expire(told + UNREAD_NS_MIN + 1) == [held._replace(is_over=True)]
    assert readings.alarm.held == []


def test_it_is_shown_by_names() -> None:
    held = Held(A, B, Reason.ACK, 8_200_000, 17)
    assert held_to(held, {A: "a"}) == {
        "process": "a", "waits_for": f"process {B}", "cause": "no acknowledgement",
        "behind_ms": 8.2, "since_ns": 17, "over": False,
    }  # fmt: skip
    assert held_to(held._replace(waits_for=0), {})["waits_for"] is None


def test_a_promise_comes_as_it_was_told_and_nothing_else_is_taken() -> None:
    for wait in Wait:
        assert promise_from(promise_to(Promise(5, 6, wait, 7))) == Promise(5, 6, wait, 7)
    for row in (
        None,
        [5, 6, 1],
        [5, 6, 1, 7, 0],
        [5, 6, 4, 7],
        [5, -6, 1, 7],
        [-5, 6, 1, 7],
        ["5", 6, 1, 7],
    ):
        with pytest.raises(ControlError):
            promise_from(row)


def test_a_process_tells_whose_acknowledgement_it_waits_for() -> None:
    rack = OneRack(3)
    endpoint = rack.endpoints[A]
    rack.send(A, R, (B, b"connects"), (C, b"connects"))
    rack.run(8)
    assert endpoint.holds == (Wait.NOTHING, 0)
    assert rack.now - endpoint.promised <= T
    rack.loses = lambda process, data: (process, wire.receiver_of(data)) == (A, C)
    stamp = rack.now
    rack.send(A, R, (B, b"comes"), (C, b"is lost"))
    rack.run(8)
    assert endpoint.holds == (Wait.ACK, C)
    assert stamp - T <= endpoint.promised <= stamp
    rack.loses = lambda _process, _data: False
    rack.run(30)
    assert endpoint.holds == (Wait.NOTHING, 0)
    assert rack.now - endpoint.promised <= T


def test_a_process_tells_for_which_receiver_a_batch_waits() -> None:
    rack = OneRack(2)
    rack.send(A, R, (B, b"connects"))
    rack.run(8)
    rack.loses = lambda process, data: (process, wire.receiver_of(data)) == (A, B)
    endpoint = rack.endpoints[A]
    endpoint.send_many(rack.now, R, [[(B, b"x")]] * 5)
    rack.run(8)
    assert endpoint.holds == (Wait.ACK, B)


def test_a_process_tells_who_has_not_answered_a_recall_and_that_nothing_is_noted() -> None:
    rack = OneRack(3)
    for process in (B, C):
        rack.send(A, R, (process, b"connects"))
    rack.run(8)
    rack.notes = False
    rack.loses = lambda process, data: process == A and bool(wire.receiver_of(data))
    rack.send(A, R, (B, b"recalled"), (C, b"recalled"))
    endpoint = rack.endpoints[A]
    endpoint.process_failed(rack.now, C, rack.now)
    rack.run(2)
    assert endpoint.holds == (Wait.RECALL, B)
    rack.loses = lambda _process, _data: False
    rack.run(40)
    assert endpoint.holds == (Wait.NOTE, C)
    endpoint.recalls_noted(rack.now, C)
    rack.run(3)
    assert endpoint.holds == (Wait.NOTHING, 0)


def test_a_process_that_has_not_joined_promises_nothing() -> None:
    rack = OneRack(1)
    endpoint = rack.endpoints[rack.join()]
    assert (endpoint.promised, endpoint.holds) == (0, (Wait.NOTHING, 0))
