"""Simulated worlds of the transport: seeds that hold, and planted bugs that seeds show."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from rigs.drawn_mutants import cases, seeds_of
from weir_lab.cli.sim import app
from weir_lab.toc.checkers import violations
from weir_lab.toc.mutants import MUTANTS, Mutant
from weir_lab.toc.network import Network
from weir_lab.toc.rest import is_at_rest, is_settled
from weir_lab.toc.scenario import Outcome, drawn, play
from weir_lab.toc.world import Shape, T, World
from weir_toc.endpoint.events import Reason, SendFailed, Service
from weir_toc.endpoint.receiving import Receiver
from weir_toc.node import SwitchNode

SEEDS = 60
#: Of those so many are played here: `make test` plays 2,000 others.
PLAYED = 20
#: Of planted bugs, and of seeds that once broke, so many are drawn.
DRAWN, DRAWN_BROKEN = 24, 4
#: Seeds that once broke, and what was wrong. Their worlds had no runs then, and switches had clocks
#: that were right and read at once what came.
ONCE_BROKEN = {
    25: "a minimum that moved waited behind the beacon of the same moment",
    148: "an old ACK closed the window, and packets under way were not sent again",
    169: "a barrier was damaged, which only the link can find",
    29: "a rack without processes was frozen again and again",
    263: "the controller waited for the answer of a dead switch",
    377: "a port that broke again before its removal stayed frozen for ever",
    1065: "a cable was taken out that alone kept barriers below an earlier failure",
    2046: "a process that failed as it joined had a failure stamp below what others had delivered",
    3542: "a link that came back twice during one failure was not removed in its last epoch",
    3549: "an overtaken ACK told a larger window, and a hole in the stream was never filled",
}
#: The same of worlds with runs.
ONCE_BROKEN_WITH_RUNS = {
    611: "others were granted the memory that messages of a failed process still held",
    641225413: "a cable was taken out where the other one was behind what its switch had promised",
    804306036: "an end of a cable that was frozen, and does not go on, never came back",
    835191171: "a lost message gave its credits back while parts of it were in memory",
    905003971: "a process that the controller did not reach, as no answer did, went on for ever",
    1004310: "a process that the controller did not reach held the barriers of all for ever",
    905004516: "a process began above its clock where it was told to, and was blamed for that",
    389714598: "a spine that no rack reached joined its core and was fenced, again and again",
    6966: "processes held credits of each other that the receivers needed back for the others",
    89745: "what was lost filled the window of a receiver that no way reached, and others waited",
    16112: "the clock of a process stopped as its wish to join was lost, and its host did not end",
    31281: "the same a little later; a world has no barrier of who has not joined: that is 0",
    27747: "an answer by the controller counted as a round trip, for which each forward waited",
    45781: "the clock of a process stopped right above its floor, and its host did not end",
    59412: "who reached neither a process nor the controller was blamed that it gave up the former",
    68664: "a process that slept was woken by a shorter sleep, and read first what came last",
    67501: "one that came back delivered what a rack had alone that was cut off after that",
    84914: "a world ended while one that had failed, and was not told, held barriers down",
    95500: "who reached neither a receiver nor the controller kept all of its memory for ever",
    700938: "who heard neither a sender nor the controller waited for its memory for ever",
}
#: So many worlds are looked at for what they meet.
LOOKED_AT = 30


@pytest.mark.parametrize("first", range(0, PLAYED, 20))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    found = {seed: play(seed).violations for seed in range(first, first + 20)}
    assert not {seed: broken for seed, broken in found.items() if broken}


@pytest.mark.parametrize("seed", seeds_of(DRAWN_BROKEN, *ONCE_BROKEN))
def test_seeds_that_were_broken_once_hold(seed: int) -> None:
    as_then = replace(drawn(seed), runs=False, skews_switches=False, reads_late=0)
    assert not play(seed, as_then).violations


@pytest.mark.parametrize("seed", seeds_of(DRAWN_BROKEN, *ONCE_BROKEN_WITH_RUNS))
def test_seeds_with_runs_that_were_broken_once_hold(seed: int) -> None:
    assert not play(seed).violations


def test_a_seed_is_played_the_same_way_again() -> None:
    assert play(11) == play(11)
    assert play(11).packets != play(12).packets


def test_seeds_draw_what_can_go_wrong() -> None:
    shapes = [drawn(seed) for seed in range(SEEDS)]
    assert all(shape.start < 1 << 48 < shape.start + 40_000_000 for shape in shapes)
    for name in ("loss", "duplication", "reordering", "damage"):
        assert any(getattr(shape.faults, name) for shape in shapes)
    assert {shape.racks for shape in shapes} == {1, 2, 3}
    assert any(not shape.rewrites for shape in shapes)
    assert any(shape.skew for shape in shapes)
    firsts = [shape.first_psn for shape in shapes if shape.first_psn]
    assert 10 < len(firsts) < 40
    assert all(any(below < one < below + 30 for one in firsts)
               for below in ((1 << 31) - 30, (1 << 32) - 30))  # fmt: skip
    assert 5 < sum(shape.is_calm for shape in shapes) < 40


def test_cables_of_some_worlds_break_and_heal(monkeypatch: pytest.MonkeyPatch) -> None:
    """And break again for longer than the time after which an input counts as silent."""
    healed: list[int] = []
    heal = World.heal

    def counted(world: World, one: int, other: int) -> None:
        healed.append(one)
        heal(world, one, other)

    monkeypatch.setattr(World, "heal", counted)
    played = [play(seed) for seed in (377, 143, 324)]
    assert len(healed) >= 2 * len(played)
    assert not any(outcome.violations for outcome in played)


@pytest.mark.parametrize("both", [False, True])
def test_a_cable_that_breaks_again_and_again_does_not_stop_reliable_messages(
    both: bool,
) -> None:
    """It is cut for 12 T and whole for 1 T: each time it is back before the controller decides.

    Some answers of switches take 8 T each way: nobody takes those for dead.
    """
    world = World(1, Shape(spines=2, is_calm=True))
    world.run(20 * T)
    link = world.topology.links[0]
    ages = []
    for _ in range(40):
        world.cut(link.lower, link.upper, both=both)
        world.run(12 * T)
        world.heal(link.lower, link.upper)
        world.run(T)
        commits = [host.endpoint.barriers[1] for host in world.correct.values()]
        ages.append((world.network.now - min(commits)) // T)
    assert len(world.correct) == len(world.hosts)
    assert max(ages) < 60
    assert sum(age < 5 for age in ages) > len(ages) / 2


def test_a_world_is_at_rest_once_nobody_is_about_to_be_taken_for_silent() -> None:
    world = World(1, Shape(processes=3))
    world.run(6 * T)
    assert is_at_rest(world)
    world.crash(min(world.hosts))
    world.run(6 * T)
    assert is_settled(world)
    assert not is_at_rest(world)  # its switch has not heard of it, and has not said so
    looks = []
    for _ in range(60):
        world.run(T)
        looks.append(is_settled(world) and is_at_rest(world))
    assert world.controller.failed.keys() == {min(world.hosts)}
    assert looks.index(True) > 8
    assert looks[-1]


def test_a_world_is_not_settled_before_a_failed_process_is_told() -> None:
    """Its rack may have come back: until it is told, it sends, and barriers may wait for it."""
    world = World(3, Shape(processes=3))
    world.run(6 * T)
    assert is_settled(world)
    world.control.to_exclude.add(min(world.hosts))
    assert not is_settled(world)


@pytest.mark.parametrize("change", ["severed", "unreached", "mute"])
def test_a_world_is_not_at_rest_while_a_path_may_fail_somebody(change: str) -> None:
    world = World(2, Shape(processes=3))
    world.run(6 * T)
    one, other, *_ = world.hosts
    if change == "severed":
        world.network.severed.add((one, other))
    else:
        getattr(world.control, change).add(one)
    assert is_settled(world)
    assert not is_at_rest(world)


def test_a_world_is_not_at_rest_while_an_input_may_fail_or_come_back() -> None:
    world = World(2, Shape(processes=3))
    world.run(6 * T)
    process = min(world.hosts)
    switch = world.topology.switches[world.hosts[process].switch]
    registers, now = world.switches[switch.id].registers(), world.network.now
    for name, neighbour, due in (
        ("heard_at", switch.upper[0], now - 5 * T),
        ("risen_at", process, now - 5 * T),
    ):
        assert is_at_rest(world)
        before = getattr(registers[neighbour], name)
        setattr(registers[neighbour], name, due)
        assert not is_at_rest(world)
        setattr(registers[neighbour], name, before)
    registers[process].live = False
    assert is_at_rest(world)  # it is fenced, and the controller knows
    registers[process].held_until = now + T
    assert not is_at_rest(world)


def test_a_world_is_not_at_rest_while_barriers_are_behind() -> None:
    """A process hears nothing, and is heard of."""
    world = World(2, Shape(processes=3))
    world.run(6 * T)
    process = min(world.hosts)
    world.cut(world.hosts[process].switch, process, both=False)
    world.run(6 * T)
    assert is_settled(world)
    assert not is_at_rest(world)


def test_worlds_send_carry_and_take_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than one packet each; some have a packet that is odd, and go one by one."""
    met: Counter[str] = Counter()

    def count(kind: type, name: str, what: str) -> None:
        call = getattr(kind, name)

        def counted(*given: Any) -> Any:
            found = call(*given)
            met[f"refused {what}" if found is False else what] += 1
            return found

        monkeypatch.setattr(kind, name, counted)

    count(Network, "send_piece", "carried")
    count(SwitchNode, "_forward_run", "forwarded")
    count(Receiver, "run", "taken")
    worlds = {seed: Counter[str]() for seed in range(LOOKED_AT) if drawn(seed).runs}
    for seed in worlds:
        met.clear()
        play(seed)
        worlds[seed] += met
    assert LOOKED_AT / 4 < len(worlds) < LOOKED_AT * 3 / 4
    assert all(one["carried"] for one in worlds.values())
    for what in ("forwarded", "taken"):
        assert sum(1 for one in worlds.values() if one[what]) > len(worlds) / 2, what
    total = sum(worlds.values(), Counter[str]())
    assert total["taken"] > 50 < total["forwarded"]
    assert total["refused taken"]


