"""Transcripts of decisions: who has failed, at which stamp, and when registers are removed."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from weir_toc.controller.entries import (
    Command,
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
from weir_toc.controller.failures import FailureState
from weir_toc.topology import Topology, process_id

TREE = Topology.tree(racks=2, spines=2)
RACKS = [TREE.switch_of_rack(rack).id for rack in (0, 1)]
SPINES = [*TREE.switches[RACKS[0]].upper]
A, B, C = process_id(0, 1), process_id(0, 2), process_id(1, 1)


def state() -> FailureState:
    one = FailureState(TREE)
    for process in (A, B, C):
        assert one.apply(ProcessJoined(process)) == []
    assert not one.is_undecided
    return one


def silent(one: FailureState, *ports: tuple[int, int, int]) -> None:
    for switch, neighbour, commit in ports:
        assert one.apply(InputSilent(switch, neighbour, 1, commit)) == []
    assert one.is_undecided


def but_routes(commands: Iterable[Command]) -> list[Command]:
    return [one for one in commands if not isinstance(one, SetRoutes)]


def test_a_process_whose_link_is_silent_has_failed_at_its_last_commit() -> None:
    one = state()
    silent(one, (RACKS[0], B, 77))
    commands = but_routes(one.apply(Decide()))
    assert commands == [Fail(A, 1, ((B, 77),)), Fail(C, 1, ((B, 77),))]
    assert one.failed == {B: 77}
    assert one.pending() == commands
    assert not one.is_undecided


def test_registers_are_removed_when_all_have_answered() -> None:
    one = state()
    silent(one, (RACKS[0], B, 77))
    one.apply(Decide())
    assert one.apply(Completed(1, A)) == []
    assert one.apply(Completed(1, A)) == []
    assert one.apply(Completed(1, C)) == [Remove(RACKS[0], B, 1)]
    assert one.apply(Completed(1, C)) == []
    assert one.apply(Decide()) == []
    assert one.apply(ProcessJoined(B)) == []
    assert B not in one.processes  # its id never comes back


def test_a_dead_switch_takes_its_processes_with_it_at_the_highest_register_of_the_cut() -> None:
    one = state()
    silent(one, (SPINES[0], RACKS[1], 50), (SPINES[1], RACKS[1], 60))
    commands = but_routes(one.apply(Decide()))
    assert commands == [Fail(A, 1, ((C, 60),)), Fail(B, 1, ((C, 60),))]
    one.apply(Completed(1, A))
    done = one.apply(Completed(1, B))
    assert done == [Remove(SPINES[0], RACKS[1], 1), Remove(SPINES[1], RACKS[1], 1)]


def test_a_cable_that_no_process_needs_is_removed_at_once() -> None:
    one = state()
    silent(one, (SPINES[0], RACKS[1], 50), (RACKS[1], SPINES[0], 40))
    commands = one.apply(Decide())
    removed = [command for command in commands if isinstance(command, Remove)]
    assert removed == [Remove(SPINES[0], RACKS[1], 1), Remove(RACKS[1], SPINES[0], 1)]
    assert one.failed == {}
    (routes,) = (
        command.routes
        for command in commands
        if isinstance(command, SetRoutes) and command.switch == RACKS[0]
    )
    assert routes == {SPINES[0]: {0}, SPINES[1]: {0, 1}}


def test_a_link_that_comes_back_twice_during_a_failure_is_removed_in_its_last_epoch() -> None:
    one = state()
    port = RACKS[0], SPINES[0]
    silent(one, (RACKS[0], B, 77), (*port, 70), (*port[::-1], 71))
    one.apply(Decide())
    assert but_routes(one.apply(LinkJoined(*port))) == []  # at the end of the failure
    one.apply(InputSilent(*port, 2, 70))
    assert but_routes(one.apply(LinkJoined(*port))) == []
    one.apply(Completed(1, A))
    assert Remove(*port, 2) in one.apply(Completed(1, C))


def _with_a_cable_behind(is_loaded: bool = False) -> FailureState:
    """Return a state in which a cable of rack 1 was removed, and is back and behind."""
    one = state()
    silent(one, (SPINES[0], RACKS[1], 50), (RACKS[1], SPINES[0], 40))
    one.apply(Decide())
    one.apply(LinkJoined(SPINES[0], RACKS[1], is_behind=True))
    one.apply(LinkJoined(RACKS[1], SPINES[0]))
    if not is_loaded:
        return one
    loaded = FailureState(TREE)
    loaded.load(json.loads(json.dumps(one.dump())))
    return loaded


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_cable_stays_while_the_one_in_its_place_is_behind(is_loaded: bool) -> None:
    """The spine of that one has promised more, and told rack 0: nothing else holds it back."""
    one = _with_a_cable_behind(is_loaded)
    silent(one, (SPINES[1], RACKS[1], 60), (RACKS[1], SPINES[1], 61))
    assert but_routes(one.apply(Decide())) == []
    assert one.failed == {}
    assert but_routes(one.apply(LinkJoined(SPINES[0], RACKS[1]))) == [
        Remove(SPINES[1], RACKS[1], 1), Remove(RACKS[1], SPINES[1], 1),
    ]  # fmt: skip
    assert one.failures == {}


TREE_OF_THREE = Topology.tree(racks=2, spines=3)
RACK = RACKS[1]
FIRST, SECOND, THIRD = TREE_OF_THREE.switches[RACK].upper


def _with_two_cables_removed() -> FailureState:
    """Return a state in which two cables of rack 1 were removed, and one is back and behind."""
    one = FailureState(TREE_OF_THREE)
    one.apply(ProcessJoined(A))
    one.apply(ProcessJoined(C))
    silent(one, *((spine, RACK, 5) for spine in (FIRST, SECOND)),
           *((RACK, spine, 5) for spine in (FIRST, SECOND)))  # fmt: skip
    one.apply(Decide())
    one.apply(LinkJoined(FIRST, RACK, is_behind=True))
    one.apply(LinkJoined(RACK, FIRST))
    one.apply(Decide())  # the second one is decided on again
    return one


@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_was_removed_before_holds_nothing_back_when_it_is_decided_on_again(
    is_loaded: bool,
) -> None:
    one = _with_two_cables_removed()
    if is_loaded:
        state = json.loads(json.dumps(one.dump()))
        one = FailureState(TREE_OF_THREE)
        one.load(state)
    silent(one, (THIRD, RACK, 9), (RACK, THIRD, 9))
    assert Remove(THIRD, RACK, 1) not in one.apply(Decide())
    # An end of the second cable comes back, and lets the other end come back, too.
    assert Remove(RACK, SECOND, 1) in one.apply(LinkJoined(SECOND, RACK, is_behind=True))
    assert Remove(THIRD, RACK, 1) in one.apply(LinkJoined(FIRST, RACK))


def test_a_cable_that_is_back_and_not_behind_takes_the_place_of_another_one() -> None:
    one = _with_two_cables_removed()
    one.apply(LinkJoined(SECOND, RACK))
    one.apply(LinkJoined(RACK, SECOND))
    silent(one, (THIRD, RACK, 9), (RACK, THIRD, 9))
    assert Remove(THIRD, RACK, 1) in one.apply(Decide())


def test_a_switch_that_starts_anew_is_not_behind() -> None:
    one = _with_a_cable_behind()
    one.switch_started(SPINES[0])
    silent(one, (SPINES[1], RACKS[1], 60), (RACKS[1], SPINES[1], 61))
    assert Remove(SPINES[1], RACKS[1], 1) in one.apply(Decide())


def test_an_end_that_is_back_does_not_remove_the_other_one_that_is_needed() -> None:
    one = _with_a_cable_behind()
    silent(one, (SPINES[1], RACKS[1], 60), (RACKS[1], SPINES[1], 61))
    one.apply(Decide())
    assert but_routes(one.apply(LinkJoined(RACKS[1], SPINES[1]))) == [
        Remove(RACKS[1], SPINES[1], 1)
    ]


def test_a_rack_that_does_not_go_on_waits_for_no_cable_of_others() -> None:
    tree = Topology.tree(racks=3, spines=2)
    left, right = tree.switches[RACKS[1]].upper
    last = tree.switch_of_rack(2).id
    one = FailureState(tree)
    for process in (A, C, process_id(2, 1)):
        one.apply(ProcessJoined(process))
    silent(one, (left, last, 5), (last, left, 5))
    one.apply(Decide())
    one.apply(LinkJoined(left, last, is_behind=True))
    one.apply(LinkJoined(last, left))
    silent(one, (left, RACKS[1], 6), (right, RACKS[1], 6))
    one.apply(Decide())
    one.apply(Completed(2, A))
    done = one.apply(Completed(2, process_id(2, 1)))
    assert done == [Remove(left, RACKS[1], 1), Remove(right, RACKS[1], 1)]


def test_what_no_cable_holds_back_any_more_keeps_no_other_register() -> None:
    """Rack 1 was cut off, and is back by a cable alone that is behind: its processes had failed."""
    one = state()
    silent(one, *((spine, RACKS[1], 50) for spine in SPINES))
    one.apply(Decide())
    for process in (A, B):
        one.apply(Completed(1, process))
    one.apply(LinkJoined(SPINES[0], RACKS[1], is_behind=True))
    silent(one, (RACKS[1], SPINES[1], 61))
    assert Remove(RACKS[1], SPINES[1], 1) in one.apply(Decide())


def test_a_cable_that_is_behind_and_breaks_again_is_waited_for_no_more() -> None:
    one = _with_a_cable_behind()
    one.apply(InputSilent(SPINES[0], RACKS[1], 2, 70))
    one.apply(InputSilent(RACKS[1], SPINES[0], 2, 71))
    assert Remove(SPINES[0], RACKS[1], 2) in one.apply(Decide())


def test_a_process_that_fails_does_not_wait_for_a_cable_that_is_behind() -> None:
    """The register of the process may be what keeps that cable behind."""
    one = _with_a_cable_behind()
    silent(one, (SPINES[1], RACKS[1], 60), (RACKS[1], SPINES[1], 61))
    one.apply(Decide())
    silent(one, (RACKS[0], B, 77))
    one.apply(Decide())
    one.apply(Completed(3, A))
    assert one.apply(Completed(3, C)) == [Remove(RACKS[0], B, 1)]


def test_a_cable_that_breaks_later_waits_for_the_failures_before_it() -> None:
    """Behind it lies the register that keeps barriers below the stamp of the first failure."""
    one = state()
    silent(one, (RACKS[0], B, 77))
    one.apply(Decide())
    one.apply(Completed(1, A))  # C has not been told yet
    silent(one, (RACKS[1], SPINES[0], 80), (SPINES[0], RACKS[1], 79))
    assert but_routes(one.apply(Decide())) == []
    assert [*one.failures] == [1, 2]
    removed = one.apply(Completed(1, C))
    assert removed[:2] == [Remove(RACKS[0], B, 1), Remove(RACKS[1], SPINES[0], 1)]
    assert one.failures == {}


def test_an_input_of_the_cut_that_is_not_silent_is_frozen_first() -> None:
    one = state()
    silent(one, (SPINES[0], RACKS[1], 50))  # only one direction: the rack still hears the spine
    freeze = Freeze(RACKS[1], SPINES[0])
    assert one.apply(Decide()) == [freeze]
    assert one.awaits(freeze)
    one.apply(InputSilent(RACKS[1], SPINES[0], 1, 70))
    assert not one.awaits(freeze)
    assert Remove(RACKS[1], SPINES[0], 1) in one.apply(Decide())


def test_a_switch_that_does_not_answer_is_dead() -> None:
    one = state()
    one.apply(ProcessJoined(process_id(1, 2)))
    one.apply(ProcessJoined(process_id(1, 3)))  # most are in rack 1, whose switch is dead
    silent(one, (SPINES[0], RACKS[1], 50), (SPINES[1], RACKS[1], 60))
    waits = one.apply(Decide())
    assert {command.switch for command in waits if isinstance(command, Freeze)} == {RACKS[1]}
    one.apply(NodeSilent(RACKS[1]))
    one.apply(Decide())
    assert {*one.failed} == {C, process_id(1, 2), process_id(1, 3)}
    assert one.processes == {A, B}


def test_a_process_that_does_not_answer_has_failed() -> None:
    one = state()
    silent(one, (RACKS[0], B, 77))
    one.apply(Decide())
    one.apply(Completed(1, A))
    one.apply(NodeSilent(C))
    freeze = Freeze(RACKS[1], C)
    assert one.apply(Decide()) == [freeze]
    one.apply(InputSilent(RACKS[1], C, 1, 88))
    commands = but_routes(one.apply(Decide()))
    # Nobody waits for C in the first failure any more.
    assert commands == [Fail(A, 2, ((C, 88),)), Remove(RACKS[0], B, 1)]
    assert one.apply(Completed(2, A)) == [Remove(RACKS[1], C, 1)]


def test_a_link_that_is_back_before_the_decision_counts_again() -> None:
    one = state()
    silent(one, (SPINES[0], RACKS[1], 50))
    commands = one.apply(LinkJoined(SPINES[0], RACKS[1]))
    assert but_routes(commands) == [Remove(SPINES[0], RACKS[1], 1)]
    assert not one.is_undecided


def test_switches_that_start_one_after_the_other_leave_no_register_frozen() -> None:
    one = FailureState(Topology.tree(racks=2, spines=1))
    spine = SPINES[0]
    silent(one, (spine, RACKS[0], 5), (spine, RACKS[1], 5))
    for rack in RACKS:  # no switch of a rack runs yet
        assert one.apply(Decide()) == [Freeze(rack, spine)]
        one.apply(NodeSilent(rack))
    assert but_routes(one.apply(Decide())) == []
    one.switch_started(RACKS[0])
    assert but_routes(one.apply(LinkJoined(spine, RACKS[0]))) == [Remove(spine, RACKS[0], 1)]
    assert one.is_undecided
    assert but_routes(one.apply(Decide())) == [Remove(spine, RACKS[1], 1)]
    assert not one.is_undecided


def test_a_rack_that_was_cut_off_gets_its_registers_back() -> None:
    one = state()
    silent(one, (RACKS[1], SPINES[0], 40), (SPINES[0], RACKS[1], 50), (RACKS[1], SPINES[1], 40),
           (SPINES[1], RACKS[1], 60))  # fmt: skip
    one.apply(Decide())
    assert {*one.failed} == {C}
    one.apply(Completed(1, A))
    one.apply(Completed(1, B))
    assert but_routes(one.apply(LinkJoined(SPINES[0], RACKS[1])))[:1] == [
        Remove(SPINES[0], RACKS[1], 1)
    ]
    back = one.apply(LinkJoined(RACKS[1], SPINES[0]))
    assert Remove(RACKS[1], SPINES[0], 1) in back
    # The other cable is dead still, and its register does not hold up the rack any more.
    assert Remove(RACKS[1], SPINES[1], 1) in one.apply(Decide())


def test_an_end_of_a_cable_that_does_not_go_on_may_come_back_once_the_other_end_has() -> None:
    """It may have been frozen on command, and does not come back before it is removed."""
    one = FailureState(Topology.tree(racks=2, spines=1))
    for process in (A, B, C):
        one.apply(ProcessJoined(process))
    end, outside = (RACKS[0], SPINES[0]), (SPINES[0], RACKS[0])
    silent(one, (*end, 40), (*outside, 50))
    commands = one.apply(Decide())
    assert not [command for command in commands if isinstance(command, Remove)]
    one.apply(InputSilent(*end, 1, 40))
    assert but_routes(one.apply(LinkJoined(*end))) == []  # A and B have not answered yet
    assert one.apply(Completed(1, A)) == []
    assert one.apply(Completed(1, B)) == [Remove(*end, 1)]
    one.apply(InputSilent(*end, 2, 41))  # the cable is dead still
    assert Remove(*end, 2) in one.apply(Decide())
    assert but_routes(one.apply(LinkJoined(*end))) == [Remove(*end, 2), Remove(*outside, 1)]
    one.apply(LinkJoined(*outside))
    assert not one.is_cut_off(1)


def spine_without_racks(is_loaded: bool) -> tuple[FailureState, int, int]:
    """Return a state whose racks have both lost one spine, that spine, and its core."""
    tree = Topology.tree(racks=2, spines=2, cores=1)
    one, spine = FailureState(tree), SPINES[1]
    (core,) = tree.switches[spine].upper
    for process in (A, B, C):
        one.apply(ProcessJoined(process))
    for rack in RACKS:
        silent(one, (rack, spine, 40), (spine, rack, 40))
    assert Freeze(core, spine) in one.apply(Decide())
    one.apply(InputSilent(core, spine, 1, 40))
    # It would join again at once, and hold the minimum of the core down until it is frozen again.
    assert Remove(core, spine, 1, holds=True) in one.apply(Decide())
    assert not one.is_undecided
    return _loaded(one, tree) if is_loaded else one, spine, core


def _loaded(one: FailureState, tree: Topology) -> FailureState:
    loaded = FailureState(tree)
    loaded.load(json.loads(json.dumps(one.dump())))
    return loaded


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_spine_that_no_rack_reaches_comes_back_to_its_core_once_one_does(
    is_loaded: bool,
) -> None:
    one, spine, core = spine_without_racks(is_loaded)
    release = Remove(core, spine, 1)
    assert release not in one.apply(LinkJoined(spine, RACKS[1]))
    assert release in one.apply(LinkJoined(RACKS[1], spine))
    assert release not in one.apply(LinkJoined(spine, RACKS[0]))  # once is enough
    one.apply(LinkJoined(core, spine))
    one.apply(LinkJoined(RACKS[0], spine))
    assert one.current_routes(core) == one.topology.routes(core)


def test_a_core_that_starts_anew_holds_nothing() -> None:
    one, spine, core = spine_without_racks(is_loaded=False)
    one.switch_started(core)
    commands = one.apply(LinkJoined(spine, RACKS[1])) + one.apply(LinkJoined(RACKS[1], spine))
    assert not [each for each in commands if isinstance(each, Remove) and each.switch == core]


def test_a_spine_that_starts_anew_comes_back_once_a_rack_reaches_it() -> None:
    one, spine, core = spine_without_racks(is_loaded=False)
    assert Remove(core, spine, 1) not in one.switch_started(spine)
    assert Remove(core, spine, 1) in one.apply(LinkJoined(RACKS[0], spine))


def test_a_rack_that_reaches_some_of_the_others_comes_back_once_it_reaches_all() -> None:
    tree = Topology.tree(racks=3, spines=2)
    one = FailureState(tree)
    racks = [tree.switch_of_rack(rack).id for rack in range(3)]
    last = process_id(2, 1)
    for process in (A, B, C, last):
        one.apply(ProcessJoined(process))
    left, right = SPINES
    silent(one, (racks[0], left, 40), (left, racks[0], 40))
    silent(one, (racks[2], right, 40), (right, racks[2], 40))
    assert Freeze(left, racks[2]) in one.apply(Decide())
    one.apply(InputSilent(left, racks[2], 1, 40))
    assert [*one.apply(Decide())][-3:] == [Fail(to, 1, ((last, 40),)) for to in (A, B, C)]
    one.apply(Completed(1, A))
    one.apply(Completed(1, B))
    removed = one.apply(Completed(1, C))
    # Each end of the cables that are cut may come back: then the rack would reach all others.
    assert Remove(right, racks[2], 1) in removed
    assert Remove(left, racks[2], 1, holds=True) in removed
    assert one.is_cut_off(2)
    back = one.apply(LinkJoined(right, racks[2])) + one.apply(LinkJoined(racks[2], right))
    assert Remove(left, racks[2], 1) in back
    assert not one.is_cut_off(2)


def test_what_was_reported_of_the_registers_of_a_former_switch_holds_no_more() -> None:
    one = state()
    silent(one, (SPINES[0], RACKS[1], 50), (RACKS[1], SPINES[0], 40))
    one.apply(Decide())
    one.apply(LinkJoined(RACKS[1], SPINES[0]))
    commands = one.switch_started(SPINES[0])
    assert SetRoutes(RACKS[0], TREE.routes(RACKS[0])) in commands
    silent(one, (SPINES[0], RACKS[1], 7))
    one.apply(InputSilent(RACKS[1], SPINES[0], 2, 9))
    assert Remove(SPINES[0], RACKS[1], 1) in one.apply(Decide())


def test_replicas_that_apply_the_same_entries_decide_the_same() -> None:
    entries = [
        InputSilent(SPINES[1], RACKS[1], 1, 60), InputSilent(SPINES[0], RACKS[1], 1, 50), Decide(),
        Completed(1, B), InputSilent(RACKS[0], B, 1, 90), Decide(), Completed(1, A),
        Completed(2, A),
    ]  # fmt: skip
    first, second = state(), state()
    assert [first.apply(one) for one in entries] == [second.apply(one) for one in entries]
    assert first.failed == second.failed == {C: 60, B: 90}
    assert first.failures == {}
