"""A process that was excluded and runs again delivers of what it holds what others deliver."""

from __future__ import annotations

import pickle

from rigs.one_rack import OneRack, T
from weir_toc import packet as wire
from weir_toc.controller.away import Away, passed
from weir_toc.controller.codec import decisions_to, report_to
from weir_toc.controller.entries import (
    Decide,
    Decisions,
    Entry,
    InputSilent,
    ProcessJoined,
    Recalled,
)
from weir_toc.controller.failures import RANGES_KEPT, RETURNING_MAX, FailureState
from weir_toc.controller.pacing import Pacing
from weir_toc.controller.records import Founded, Reported, Returned
from weir_toc.controller.state import ControllerState
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import (
    EndpointConfig,
    Event,
    Left,
    Message,
    ProcessFailed,
    SendFailed,
    Service,
    Settled,
    Undeliverable,
)
from weir_toc.hosts.controller import is_decided
from weir_toc.hosts.frames import FRAME_BYTES_MAX, REQUEST_BYTES_MAX, framed_json
from weir_toc.topology import Topology, process_id, switch_id

R = Service.RELIABLE
A, B, C = 1, 2, 3


class Stopped:
    """C as SIGSTOP leaves it: what comes waits, and nothing is sent."""

    deadline = 1 << 80

    def receive(self, now: int, burst: list[bytes]) -> None:
        """Leave packets unread."""

    def take_packets(self) -> list[bytearray]:
        return []

    def take_events(self) -> list[Event]:
        return []


def connected() -> OneRack:
    rack = OneRack(3)
    for process in (A, B, C):
        rack.send(process, R, *((to, b"connects") for to in (A, B, C)))
    rack.run(5)
    return rack


def excluded(rack: OneRack) -> Endpoint:
    """C stops, the others go on without it, and it runs again."""
    real = rack.endpoints[C]
    rack.endpoints[C] = Stopped()  # type: ignore[assignment]
    rack.run(15)
    stamp = rack.switch.registers()[C].commit
    for process in (A, B):
        rack.endpoints[process].process_failed(rack.now, C, stamp)
    rack.carry()
    rack.switch.remove(rack.now, C, epoch=1)
    rack.run(5)
    real.exclude()
    return real


def texts(endpoint: Endpoint) -> list[bytes]:
    return [one.payload for one in endpoint.take_events() if isinstance(one, Message)]


def recalled_to(rack: OneRack, receiver: int) -> tuple[tuple[int, int, int], ...]:
    """What others have told that they cannot tell a receiver."""
    return tuple(
        (process, first, last)
        for process in (A, B)
        for event in rack.events[process] if isinstance(event, Undeliverable)
        for one, ranges in event.recalled if one == receiver
        for first, last in ranges
    )  # fmt: skip


def test_what_it_had_acknowledged_is_delivered() -> None:
    rack = connected()
    rack.send(A, R, (B, b"x"), (C, b"x"))
    one = excluded(rack)
    assert rack.texts(B)[-1] == b"x"
    assert texts(one) == []
    held = one.held
    assert held is not None
    assert held[1] == {A}
    assert held[0] <= rack.endpoints[B].barriers[1]
    one.settle(rack.now, Decisions(((C, 0),), recalled_to(rack, C)))
    assert texts(one) == [b"x"]
    assert one.held is None


def test_what_was_recalled_is_not_delivered() -> None:
    rack = connected()
    rack.loses = lambda process, data: process == C and data[22] == wire.ACK
    rack.send(A, R, (B, b"x"), (C, b"x"))
    rack.send(B, R, (C, b"y"))
    one = excluded(rack)
    assert sum(isinstance(event, SendFailed) for event in rack.events[A]) == 1
    recalled = recalled_to(rack, C)
    assert len(recalled) == 2
    assert one.held is not None
    one.settle(rack.now, Decisions(((C, 0),), recalled))
    assert texts(one) == []
    assert b"x" not in rack.texts(B)