def test_a_world_without_runs_carries_single_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "send_piece", None)
    assert play(next(seed for seed in range(SEEDS) if not drawn(seed).runs)).delivered


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_planted_bug_replaces_stands_there_once(mutant: Mutant) -> None:
    """Planting raises `PlantingRefused` otherwise, as it did for bugs whose module was split."""
    with mutant.planted():
        pass


@pytest.mark.parametrize("mutant", cases(MUTANTS, DRAWN))
def test_the_seed_of_a_planted_bug_shows_it(mutant: Mutant) -> None:
    assert mutant.is_caught(mutant.seed)


def test_who_gives_up_a_process_that_goes_on_breaks_a_promise() -> None:
    mutant = next(one for one in MUTANTS if "smaller window" in one.name)
    with mutant.planted():
        found = play(mutant.seed).violations
    assert "I9 65537 gave up 2, which goes on" in found


@pytest.mark.parametrize("path", [(1, 2), (2, 1)])
@pytest.mark.parametrize("is_unreached", [False, True])
def test_who_can_ask_a_receiver_by_no_way_gives_it_up_rightly(
    path: tuple[int, int], is_unreached: bool
) -> None:
    """Best effort holds no barrier: so it goes on, and what it sends to others leaves in time."""
    world = World(1, Shape(racks=1, spines=0, processes=3))
    world.run(6 * T)
    world.network.severed.add(path)
    if is_unreached:
        world.unreach(1)
    world.send(1, Service.BEST_EFFORT, [(2, b"lost"), (3, b"comes")])
    world.run(1_100 * T)
    assert world.correct.keys() == {1, 2, 3}
    assert [one.message.payload for one in world.hosts[3].deliveries] == [b"comes"]
    (sending,) = world.hosts[1].sendings.values()
    assert (Reason.UNREACHABLE in [one.reason for one in sending.failed]) == is_unreached
    assert violations(world) == []


