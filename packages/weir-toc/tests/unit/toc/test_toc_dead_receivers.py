"""Scatterings that name a process which has failed, or which nobody has ever heard of."""

from __future__ import annotations

import pytest

from rigs.one_rack import OneRack
from weir_toc import packet as wire
from weir_toc.endpoint.events import Left, Message, Reason, SendFailed, Service

BE, R = Service.BEST_EFFORT, Service.RELIABLE
A, B, C = 1, 2, 3
NOBODY = 9
DEAD, SILENT = Reason.PROCESS_FAILED, Reason.UNREACHABLE


class Rack(OneRack):
    """A, B and C, which know each other; `fail` lets some of them end."""

    def __init__(self, **settings: int) -> None:
        super().__init__(3, **settings)
        for service in Service:
            for process in (A, B, C):
                self.send(process, service, *((to, b"connects") for to in (A, B, C)))
        self.run(5)
        self.known = {process: len(self.events[process]) for process in (A, B, C)}

    def fail(self, *processes: int) -> None:
        registers = self.switch.registers()
        self.loses = lambda process, _data: process in processes
        self.run(15)
        for one in {A, B, C} - {*processes}:
            for process in processes:
                self.endpoints[one].process_failed(self.now, process, registers[process].commit)
        for process in processes:
            self.switch.remove(self.now, process, epoch=1)
        self.run(5)

    def new(self, process: int) -> list[bytes]:
        """Return what a process has delivered since all know each other."""
        events = self.events[process][self.known[process] :]
        return [one.payload for one in events if isinstance(one, Message)]

    def told(self, ticket: int) -> list[Left | SendFailed]:
        """Return what A was told of a scattering, in this order."""
        events = [one for one in self.events[A] if isinstance(one, Left | SendFailed)]
        return [one for one in events if one.ticket == ticket]

    def is_empty(self) -> bool:
        state = self.endpoints[A].describe()
        keys = ("buffered", "open", "best_effort", "credits", "under_way")
        return not any(state[key] for key in keys)

    def check_sent_without(self, ticket: int, *missed: tuple[int, Reason]) -> None:
        left, *failed = self.told(ticket)
        assert isinstance(left, Left)
        assert failed == [SendFailed(ticket, left.stamp, to, reason, BE) for to, reason in missed]
        assert self.is_empty()


def test_best_effort_reaches_the_living_beside_a_process_that_is_known_to_be_dead() -> None:
    rack = Rack()
    rack.fail(C)
    ticket = rack.send(A, BE, (B, b"to B"), (C, b"to C"))
    assert [type(one) for one in rack.told(ticket)] == [Left, SendFailed]  # at once
    rack.run(5)
    assert rack.new(B) == [b"to B"]
    rack.check_sent_without(ticket, (C, DEAD))


def test_all_that_are_dead_are_told_of() -> None:
    rack = Rack()
    rack.fail(B, C)
    ticket = rack.send(A, BE, (C, b"to C"), (A, b"to A"), (B, b"to B"))
    rack.run(5)
    assert rack.new(A) == [b"to A"]
    rack.check_sent_without(ticket, (C, DEAD), (B, DEAD))


@pytest.mark.parametrize("receivers", [(C,), (B, C)])
def test_a_scattering_to_the_dead_alone_never_leaves(receivers: tuple[int, ...]) -> None:
    rack = Rack()
    rack.fail(B, C)
    ticket = rack.send(A, BE, *((to, b"x") for to in receivers))
    rack.run(5)
    assert rack.told(ticket) == [SendFailed(ticket, 0, C, DEAD, BE)]
    assert rack.is_empty()


def test_a_reliable_scattering_with_a_dead_receiver_never_leaves() -> None:
    rack = Rack()
    rack.fail(C)
    ticket = rack.send(A, R, (B, b"to B"), (C, b"to C"))
    rack.run(5)
    assert rack.told(ticket) == [SendFailed(ticket, 0, C, DEAD, R)]
    assert rack.new(B) == []
    assert rack.is_empty()