def test_what_failed_senders_sent_above_their_stamps_is_not_delivered() -> None:
    rack = connected()
    rack.loses = lambda process, data: process == C and data[22] == wire.ACK
    for name in (b"x", b"y"):
        rack.send(A, R, (C, name))
        rack.now += T // 8
    rack.send(B, R, (C, b"z"))
    first, second = (one.stamp for one in rack.events[A][-2:] if isinstance(one, Left))
    one = rack.endpoints[C]
    one.exclude()
    one.settle(rack.now, Decisions(((A, first), (C, 0)), ()))
    found = [event for event in one.take_events() if isinstance(event, Message | ProcessFailed)]
    assert [event.payload if isinstance(event, Message) else event for event in found] == [
        b"x", ProcessFailed(A, first), b"z",
    ]  # fmt: skip
    assert first < second


def test_what_it_sent_to_itself_above_its_own_stamp_is_not_delivered() -> None:
    for is_above in (True, False):
        rack = connected()
        rack.send(C, R, (C, b"own"))
        one = rack.endpoints[C]
        one.exclude()
        held = one.held
        assert held is not None
        one.settle(rack.now, Decisions(((C, held[0] - is_above),), ()))
        assert texts(one) == ([] if is_above else [b"own"])


def test_it_takes_nothing_behind_its_exclusion() -> None:
    rack = connected()
    rack.endpoints[C].exclude()
    rack.send(A, R, (C, b"late"))
    rack.run(2)
    assert rack.endpoints[C].held is None


def test_a_commit_barrier_stays_below_what_cannot_be_recalled_until_that_is_noted() -> None:
    rack = connected()
    rack.notes = False
    rack.loses = lambda process, _data: process == C
    rack.send(A, R, (B, b"x"), (C, b"x"))
    stamp = next(one.stamp for one in reversed(rack.events[A]) if isinstance(one, Left))
    excluded(rack)
    rack.run(20)
    assert Settled(C) not in rack.events[A]
    assert rack.endpoints[B].barriers[1] < stamp
    assert recalled_to(rack, C) == ((A, stamp, stamp),)
    rack.endpoints[A].recalls_noted(rack.now, C)
    rack.run(20)
    assert Settled(C) in rack.events[A]
    assert rack.endpoints[B].barriers[1] > stamp


def test_a_recall_that_a_second_failed_process_does_not_answer_is_noted_too() -> None:
    rack = connected()
    rack.loses = lambda process, data: process == C or data[22] == wire.RECALL_ACK
    rack.send(A, R, (B, b"x"), (C, b"x"))
    stamp = next(one.stamp for one in reversed(rack.events[A]) if isinstance(one, Left))
    rack.endpoints[A].process_failed(rack.now, C, stamp - 1)
    rack.carry()
    rack.endpoints[A].process_failed(rack.now, B, stamp - 1)
    rack.carry()
    assert recalled_to(rack, C) == recalled_to(rack, B) == ((A, stamp, stamp),)
    assert {Settled(B), Settled(C)} <= {*rack.events[A]}


def test_stamps_that_follow_each_other_are_one_range() -> None:
    rack = connected()
    rack.loses = lambda process, _data: process == C
    rack.endpoints[A].send_many(rack.now, R, [[(C, b"%02d" % number)] for number in range(40)])
    rack.run(1)
    rack.send(A, R, (C, b"apart"))
    excluded(rack)
    ranges = recalled_to(rack, C)
    assert [last - first + 1 for _, first, last in ranges] == [40, 1]