@pytest.mark.parametrize("severed", [{(1, 2)}, {(2, 1)}, {(1, 2), (2, 1)}])
@pytest.mark.parametrize("is_unreached", [False, True])
def test_who_keeps_memory_that_others_need_fails_if_nobody_can_ask_it(
    severed: set[tuple[int, int]], is_unreached: bool
) -> None:
    """It has all of the memory, and sends nothing any more: no barrier waits for it."""
    world = World(1, Shape(racks=1, spines=0, processes=3))
    world.run(6 * T)
    world.send(1, Service.RELIABLE, [(2, b"first")])
    world.run(20 * T)
    world.network.severed |= severed
    if is_unreached:
        world.unreach(1)
    world.send(3, Service.RELIABLE, [(2, b"waits")])
    world.run(200 * T)
    assert [one.message.payload for one in world.hosts[2].deliveries] == [b"first", b"waits"]
    assert world.correct.keys() == ({2, 3} if is_unreached else {1, 2, 3})
    assert violations(world) == []


@pytest.mark.parametrize("change", ["unreached", "mute"])
def test_a_receiver_whose_memory_nobody_can_give_back_fails(change: str) -> None:
    """It hears neither the sender that has all of its memory nor the controller."""
    world = World(1, Shape(racks=1, spines=0, processes=3))
    world.run(6 * T)
    world.send(1, Service.RELIABLE, [(2, b"first")])
    world.run(20 * T)
    world.network.severed.add((1, 2))
    getattr(world.control, change).add(2)
    world.send(3, Service.RELIABLE, [(2, b"waits"), (3, b"waits")])
    world.run(400 * T)
    assert world.correct.keys() == {1, 3}
    assert violations(world) == []