def test_many_that_are_alike_without_their_dead_receiver_are_each_told_of() -> None:
    rack = Rack()
    rack.fail(C)
    calls = [[(B, b"%d" % number), (C, b"x")] for number in range(8)]
    tickets = rack.endpoints[A].send_many(rack.now, BE, calls)
    rack.run(5)
    assert rack.new(B) == [b"%d" % number for number in range(8)]
    for ticket in tickets:
        rack.check_sent_without(ticket, (C, DEAD))


def test_what_waits_for_a_process_that_fails_leaves_to_the_others() -> None:
    """C grants nothing while it is silent, so all of these wait for it alone."""
    rack = Rack(reorder_budget=131_072)
    rack.loses = lambda process, _data: process == C
    full = [rack.send(A, R, (C, bytes(30_000))) for _ in range(8)]
    tickets = [rack.send(A, BE, (B, b"%d" % number), (C, b"x")) for number in range(5)]
    later = rack.send(A, BE, (B, b"behind them"))
    rack.run(3)
    assert [rack.told(ticket) for ticket in (full[-1], *tickets)] == [[]] * 6
    assert [type(one) for one in rack.told(later)] == [Left]
    rack.fail(C)
    rack.run(30)
    assert rack.new(B) == [b"behind them", *(b"%d" % number for number in range(5))]
    for ticket in tickets:
        rack.check_sent_without(ticket, (C, DEAD))
    assert len(rack.told(later)) == 1


def test_what_waits_for_the_living_leaves_later_without_the_dead() -> None:
    """The credit of the dead is given back, and the scattering keeps its place."""
    rack = Rack(reorder_budget=131_072)
    rack.loses = lambda process, data: process == B and data[22] == wire.ACK
    while rack.endpoints[A].describe()["buffered"] == 0:  # until B has no window left
        rack.send(A, R, (B, bytes(30_000)))
    ticket = rack.send(A, BE, (B, b"to B"), (C, b"to C"))
    last = rack.send(A, BE, (B, b"behind it"))
    gone = rack.switch.registers()[C].commit
    rack.endpoints[A].process_failed(rack.now, C, gone)
    rack.carry()
    assert rack.told(ticket) == []
    rack.loses = lambda process, _data: process == C
    rack.run(15)
    rack.endpoints[B].process_failed(rack.now, C, gone)
    rack.switch.remove(rack.now, C, epoch=1)
    rack.run(300)
    small = [text for text in rack.new(B) if len(text) < 100]
    assert small == [b"to B", b"behind it"]
    rack.check_sent_without(ticket, (C, DEAD))
    assert len(rack.told(last)) == 1


def test_a_receiver_that_never_answers_does_not_keep_best_effort_from_the_others() -> None:
    rack = Rack(unreachable_after=50)
    tickets = [
        rack.send(A, BE, (B, b"first"), (NOBODY, b"x")),
        rack.send(A, BE, (B, b"second"), (NOBODY, b"x"), (C, b"second")),
    ]
    whole = rack.send(A, R, (B, b"reliable"), (NOBODY, b"x"))
    alone = rack.send(A, BE, (NOBODY, b"x"))
    rack.run(40)
    assert rack.new(B) == []
    rack.run(160)
    assert (rack.new(B), rack.new(C)) == ([b"first", b"second"], [b"second"])
    for ticket in tickets:
        rack.check_sent_without(ticket, (NOBODY, SILENT))
    assert rack.told(whole) == [SendFailed(whole, 0, NOBODY, SILENT, R)]
    assert rack.told(alone) == [SendFailed(alone, 0, NOBODY, SILENT, BE)]


def test_one_that_is_lost_behind_another_ends_what_has_no_receiver_left() -> None:
    rack = Rack(unreachable_after=50)
    ticket = rack.send(A, BE, (C, b"x"), (NOBODY, b"x"))
    rack.fail(C)
    assert rack.told(ticket) == []  # it waits for the other one
    rack.run(200)
    assert rack.told(ticket) == [
        SendFailed(ticket, 0, NOBODY, SILENT, BE),
        SendFailed(ticket, 0, C, DEAD, BE),
    ]
    assert rack.is_empty()
