"""Which racks go on: the heaviest set of those that reach each other, as long as it does."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from weir_toc.controller import sides
from weir_toc.controller.entries import Decide, InputSilent, LinkJoined, NodeSilent, ProcessJoined
from weir_toc.controller.failures import CUT_OFF_KEPT, FailureState
from weir_toc.controller.records import Founded, Registered, Reported, SwitchStarted
from weir_toc.controller.sides import heaviest_side
from weir_toc.controller.state import ControllerState
from weir_toc.topology import Link, Topology, process_id, switch_id

RACKS = [switch_id(f"rack-{number}") for number in range(4)]
SPINE = switch_id("spine-0")


def reached(racks: int, *pairs: tuple[int, int]) -> dict[int, frozenset[int]]:
    """Racks of which only these pairs reach each other."""
    return {
        rack: frozenset({rack}).union(*(pair for pair in pairs if rack in pair))
        for rack in range(racks)
    }


def network(*processes: int) -> FailureState:
    """Racks below one spine, with so many processes each."""
    one = FailureState(Topology.tree(len(processes), 1))
    for rack, count in enumerate(processes):
        for serial in range(1, count + 1):
            one.apply(ProcessJoined(process_id(rack, serial)))
    return one


def cut(one: FailureState, rack: int, epoch: int = 1) -> None:
    one.apply(InputSilent(SPINE, RACKS[rack], epoch, 50))
    one.apply(InputSilent(RACKS[rack], SPINE, epoch, 50))


def mend(one: FailureState, rack: int) -> None:
    one.apply(LinkJoined(SPINE, RACKS[rack]))
    one.apply(LinkJoined(RACKS[rack], SPINE))


def loaded(one: FailureState) -> FailureState:
    """A copy that a snapshot made."""
    copy = FailureState(one.topology)
    copy.load(one.dump())
    assert copy.dump() == one.dump()
    return copy


def test_the_racks_that_hold_most_processes_together_go_on() -> None:
    one = network(3, 2, 2, 2)
    cut(one, 0)
    one.apply(Decide())
    assert one.failed.keys() == {process_id(0, serial) for serial in (1, 2, 3)}
    assert one.racks_cut_off() == {0}


def test_processes_of_a_rack_that_was_cut_off_are_kept_apart() -> None:
    one = network(3, 1)
    dead, other, cut_away = process_id(0, 1), process_id(0, 2), process_id(1, 1)
    one.apply(InputSilent(RACKS[0], dead, 1, 50))
    cut(one, 1)
    one.apply(Decide())
    assert one.failed.keys() == {dead, cut_away}
    assert [loaded(one).was_cut_off(each) for each in (dead, other, cut_away)] == [
        False, False, True,
    ]  # fmt: skip
    mend(one, 1)
    assert one.was_cut_off(cut_away)
    for process in range(CUT_OFF_KEPT):
        one.exclude(1_000_000 + process)
    assert not one.was_cut_off(cut_away)
    assert one.was_cut_off(1_000_000)


def test_the_heaviest_set_is_found_where_reach_is_not_transitive() -> None:
    """Rack 1 reaches all others, of which 0 and 2 have the most processes apart."""
    pairs = reached(5, (0, 1), (1, 2), (2, 3), (1, 3), (1, 4))
    assert heaviest_side(pairs, {0: 4, 1: 1, 2: 3, 3: 2, 4: 4}) == {1, 2, 3}
    assert heaviest_side(pairs, {0: 6, 1: 1, 2: 3, 3: 2, 4: 4}) == {0, 1}


def test_of_sets_with_as_many_processes_the_one_with_more_racks_goes_on() -> None:
    assert heaviest_side(reached(4, (1, 2), (2, 3), (1, 3)), {0: 2, 1: 1, 3: 1}) == {1, 2, 3}
    assert heaviest_side(reached(4, (0, 3), (1, 2)), {3: 1, 2: 1}) == {0, 3}
    assert heaviest_side({}, {}) == frozenset()


def test_of_sets_that_are_as_heavy_the_one_with_the_lowest_number_goes_on() -> None:
    in_a_row = reached(4, (0, 1), (1, 2), (2, 3))
    assert heaviest_side(in_a_row, {0: 2, 1: 2, 2: 1, 3: 3}) == {0, 1}  # rack 3 is tried first


@pytest.mark.parametrize("seed", range(40))
def test_no_set_is_heavier_than_the_one_that_is_found(seed: int) -> None:
    random = Random(seed)
    racks = random.randint(1, 8)
    pairs = [pair for pair in combinations(range(racks), 2) if random.random() < 0.6]
    processes = {rack: random.choice((0, 0, 1, 2, 3)) for rack in range(racks)}
    sets = [
        one
        for size in range(1, racks + 1)
        for one in combinations(range(racks), size)
        if all(pair in pairs for pair in combinations(one, 2))
    ]
    best = min(sets, key=lambda one: (-sum(processes[rack] for rack in one), -len(one), one))
    assert heaviest_side(reached(racks, *pairs), processes) == {*best}


def test_the_search_is_bounded_and_begins_with_the_heaviest_rack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = Random(1)
    pairs = [pair for pair in combinations(range(60), 2) if random.random() < 0.8]
    both_ways = reached(60, *pairs)
    monkeypatch.setattr(sides, "STEPS_MAX", 100)
    found = heaviest_side(both_ways, {17: 5})
    assert 17 in found
    assert all(found <= both_ways[rack] for rack in found)
    assert not any(found <= both_ways[rack] for rack in {*range(60)} - found)


def test_the_topology_tells_which_racks_reach_each_other() -> None:
    tree = Topology.tree(3, 2)
    other = switch_id("spine-1")
    dead = frozenset({Link(RACKS[0], SPINE), Link(RACKS[2], other)})
    assert tree.reached(dead) == {0: {0, 1}, 1: {0, 1, 2}, 2: {1, 2}}
    assert tree.reached(frozenset()) == dict.fromkeys(range(3), frozenset(range(3)))


def test_the_side_that_went_on_goes_on_when_its_processes_have_ended() -> None:
    one = network(2, 1, 0)
    cut(one, 0)
    one.apply(Decide())
    assert one.processes == {process_id(0, 1), process_id(0, 2)}
    for serial in (1, 2):
        one.apply(InputSilent(RACKS[0], process_id(0, serial), 1, 60))
    one.apply(Decide())
    assert not one.processes
    for state in (one, loaded(one)):
        assert state.racks_cut_off() == {1, 2}
        state.apply(LinkJoined(SPINE, RACKS[0]))  # one direction is not enough
        assert state.racks_cut_off() == {1, 2}


def test_a_cable_that_was_mended_and_breaks_again_is_weighed_anew() -> None:
    one = network(1, 0, 0)
    cut(one, 0)
    one.apply(Decide())
    one.apply(InputSilent(RACKS[0], process_id(0, 1), 1, 60))
    one.apply(Decide())
    assert one.racks_cut_off() == {1, 2}
    mend(one, 0)
    assert one.racks_cut_off() == set()
    cut(one, 0, epoch=2)
    assert one.racks_cut_off() == {0}


def test_a_side_whose_switch_has_died_does_not_come_back() -> None:
    """A process has joined on the other side since then."""
    one = network(1, 0, 0)
    cut(one, 0)
    one.apply(Decide())
    one.apply(NodeSilent(RACKS[0]))
    assert one.racks_cut_off() == {0}
    one.apply(NodeSilent(process_id(0, 1)))
    one.apply(ProcessJoined(process_id(1, 1)))
    one.apply(Decide())
    one.switch_answers(RACKS[0])
    assert loaded(one).racks_cut_off() == one.racks_cut_off() == {0}


def test_a_side_does_not_come_back_with_the_cables_that_were_dead_then() -> None:
    """A process has joined on the other side while one more cable was dead."""
    one = network(1, 0, 0, 0)
    cut(one, 0)
    one.apply(Decide())
    one.apply(InputSilent(RACKS[0], process_id(0, 1), 1, 60))
    one.apply(Decide())
    assert one.racks_cut_off() == {1, 2, 3}
    cut(one, 3)
    assert one.racks_cut_off() == {0, 3}
    one.apply(ProcessJoined(process_id(1, 1)))
    mend(one, 3)
    assert one.racks_cut_off() == {0}
    one.apply(Decide())
    assert one.processes == {process_id(1, 1)}


def test_a_spine_that_is_back_changes_which_cables_are_dead() -> None:
    one = FailureState(Topology.tree(3, 2))
    other = switch_id("spine-1")
    one.apply(ProcessJoined(process_id(0, 1)))
    cut(one, 0)
    one.apply(NodeSilent(other))
    one.apply(InputSilent(RACKS[0], other, 1, 50))
    one.apply(Decide())
    one.apply(InputSilent(RACKS[0], process_id(0, 1), 1, 60))
    one.apply(Decide())
    assert one.racks_cut_off() == {1, 2}
    again = loaded(one)
    one.switch_answers(other)
    assert one.racks_cut_off() == {0}
    again.switch_started(other)
    assert again.racks_cut_off() == {0}


def test_a_network_without_processes_takes_them_where_most_racks_are() -> None:
    state = ControllerState()
    state.apply(Founded(3, 1, 0, 1_000_000))
    for number, switch in enumerate((*RACKS[:3], SPINE), 1):
        state.apply(SwitchStarted(switch, number, "h", number))
    state.apply(Reported(SPINE, 4, 1, InputSilent(SPINE, RACKS[0], 1, 50)))
    state.apply(Reported(RACKS[0], 1, 1, InputSilent(RACKS[0], SPINE, 1, 50)))
    for _ in range(2):  # before the decision, and after it
        assert "rack 0 is cut off" in state.refusal("a", 0)
        assert (state.refusal("a", 1), state.refusal("a", 2)) == ("", "")
        assert state.emptiest_rack() == 1
        state.apply(Decide())
    state.apply(Registered("a", 1, 1))
    assert state.names["a"].process == process_id(1, 1)
    assert ControllerState.load(state.dump()).dump() == state.dump()


def test_a_snapshot_of_an_earlier_release_does_not_tell_the_side() -> None:
    one = network(1, 0, 0)
    cut(one, 0)
    one.apply(Decide())
    dumped = one.dump()
    del dumped["side"]
    again = FailureState(one.topology)
    again.load(dumped)
    assert again.racks_cut_off() == {1, 2}  # by its process