@pytest.mark.parametrize("reason", [Reason.UNREACHABLE, Reason.NO_MEMORY])
@pytest.mark.parametrize("severed", [set(), {(1, 2)}, {(2, 1)}, {(2, 3)}])
@pytest.mark.parametrize("unreached", [set(), {1}, {2}])
def test_who_can_ask_a_receiver_does_not_give_it_up(
    reason: Reason, severed: set[tuple[int, int]], unreached: set[int]
) -> None:
    world = World(1, Shape(racks=1, spines=0, processes=3))
    world.run(6 * T)
    world.send(1, Service.BEST_EFFORT, [(2, b"comes")])
    world.run(6 * T)
    (sending,) = world.hosts[1].sendings.values()
    sending.failed.append(SendFailed(1, sending.stamp, 2, reason, Service.BEST_EFFORT))
    world.network.severed |= severed
    world.control.unreached |= unreached
    is_right = reason is Reason.UNREACHABLE and 1 in unreached and severed & {(1, 2), (2, 1)}
    assert violations(world) == ([] if is_right else ["I9 1 gave up 2, which goes on"])


@pytest.mark.parametrize(("first", "second"), [(8, 3), (3, 7)])
def test_a_process_that_sleeps_reads_all_in_order_at_the_later_end(first: int, second: int) -> None:
    world = World(1, Shape(racks=1, spines=0, processes=2))
    world.run(6 * T)
    world.send(1, Service.RELIABLE, [(2, b"before")])
    world.run(4 * T)
    host = world.hosts[2]
    barriers = host.endpoint.barriers
    world.pause(2, first * T)
    world.run(T)
    world.pause(2, second * T)
    for turn in range(6):
        world.send(1, Service.RELIABLE, [(2, bytes((turn,)))])
        world.run(T)
        assert host.endpoint.barriers == barriers
    sent = [each.parts[0][1] for each in world.hosts[1].sendings.values()]
    world.run(6 * T)
    assert len(sent) == 7
    assert [one.message.payload for one in host.deliveries] == sent
    assert not host.inbox


def test_a_planted_bug_is_taken_back() -> None:
    with MUTANTS[0].planted():
        pass
    assert not play(MUTANTS[0].seed).violations


def test_the_command_plays_seeds() -> None:
    found = CliRunner().invoke(app, ["toc", "--seeds", "3", "--json"])
    assert found.exit_code == 0
    told = json.loads(found.stdout)
    assert told["schema"] == "weir.sim.toc/1"
    assert told["violations"] == 0
    assert told["delivered"] > 0
    assert 0 < told["cpu_seconds_slowest"] < told["cpu_seconds"] <= 3 * told["cpu_seconds_slowest"]


def test_the_command_counts_the_planted_bugs_that_worlds_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caught, harmless = MUTANTS[0], replace(MUTANTS[0], name="nothing", breaks=("I99",))
    for mutants, code in (((caught,), 0), ((caught, harmless), 1)):
        monkeypatch.setattr("weir_lab.toc.mutants.MUTANTS", mutants)
        found = CliRunner().invoke(app, ["toc", "--planted", "--seeds", "1", "--json"])
        assert found.exit_code == code
        told = json.loads(found.stdout)
        counts = [told[name] for name in ("planted", "caught", "missed")]
        assert counts == [len(mutants), 1, len(mutants) - 1]
        assert told["bugs"][caught.name] == caught.seed


def test_each_seed_that_breaks_is_told_with_the_command_that_plays_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(seed: int) -> Outcome:
        return Outcome(seed, drawn(seed), ("I9 something",) * (seed != 8), 1, 1, 0)

    monkeypatch.setattr("weir_lab.toc.scenario.play", broken)
    found = CliRunner().invoke(app, ["toc", "--seed", "7", "--seeds", "3", "--json"])
    assert found.exit_code == 1
    for seed, is_told in ((7, True), (8, False), (9, True)):
        assert (f"weir sim toc --seed {seed} --seeds 1" in found.output) == is_told
