"""Transcripts of the controller's state: names, addresses, reports, and dumps of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir_toc.controller.entries import (
    Completed,
    Decide,
    Fail,
    Freeze,
    InputSilent,
    LinkJoined,
    NodeSilent,
    ProcessJoined,
    Remove,
    SetRoutes,
)
from weir_toc.controller.pacing import ANSWER_NS_MIN, COLLECT_NS_MIN, Pacing
from weir_toc.controller.records import (
    Founded,
    Lapsed,
    Record,
    Registered,
    Removed,
    Reported,
    SwitchStarted,
)
from weir_toc.controller.state import ControllerState
from weir_toc.errors import ControlError
from weir_toc.topology import Topology, process_id, switch_id

SWITCH = Topology.tree(1).switch_of_rack(0).id
A, B, C = (process_id(0, serial) for serial in (1, 2, 3))
RACK_0, RACK_1, SPINE = (switch_id(name) for name in ("rack-0", "rack-1", "spine-0"))
IN_1, NEXT_IN_1 = process_id(1, 1), process_id(1, 2)


def founded(*names: str) -> ControllerState:
    """A network of one rack in which processes of these names have joined."""
    state = ControllerState()
    state.apply(Founded(1, 0, 0, 1_000_000))
    state.apply(SwitchStarted(SWITCH, 1, "h", 9))
    for number, name in enumerate(names, 1):
        state.apply(Registered(name, 0, number))
        state.apply(Reported(SWITCH, 1, number, ProcessJoined(state.names[name].process)))
    return state


def same(state: ControllerState) -> ControllerState:
    """The state after a dump and a load; they do not differ."""
    again = ControllerState.load(state.dump())
    assert again.dump() == state.dump()
    return again


def play(state: ControllerState, record: Record) -> list[object]:
    """Apply a record, to a loaded copy as well: both command the same."""
    copy = same(state)
    commands = state.apply(record)
    assert copy.apply(record) == commands
    assert copy.dump() == state.dump()
    return [one for one in commands if not isinstance(one, SetRoutes)]


def test_the_network_is_founded_once_and_first() -> None:
    state = ControllerState()
    assert same(state).network is None
    assert state.apply(Registered("a", 0, 1)) == []
    assert "not founded" in state.refusal("a", 0)
    state.apply(Founded(1, 0, 0, 5))
    state.apply(Founded(2, 1, 0, 9))
    assert state.network == Founded(1, 0, 0, 5)


def test_a_name_is_one_process_s_until_that_has_failed() -> None:
    state = founded("a")
    assert state.names["a"].process == A
    play(state, Registered("a", 0, 99))
    assert state.names["a"].process == A
    assert "is here already" in state.refusal("a", 0)
    assert "no aggregator runs for rack 1" in state.refusal("b", 1)
    play(state, Registered("b", 0, 5))
    play(state, Registered("b", 0, 5))
    assert state.names["b"].process == B
    play(state, Registered("b", 0, 6))  # the first one has never joined
    assert state.names["b"].process == C
    # It joins nevertheless: nobody can address it, so it counts as not answering.
    play(state, Reported(SWITCH, 1, 9, ProcessJoined(B)))
    assert state.failures is not None
    assert state.failures.is_undecided


def test_a_failure_is_carried_out_and_its_register_removed() -> None:
    state = founded("a", "b", "c")
    play(state, Reported(SWITCH, 1, 9, InputSilent(SWITCH, B, 1, 77)))
    assert play(state, Decide()) == [Fail(A, 1, ((B, 77),)), Fail(C, 1, ((B, 77),))]
    assert "b" not in state.names
    assert state.pending(A) == [Fail(A, 1, ((B, 77),))]
    assert play(state, Reported(A, 4, 1, Completed(1, A))) == []
    assert state.pending(A) == []
    remove = Remove(SWITCH, B, 1)
    assert play(state, Reported(C, 4, 1, Completed(1, C))) == [remove]
    # It is kept until the switch says that it obeyed: the leader may change before.
    assert remove in same(state).pending(SWITCH)
    play(state, Reported(SWITCH, 1, 10, Removed(SWITCH, B, 1)))
    assert remove not in state.pending(SWITCH)


def test_a_removal_that_holds_an_input_ends_with_the_next_one() -> None:
    """Its answer may come behind the command to let the input come back, and ends that not."""
    state, core, spine, release = core_that_holds_a_spine()
    assert [one for one in state.pending(core) if isinstance(one, Remove)] == [release]
    play(state, Reported(core, 1, 20, Removed(core, spine, 1, holds=True)))
    assert release in same(state).pending(core)
    play(state, Reported(core, 1, 21, Removed(core, spine, 1)))
    assert release not in state.pending(core)


def core_that_holds_a_spine() -> tuple[ControllerState, int, int, Remove]:
    """Return a network whose core is to let a spine come back, with that command."""
    state = ControllerState()
    play(state, Founded(2, 2, 1, 1_000_000))
    assert state.failures is not None
    tree = state.failures.topology
    for id in tree.switches:
        play(state, SwitchStarted(id, 1, "h", 9))
    core = switch_id("core-0")
    spine, racks = tree.switches[core].lower[1], tree.switches[tree.switches[core].lower[1]].lower
    for number, rack in enumerate(racks):
        play(state, Reported(rack, 1, 1, InputSilent(rack, spine, 1, 40)))
        play(state, Reported(spine, 1, 1 + number, InputSilent(spine, rack, 1, 40)))
    play(state, Decide())
    play(state, Reported(core, 1, 1, InputSilent(core, spine, 1, 40)))
    play(state, Decide())
    assert Remove(core, spine, 1, holds=True) in same(state).pending(core)
    play(state, Reported(spine, 1, 9, LinkJoined(spine, racks[0])))
    play(state, Reported(racks[0], 1, 9, LinkJoined(racks[0], spine)))
    return state, core, spine, Remove(core, spine, 1)


def test_nobody_answers_for_another_and_a_report_counts_once() -> None:
    state = founded("a", "b", "c")
    report = Reported(SWITCH, 1, 9, InputSilent(SWITCH, B, 1, 77))
    play(state, report)
    play(state, Decide())
    play(state, Reported(A, 4, 1, Completed(1, C)))
    assert state.pending(C) == [Fail(C, 1, ((B, 77),))]
    before = state.dump()
    play(state, report)
    play(state, replace(report, number=3))
    play(state, replace(report, incarnation=2, number=11))  # no aggregator that is known
    assert state.dump() == before


def test_an_aggregator_that_restarts_has_failed_with_its_processes_first() -> None:
    state = founded("a", "b")
    again = SwitchStarted(SWITCH, 2, "h", 10)
    play(state, again)
    assert state.switches[SWITCH].port == 9
    play(state, Decide())
    assert state.failures is not None
    assert state.failures.failed.keys() == {A, B}
    assert state.names == {}
    play(state, again)
    assert state.switches[SWITCH].port == 10
    play(state, Registered("a", 0, 5))
    play(state, Reported(SWITCH, 2, 1, ProcessJoined(C)))
    assert state.failures.processes == {C}
    play(state, Reported(SWITCH, 2, 2, InputSilent(SWITCH, C, 1, 5)))
    play(state, Decide())
    assert C in state.failures.failed


def two_racks() -> ControllerState:
    """Two racks below a spine: A is in the first one, C in the other, where D is about to join."""
    state = ControllerState()
    state.apply(Founded(2, 1, 0, 1_000_000))
    for number, switch in enumerate((RACK_0, RACK_1, SPINE), 1):
        state.apply(SwitchStarted(switch, number, "h", number))
    for name, rack, process in (("a", 0, A), ("c", 1, IN_1), ("d", 1, NEXT_IN_1)):
        state.apply(Registered(name, rack, 1))
        assert state.names[name].process == process
    state.apply(Reported(RACK_0, 1, 1, ProcessJoined(A)))
    state.apply(Reported(RACK_1, 2, 1, ProcessJoined(IN_1)))
    return state


def test_no_process_joins_in_a_rack_that_is_cut_off() -> None:
    state = two_racks()
    failures = state.failures
    assert failures is not None
    assert (state.refusal("e", 1), state.emptiest_rack()) == ("", 0)
    play(state, Reported(SPINE, 3, 1, InputSilent(SPINE, RACK_1, 1, 50)))
    play(state, Reported(RACK_1, 2, 2, InputSilent(RACK_1, SPINE, 1, 40)))
    play(state, Decide())
    assert failures.failed == {IN_1: 50}
    assert state.refusal("e", 0) == ""
    assert "rack 1 is cut off" in state.refusal("e", 1)
    play(state, Registered("e", 1, 1))
    assert "e" not in state.names
    play(state, Registered("f", 0, 1))
    assert state.emptiest_rack() == 0  # the other one has fewer
    # One that had registered before has failed as it joins: nobody else is told.
    assert play(state, Reported(RACK_1, 2, 3, ProcessJoined(NEXT_IN_1))) == []
    assert failures.failed == {IN_1: 50, NEXT_IN_1: 0}
    assert not failures.is_undecided
    assert state.names.keys() == {"a", "f"}
    assert state.unjoined == {state.names["f"].process}
    # One direction is not enough.
    play(state, Reported(SPINE, 3, 2, LinkJoined(SPINE, RACK_1)))
    assert "rack 1 is cut off" in state.refusal("e", 1)
    play(state, Reported(RACK_1, 2, 4, LinkJoined(RACK_1, SPINE)))
    assert (state.refusal("e", 1), state.emptiest_rack()) == ("", 1)


def test_a_rack_whose_switch_was_given_up_takes_processes_once_its_links_are_back() -> None:
    state = two_racks()
    play(state, NodeSilent(RACK_1))
    play(state, Reported(SPINE, 3, 1, InputSilent(SPINE, RACK_1, 1, 50)))
    play(state, Decide())
    assert "rack 1 is cut off" in state.refusal("e", 1)
    play(state, Reported(SPINE, 3, 2, LinkJoined(SPINE, RACK_1)))
    assert state.refusal("e", 1) == ""


def test_an_aggregator_that_was_given_up_goes_on_with_new_processes() -> None:
    state = founded("a")
    play(state, NodeSilent(SWITCH))
    play(state, Decide())
    assert state.failures is not None
    assert state.failures.failed.keys() == {A}
    # It has lost its connection to the controller, and nothing else.
    play(state, Registered("b", 0, 5))
    play(state, Reported(SWITCH, 1, 9, ProcessJoined(B)))
    play(state, Reported(SWITCH, 1, 10, InputSilent(SWITCH, A, 1, 77)))
    assert play(state, Decide()) == [Remove(SWITCH, A, 1)]
    assert state.failures.processes == {B}


def test_a_snapshot_that_is_none_is_refused() -> None:
    for data in (b"", b"{}", b'{"version":2}', b'{"version":1,"network":[1,0,0,5]}'):
        with pytest.raises(ControlError):
            ControllerState.load(data)


def test_a_leader_decides_after_a_pause_and_does_not_wait_for_ever() -> None:
    state = founded("a", "b")
    pacing = Pacing(1_000_000)
    here = frozenset({SWITCH})
    assert pacing.due(0, state, here) == []
    state.apply(Reported(SWITCH, 1, 9, InputSilent(SWITCH, B, 1, 77)))
    assert pacing.due(1, state, here) == []
    assert pacing.due(COLLECT_NS_MIN, state, here) == []
    assert pacing.due(COLLECT_NS_MIN + 1, state, here) == [Decide()]
    state.apply(Decide())
    assert pacing.due(100_000_000, state, here) == []
    # A has not answered in time: it has failed as well.
    assert pacing.due(100_000_000 + ANSWER_NS_MIN, state, here) == [NodeSilent(A)]


def test_a_register_that_is_not_frozen_in_time_is_of_a_dead_switch() -> None:
    state = founded("a", "b")
    pacing = Pacing(1_000_000)
    state.apply(NodeSilent(A))
    pacing.commanded(5, Freeze(SWITCH, A))
    assert NodeSilent(SWITCH) not in pacing.due(4 + ANSWER_NS_MIN, state, frozenset({SWITCH}))
    assert NodeSilent(SWITCH) in pacing.due(5 + ANSWER_NS_MIN, state, frozenset({SWITCH}))
    pacing.commanded(5, Freeze(SWITCH, A))
    state.apply(Reported(SWITCH, 1, 9, InputSilent(SWITCH, A, 1, 77)))
    assert NodeSilent(SWITCH) not in pacing.due(9 * ANSWER_NS_MIN, state, frozenset({SWITCH}))


def test_a_register_that_no_decision_waits_for_need_not_be_frozen() -> None:
    state = founded("a", "b")
    pacing = Pacing(1_000_000)
    pacing.commanded(5, Freeze(SWITCH, A))
    assert pacing.due(5 + ANSWER_NS_MIN, state, frozenset({SWITCH})) == []


def test_an_aggregator_that_is_not_connected_is_given_up() -> None:
    state = founded("a")
    pacing = Pacing(1_000_000)
    assert pacing.due(7, state, frozenset()) == []
    assert pacing.due(8, state, frozenset({SWITCH})) == []
    assert pacing.due(9, state, frozenset()) == []
    assert pacing.due(8 + ANSWER_NS_MIN, state, frozenset()) == []
    assert pacing.due(9 + ANSWER_NS_MIN, state, frozenset()) == [NodeSilent(SWITCH)]
    state.apply(NodeSilent(SWITCH))
    assert state.failures is not None
    assert state.failures.is_undecided


def test_who_is_not_connected_has_failed_once_commit_barriers_stand() -> None:
    state = founded("a", "b")
    pacing, here = Pacing(1_000_000), frozenset({SWITCH, A})
    assert pacing.due(7, state, here | {B}) == []
    assert pacing.due(8, state, here) == []
    late = 8 + 3 * ANSWER_NS_MIN
    for now in range(8, late, ANSWER_NS_MIN // 2):  # barriers rise: B holds none
        pacing.away.told(now, A, now)
        assert pacing.due(now, state, here) == []
    pacing.away.told(late, A, late)
    pacing.away.told(late + ANSWER_NS_MIN - 1, A, late)
    assert pacing.due(late + 9 * ANSWER_NS_MIN, state, here) == []  # nobody has told any more
    pacing.away.told(late + ANSWER_NS_MIN, A, late - 1)
    assert pacing.due(late + ANSWER_NS_MIN, state, here | {B}) == []
    assert pacing.due(late + ANSWER_NS_MIN + 1, state, here) == []  # since now only
    assert pacing.due(late + 2 * ANSWER_NS_MIN + 1, state, here) == [NodeSilent(B)]
    assert pacing.due(late + 2 * ANSWER_NS_MIN + 2, state, here) == []  # that is under way
    state.apply(NodeSilent(B))
    assert NodeSilent(B) not in pacing.due(late + 3 * ANSWER_NS_MIN, state, here)


def test_who_is_not_connected_and_does_not_give_memory_back_has_failed() -> None:
    """Barriers go on: nothing that it has sent holds them."""
    state, pacing = founded("a", "b"), Pacing(1_000_000)
    here, step = frozenset({SWITCH, A}), ANSWER_NS_MIN // 3

    def due(now: int, connected: frozenset[int], is_asked: bool = True) -> list[Record]:
        pacing.away.told(now, A, now)
        if is_asked:
            pacing.away.asked(now, B)
        return pacing.due(now, state, connected)

    assert [due(now, here | {B}) for now in range(step, 6 * step, step)] == [[]] * 5  # slow
    assert [due(now, here) for now in range(6 * step, 9 * step, step)] == [[]] * 3
    assert due(9 * step - 1, here) == []
    assert due(9 * step, here) == [NodeSilent(B)]
    assert due(9 * step + 1, here) == []  # that is under way
    assert due(11 * step, here, is_asked=False) == []
    for now in range(20 * step, 40 * step, 4 * step):  # each time it confirms
        assert due(now, here) == due(now + step, here) == []
        assert due(now + 3 * step, here, is_asked=False) == []
    assert [due(now, here) for now in range(40 * step, 43 * step, step)] == [[]] * 3
    assert due(43 * step, here) == [NodeSilent(B)]


def test_barriers_that_a_failure_holds_are_no_fault_of_who_is_not_connected() -> None:
    state = founded("a", "b", "c")
    pacing, here = Pacing(1_000_000), frozenset({SWITCH, A})
    assert pacing.due(7, state, here) == []
    pacing.away.told(7, A, 7)
    state.apply(NodeSilent(C))
    now = 7 + ANSWER_NS_MIN
    pacing.away.told(now, A, 7)
    assert NodeSilent(B) not in pacing.due(now, state, here)


def test_a_name_whose_process_never_joined_is_free_again() -> None:
    state = founded("a")
    play(state, Registered("b", 0, 2))
    pacing, here = Pacing(1_000_000), frozenset({SWITCH})
    assert pacing.due(7, state, here | {B}) == []  # it is connected: its aggregator may admit it
    assert pacing.due(8, state, here) == []
    assert pacing.due(7 + ANSWER_NS_MIN, state, here) == []
    assert pacing.due(8 + ANSWER_NS_MIN, state, here) == [Lapsed(B)]
    play(state, Lapsed(B))
    assert [*state.names] == ["a"]
    assert pacing.due(9 + ANSWER_NS_MIN, state, here) == []
    play(state, Lapsed(B))  # proposed twice
    # It joins after all: nobody knows it, and it is excluded.
    play(state, Reported(SWITCH, 1, 9, ProcessJoined(B)))
    assert state.failures is not None
    assert state.failures.is_undecided


def test_a_rack_whose_switch_has_no_place_for_more_is_refused() -> None:
    """A program in the data path has 64 neighbours, and one of them is a spine here."""
    state = ControllerState()
    state.apply(Founded(2, 1, 0, 1_000_000, "xdp"))
    for switch in (RACK_0, RACK_1, SPINE):
        state.apply(SwitchStarted(switch, 1, "h", 9))
    for number in range(1, 64):
        assert state.refusal(f"p{number}", 0) == ""
        play(state, Registered(f"p{number}", 0, number))
        state.apply(Reported(RACK_0, 1, number, ProcessJoined(process_id(0, number))))
    assert "63 processes are linked to the switch of rack 0" in state.refusal("late", 0)
    assert state.refusal("late", 1) == ""
    play(state, Registered("late", 0, 99))
    assert "late" not in state.names
    for process in (A, B):  # a register counts until the switch has removed it
        play(state, NodeSilent(process))
    state.apply(Decide())
    for number, process in enumerate((A, B), 64):
        silent = InputSilent(RACK_0, process, 1, 77)
        state.apply(Reported(RACK_0, 1, number, silent))
    state.apply(Decide())
    for process in (process_id(0, serial) for serial in range(3, 64)):
        state.apply(Reported(process, 1, 1, Completed(1, process)))
    assert set(state.removals) == {(RACK_0, A), (RACK_0, B)}
    assert "63 processes" in state.refusal("late", 0)
    state.apply(Reported(RACK_0, 1, 66, Removed(RACK_0, A, 1)))
    assert state.refusal("late", 0) == ""


def test_a_process_that_joins_meanwhile_keeps_its_name() -> None:
    state = founded("a")
    play(state, Registered("b", 0, 2))
    play(state, Reported(SWITCH, 1, 9, ProcessJoined(B)))
    play(state, Lapsed(B))
    assert state.names["b"].process == B
    assert state.unjoined == set()


def test_a_name_that_another_took_over_is_not_taken_from_it() -> None:
    state = founded("a")
    play(state, Registered("b", 0, 2))
    play(state, Registered("b", 0, 3))  # the first one never joined
    assert state.unjoined == {C}
    play(state, Lapsed(B))
    assert state.names["b"].process == C


def test_a_switch_that_connects_again_is_told_what_to_freeze() -> None:
    """Until its register is frozen, or no decision waits for it any more."""
    state = founded("a", "b")
    play(state, NodeSilent(A))
    assert Freeze(SWITCH, A) not in state.pending(SWITCH)  # reports are still collected
    assert play(state, Decide()) == [Freeze(SWITCH, A)]
    assert Freeze(SWITCH, A) in same(state).pending(SWITCH)
    assert Freeze(SWITCH, A) not in state.pending(B)
    play(state, Reported(SWITCH, 1, 9, InputSilent(SWITCH, A, 1, 77)))
    assert Freeze(SWITCH, A) not in state.pending(SWITCH)
    assert play(state, Decide()) == [Fail(B, 1, ((A, 77),))]
    assert Freeze(SWITCH, A) not in state.pending(SWITCH)