def test_nothing_goes_to_a_process_that_is_fenced() -> None:
    rack = connected()
    rack.loses = lambda process, _data: process == C  # it still hears the switch
    rack.send(A, R, (B, b"x"), (C, b"x"))
    rack.run(15)
    barriers = rack.endpoints[C].barriers
    stamp = rack.switch.registers()[C].commit
    for process in (A, B):
        rack.endpoints[process].process_failed(rack.now, C, stamp)
    rack.run(5)
    assert rack.endpoints[C].barriers == barriers
    assert b"x" not in rack.texts(C)
    rack.switch.remove(rack.now, C, epoch=1)
    rack.run(5)
    assert rack.endpoints[C].barriers == barriers


# -- what the controller keeps -----------------------------------------------------------------


def failed(*processes: int) -> FailureState:
    """A rack in which processes have failed, each at the stamp 100."""
    topology = Topology.tree(1)
    state = FailureState(topology)
    rack = topology.switch_of_rack(0).id
    for process in (A, B, *processes):
        state.apply(ProcessJoined(process))
    for process in processes:
        state.apply(InputSilent(rack, process, 1, 100))
        state.apply(Decide())
    return state


def test_decisions_are_those_of_what_a_process_holds() -> None:
    state = failed(C, 4)
    state.apply(Recalled(A, C, ((5, 7), (9, 9))))
    state.apply(Recalled(B, C, ((6, 6),)))
    state.apply(Recalled(B, 4, ((8, 8),)))
    assert state.decisions(C, [A, B]) == Decisions(((C, 100),), ((A, 5, 7), (A, 9, 9), (B, 6, 6)))
    assert state.decisions(C, [A, 4]) == Decisions(
        ((C, 100), (4, 100)), ((A, 5, 7), (A, 9, 9), (B, 6, 6))
    )
    assert state.decisions(A, []) is None
    copy = FailureState(state.topology)
    copy.load(state.dump())
    assert copy.decisions(C, [4]) == state.decisions(C, [4])
    assert copy.dump() == state.dump()


def test_a_snapshot_of_an_earlier_release_keeps_no_decisions() -> None:
    state = failed(C)
    dumped = state.dump()
    del dumped["recalled"]
    copy = FailureState(state.topology)
    copy.load(dumped)
    assert copy.decisions(C, []) is None


def test_decisions_are_kept_for_the_last_processes_that_failed() -> None:
    many = [*range(C, C + RETURNING_MAX + 1)]
    state = failed(*many)
    assert state.decisions(C, []) is None
    assert state.decisions(C + 1, []) is not None
    state.apply(Recalled(A, C, ((5, 7),)))
    assert state.decisions(C, []) is None


def test_too_many_ranges_are_not_kept() -> None:
    state = failed(C, 4)
    state.apply(Recalled(A, C, tuple((one, one) for one in range(RANGES_KEPT))))
    assert state.decisions(C, []) is not None
    state.apply(Recalled(A, C, ((1, 1),)))
    assert state.decisions(C, []) is None
    assert state.decisions(4, []) is not None


def test_all_that_a_budget_has_room_for_is_kept() -> None:
    assert EndpointConfig().reorder_budget // wire.cost_of(0) < RANGES_KEPT


def test_an_answer_with_the_largest_numbers_fits_in_a_frame() -> None:
    """As many ranges as are kept, and as many failed senders as one can ask about."""
    largest = (1 << 63) - 1
    state = failed(C)
    process = (1 << 31) - 1
    ranges = tuple((largest, largest) for _ in range(RANGES_KEPT))
    state.apply(Recalled(process, C, ranges))
    senders = range(1, 15_000)
    returned = report_to(Returned(C, 0, tuple(senders)))
    assert len(framed_json({"op": "report", "report": returned})) > REQUEST_BYTES_MAX
    state.failed.update(dict.fromkeys(senders, largest))
    found = state.decisions(C, senders)
    assert found is not None
    assert len(found.recalled) == RANGES_KEPT
    answer = {"op": "done", "number": largest, "decided": True, **decisions_to(found)}
    assert len(framed_json(answer)) <= FRAME_BYTES_MAX


def test_only_a_sender_says_what_it_has_recalled() -> None:
    state = ControllerState()
    state.apply(Founded(1, 0, 0, T))
    assert state.failures is not None
    rack = state.failures.topology.switch_of_rack(0).id
    for process in (A, B, C):
        state.failures.apply(ProcessJoined(process))
    state.failures.apply(InputSilent(rack, C, 1, 100))
    state.apply(Decide())
    state.apply(Reported(A, 1, 1, Recalled(B, C, ((5, 7),))))
    state.apply(Reported(A, 1, 2, Recalled(A, C, ((8, 8),))))
    assert state.apply(Reported(A, 1, 3, Returned(A, 9, ()))) == []
    assert state.failures.decisions(C, []) == Decisions(((C, 100),), ((A, 8, 8),))


# -- when it answers -------------------------------------------------------------------------------


def test_one_process_of_each_rack_is_behind_what_all_racks_have_passed() -> None:
    first, second, other = process_id(0, 1), process_id(0, 2), process_id(1, 1)
    here = {first, second, other}
    assert passed(here, {first: 7, second: 5, other: 9}) == 7
    assert passed(here, {first: 9, other: 8}) == 8
    assert passed(here, {first: 9, second: 9}) == 0
    assert passed({first}, {first: 7, other: 5}) == 7
    assert passed((), {first: 7}) == 0


def test_what_one_rack_alone_has_passed_is_not_decided() -> None:
    """The rack may be cut off: what comes from there above a lower stamp is discarded then."""
    one, other, sender, returned = (process_id(*at) for at in ((0, 1), (0, 2), (2, 1), (1, 1)))
    rack_0, rack_1, spine = (switch_id(name) for name in ("rack-0", "rack-1", "spine-0"))
    state = FailureState(Topology.tree(3, 1))
    for process in (one, other, sender, returned):
        state.apply(ProcessJoined(process))
    pacing, asks = Pacing(T), Returned(returned, 150, (sender,))
    for now, process in enumerate((one, other, sender, returned)):
        pacing.away.told(now, process, 150)
    assert not is_decided(state, pacing, returned, asks)  # it goes on
    pacing = Pacing(T)
    state.apply(InputSilent(rack_1, returned, 1, 100))
    state.apply(Decide())
    pacing.away.told(1, sender, 200)
    pacing.away.told(2, one, 149)
    assert not is_decided(state, pacing, returned, asks)
    cut: list[Entry] = [InputSilent(rack_0, spine, 1, 120), InputSilent(spine, rack_0, 1, 130)]
    for entry in (*cut, Decide()):
        state.apply(entry)
    assert state.failed == {returned: 100, sender: 120}
    pacing.away.told(3, other, 150)
    assert is_decided(state, pacing, returned, asks)
    found = state.decisions(returned, asks.senders)
    assert found == Decisions(((returned, 100), (sender, 120)), ())
    assert not is_decided(state, None, returned, asks)


def test_what_a_process_told_that_has_failed_counts_no_more() -> None:
    state, pacing = failed(C), Pacing(T)
    asks = Returned(C, 150, (A,))
    pacing.away.told(1, A, 200)
    pacing.away.told(2, A, 140)  # it was told late
    assert is_decided(state, pacing, C, asks)
    rack = state.topology.switch_of_rack(0).id
    state.apply(InputSilent(rack, A, 1, 100))
    state.apply(Decide())
    assert not is_decided(state, pacing, C, asks)
    pacing.away.told(3, B, 150)
    assert is_decided(state, pacing, C, asks)


def test_what_failed_processes_told_is_not_kept() -> None:
    state, away = failed(C), Away(T)

    def size() -> int:
        away.silent(0, state, frozenset({A, B}))
        return len(pickle.dumps(away))

    for process in (A, B):
        away.told(0, process, 150)
    before = size()
    for process in range(C, C + 1_000):
        away.told(0, process, 150)
    assert size() == before
    assert away.passed(state) == 150
