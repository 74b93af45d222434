"""The program in the kernel does what the switch in Python does: same barriers, same marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from rigs.xdp_path import (
    OWN_IP,
    OWN_PORT,
    PASS,
    PathInTests,
    Sent,
    Twins,
    for_tests,
    hop_of,
    needs_bpf,
    sent_in,
    without_beacons,
)
from rigs.xdp_world import (
    FAR,
    START,
    TREE,
    A,
    B,
    T,
    World,
    beacon,
    data,
    join,
    register,
    same_registers,
)  # fmt: skip
from weir_toc import packet as wire
from weir_toc.errors import XdpError
from weir_toc.node import SILENT_INTERVALS, STEPS_PER_INTERVAL, Joined, Silent, SwitchConfig
from weir_toc.packet import Packet
from weir_toc.topology import Topology, process_id, switch_id
from weir_toc.xdp import kernel
from weir_toc.xdp import layout as at
from weir_toc.xdp.node import PAUSE_INTERVALS

RACK = switch_id("rack-0")
#: Of a frame.
OPCODE = at.HEADER_BYTES + 22

pytestmark = needs_bpf


Make = Callable[..., Twins]


@pytest.fixture(scope="module")
def loaded() -> Iterator[kernel.Loaded]:
    """The program, which the kernel looks at for half a second when it is loaded."""
    with kernel.Loaded(
        for_tests(kernel.read_object(kernel.OBJECT.read_bytes())), for_tests=True
    ) as one:
        yield one


@pytest.fixture
def twins(loaded: kernel.Loaded) -> Iterator[Make]:
    """Make one switch twice, by its id, topology and settings."""
    made: list[Twins] = []

    def make(switch: int = RACK, topology: Topology | None = None, **settings: int) -> Twins:
        config = SwitchConfig(interval=T, **settings)
        made.append(Twins(loaded, topology or Topology.tree(1), switch, START, config))
        return made[-1]

    yield make
    for one in made:
        one.path.clear()


def test_a_packet_carries_the_minimum_of_the_moment_in_which_it_is_queued(
    twins: Make,
) -> None:
    both = twins()
    join(both, A, B)
    both.receive(START, A, beacon(A, START + 500))
    wanted, found = both.receive(START + 9, B, data(B, A, START + 300))
    assert without_beacons(wanted) == found
    packet = wire.decode(found[0].packet, START)
    assert (found[0].to, packet.barrier, packet.commit) == (A, START + 300, START + 299)
    same_registers(both)


def test_registers_never_go_back(twins: Make) -> None:
    both = twins()
    join(both, A)
    both.receive(START, A, beacon(A, START + 500))
    both.receive(START, A, beacon(A, START + 400))
    same_registers(both)
    assert both.path.words[at.UP_BARRIER] == START + 500


def test_what_comes_by_a_dead_input_is_dropped_and_does_not_count(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    now = START + (SILENT_INTERVALS - 1) * T
    both.receive(now, B, beacon(B, now))
    for intervals in (5, 10, 11):
        both.tick(START + intervals * T)
    same_registers(both)
    assert not register(both, A)[3]  # not live
    later = now + 3 * T
    both.receive(later, A, data(A, B, later))
    both.receive(later, B, beacon(B, later + 5))
    same_registers(both)
    assert both.path.words[at.UP_BARRIER] == later + 5  # of B alone
    assert both.path.words[at.UP_COMMIT] <= START  # the register of A is frozen


def test_what_waits_for_the_data_path_was_not_silent(
    twins: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the kernel did not run for a while: beacons wait before the next command.

    The switch itself looked all the time, so this is no leap of its clock, and B was silent.
    """
    both = twins()
    join(both, A, B)
    for intervals in (1, 6):
        assert both.xdp.tick(START + intervals * T) == []
    path, now = both.path, START + (SILENT_INTERVALS + 1) * T
    hop, execute = hop_of(A), path.execute
    waiting = [at.frame(beacon(A, now), OWN_IP, OWN_PORT, hop.ip, hop.port)]

    def execute_behind(at_time: int, changes: Sequence[at.Change]) -> None:
        while waiting:
            path.run(now, waiting.pop(), at.HOSTS)
        execute(at_time, changes)

    monkeypatch.setattr(path, "execute", execute_behind)
    silent = [one for one in both.xdp.tick(now) if isinstance(one, Silent)]
    assert [one.neighbour for one in silent] == [B]


@pytest.mark.parametrize("leap", [7, 1_000])
def test_a_switch_that_did_not_look_finds_nobody_silent_at_once(twins: Make, leap: int) -> None:
    """Nor are inputs silent a little later, once they had as much time as it was awake for."""
    both = twins()
    join(both, A, B)
    now = START + T
    both.tick(now)
    for intervals in (leap, *[1] * 5):
        now += intervals * T
        both.tick(now)
        assert register(both, A)[3]  # live
        assert register(both, B)[3]
    for _ in range(SILENT_INTERVALS):
        now += T
        both.receive(now, A, beacon(A, now))
        both.tick(now)
    assert register(both, A)[3]
    assert not register(both, B)[3]


def test_a_frozen_register_is_reported_as_it_stands(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    for process in (A, B):
        both.receive(START, process, beacon(process, START + 500))
    expected = both.node.freeze(START + 9, A)
    assert both.xdp.freeze(START + 9, A) == expected
    assert next(one for one in expected if isinstance(one, Silent)).commit == START + 493
    # An input that is frozen and heard all the same raises nothing.
    both.receive(START + 10, A, beacon(A, START + 900))
    same_registers(both)


def test_a_removed_process_leaves_its_slot_to_another_one(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    for turn in range(at.SLOTS + 3):
        process = process_id(0, 10 + turn)
        join(both, process)
        for node in (both.node, both.xdp):
            node.freeze(START, process)
            node.remove(START, process, 1)
        same_registers(both)


def test_a_switch_without_a_free_slot_lets_nobody_join(twins: Make) -> None:
    both = twins()
    join(both, *(process_id(0, 1 + n) for n in range(at.SLOTS)))
    message = bytes(wire.encode(Packet(wire.JOIN, process_id(0, 99), epoch=1)))
    _, found = both.receive(START, process_id(0, 99), message)
    assert found == []


def test_outputs_have_blank_beacons_filled_in(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    for process in (A, B):
        both.receive(START + T // 2, process, beacon(process, START + T // 2))
    due = both.node.deadline + T
    wanted, found = both.tick(due)
    assert sorted(one.to for one in found) == [A, B]
    for one in found:
        packet = wire.decode(one.packet, due)
        assert (packet.opcode, packet.source, packet.barrier) == (wire.BEACON, RACK, START + T // 2)
    assert {bytes(one.packet) for one in wanted} == {one.packet for one in found}


def turned(both: Twins, now: int, one: bytes) -> list[Sent]:
    """Let a beacon come; return what leaves at the leader of the device for it."""
    found = both.receive(now, int.from_bytes(one[24:28], "big"), one)[1]
    return [sent for sent in found if sent.packet[22] == wire.BEACON]


def test_a_beacon_that_moves_minima_leaves_at_once_as_that_of_the_switch(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    both.tick(both.node.deadline)
    now = both.node.deadline
    assert turned(both, now, beacon(A, now)) == []  # B holds the minimum
    (sent,) = turned(both, now, beacon(B, now - 5))
    packet = wire.decode(sent.packet, now)
    assert (sent.to, packet.source, packet.barrier, packet.commit) == (A, RACK, now - 5, now - 12)
    assert both.path.words[at.TURNED_AT] == now
    assert (
        turned(both, now - 1, beacon(B, now - 5)) == []
    )  # the time was set to that of the process
    # A small step waits for more of them, or a little longer than the next beacons.
    step = T // STEPS_PER_INTERVAL
    assert turned(both, now + 1, beacon(B, now - 6 + step)) == []
    assert turned(both, now + 1, beacon(A, now + 2 * T)) == []
    assert len(turned(both, now + 1, beacon(B, now - 5 + step))) == 1
    assert turned(both, now + 5 * T // 4, beacon(B, now - 4 + step)) == []
    assert len(turned(both, now + 1 + 5 * T // 4, beacon(B, now - 4 + step))) == 1
    # Minima that stand still are said again after two intervals.
    now += 1 + 5 * T // 4
    assert turned(both, now + 2 * T - 1, beacon(B, START)) == []
    assert len(turned(both, now + 2 * T, beacon(B, START))) == 1


def test_minima_of_both_halves_leave_behind_each_other(twins: Make) -> None:
    """The beacon of a spine comes right behind that of a host: both have moved a minimum."""
    both = twins(topology=TREE)
    join(both, A)
    both.tick(both.node.deadline)
    spines, now = both.switch.upper, both.node.deadline
    for late in (0, T):
        for spine in spines[1:]:
            assert turned(both, now + late, beacon(spine, now + late)) == []
        assert len(turned(both, now + late, beacon(A, now + late))) == 1
        assert len(turned(both, now + late + T // 10, beacon(spines[0], now + late))) == 1
        # What comes behind them moves nothing.
        assert turned(both, now + late + T // 5, beacon(spines[0], now + late)) == []


@pytest.mark.parametrize(("barrier", "commit"), [(T, 0), (0, T)])
def test_a_barrier_that_moves_alone_leaves_at_once(twins: Make, barrier: int, commit: int) -> None:
    both = twins()
    join(both, A)
    now = START + 2 * T
    assert len(turned(both, now, beacon(A, now))) == 1
    one = Packet(wire.BEACON, A, barrier=now + barrier, commit=now - 7 + commit, epoch=1)
    assert len(turned(both, now + 1, bytes(wire.encode(one)))) == 1
    both.path.words[at.INTERVAL] = 0  # of a switch that is not set up yet
    assert turned(both, now + 2, beacon(A, now + 9 * T)) == []


def test_a_switch_turns_at_most_four_beacons_in_an_interval(twins: Make) -> None:
    both = twins()
    join(both, A)
    both.tick(both.node.deadline)
    now = both.node.deadline
    times = [now + n * T // 16 for n in range(64)]
    left = [one for one in times if turned(both, one, beacon(A, one + 9 * (one - now)))]
    assert left == [one for one in times if (one - now) % T < T // 4]
    assert (
        both.path.words[at.TURNED_AT : at.SOURCE].tolist()
        == left[: -at.TURNS_PER_INTERVAL - 1 : -1]
    )


def test_beacons_with_anything_behind_them_or_of_others_are_not_turned(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    now = START + 5 * T
    both.receive(now, A, beacon(A, now))
    before = both.path.words[at.TURNED_AT]
    now += T
    long = wire.encode(Packet(wire.BEACON, B, barrier=now, epoch=1, payload=b"x"))
    assert turned(both, now, bytes(long)) == []
    assert turned(both, now, beacon(B, now + T, epoch=2)) == []
    assert register(both, B)[1] == now  # the first of both counts all the same
    assert both.path.words[at.TURNED_AT] == before


def test_a_copy_leaves_only_for_the_leader_of_its_port(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    path, words = both.path, both.path.words
    blank = wire.encode_beacon(RACK, 0, START, at.EVERY_PORT)
    for process in (A, B):
        slot = next(n for n in range(at.SLOTS) if words[at.word(n, at.ID)] == process)
        path.leader, told = slot, at.word(slot, at.TOLD_BARRIER)
        words[told] = START + 5 * T  # by what was queued behind this copy, but has left the program
        (frame,) = path.leave(path.generate(blank).frame)
        assert sent_in(frame).to == process
        assert words[told] == START + 5 * T
        assert path.leave(frame) == [frame]  # what is whole leaves as it is
    words[at.word(slot, at.IFINDEX)] = 0
    assert path.leave(path.generate(blank).frame) == []
    path.leader = None
    assert path.leave(path.generate(blank).frame) == []


def test_each_port_has_one_leader_and_others_have_blanks_of_their_own(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    both.path.sent.clear()
    both.xdp.tick(both.node.deadline)
    assert [sent_in(one).to for one in both.path.sent] == [A, B]
    c = process_id(0, 3)
    ports: dict[int, tuple[int, int | None]] = {}
    both.path.lead = lambda ifindex, *port: ports.update({ifindex: port})  # type: ignore[method-assign]
    for process, ifindex in ((B, 7), (c, 8)):
        hop = hop_of(process)._replace(ifindex=ifindex)
        both.xdp.set_next_hop(START, process, hop)
    assert ports == {7: (at.HOSTS, 1)}  # the third has not joined
    both.xdp.freeze(START, A)
    both.xdp.remove(START, A, 1)
    assert ports[1] == (at.HOSTS, None)  # nobody is left there


def test_time_passes_seldom_while_beacons_are_turned(twins: Make) -> None:
    """A wish of a process to run costs more than a beacon."""
    both = twins()
    join(both, A)
    xdp, sent = both.xdp, both.path.sent
    now = xdp.deadline
    both.receive(now - T // 2, A, beacon(A, now - T // 2))
    sent.clear()
    xdp.tick(now)
    assert (sent, xdp.deadline) == ([], now + PAUSE_INTERVALS * T)
    now += PAUSE_INTERVALS * T  # no beacon has come since
    xdp.tick(now)
    assert (len(sent), xdp.deadline) == (1, now + T)
    # An old barrier is looked at in each interval, and so is one that is soon silent.
    now += T
    both.receive(now - 1, A, beacon(A, now - 3 * T))
    xdp.tick(now)
    assert (len(sent), xdp.deadline) == (1, now + T)


def test_an_input_whose_clock_is_ahead_is_found_silent_as_soon_as_others(twins: Make) -> None:
    both = twins()
    join(both, A)
    heard = both.xdp.deadline
    both.receive(heard, A, beacon(A, heard + 20 * T))
    for now in (heard, heard + 5 * T, heard + 10 * T):
        both.path.words[at.TURNED_AT] = now  # a beacon of another input
        both.xdp.tick(now)
    assert both.xdp.deadline == heard + (SILENT_INTERVALS + 1) * T


@pytest.mark.parametrize("ahead", [0, 1_000])
def test_a_process_whose_clock_stops_is_fenced_though_the_switch_runs_seldom(
    twins: Make, ahead: int
) -> None:
    """One that is ahead makes no barrier old, so the switch goes on to pause."""
    both = twins()
    join(both, A)
    xdp, now, stopped = both.xdp, START + T, START + 31 * T
    silent, calls = [], 0
    while not silent and now < stopped + 40 * T:
        both.receive(now - T // 2, A, beacon(A, min(now, stopped) + ahead * T))
        if now >= xdp.deadline:
            calls += 1
            silent = [now for one in xdp.tick(now) if isinstance(one, Silent)]
        if now == stopped:
            assert calls <= 10
        now += T
    assert SILENT_INTERVALS * T < silent[0] - stopped <= (SILENT_INTERVALS + 5) * T


@pytest.mark.parametrize("frozen", [None, 0, 4])
def test_a_process_whose_clock_stops_is_found_beside_others(
    twins: Make, frozen: int | None
) -> None:
    """Barriers of all are compared at once, until one of them stands; and until it is decided what
    becomes of another one, so many intervals later.
    """
    both, other = twins(), process_id(0, 3)
    join(both, A, B, other)
    xdp, now, stopped = both.xdp, START + T, START + 40 * T
    silent: list[int] = []
    while not silent and now < stopped + 40 * T:
        both.receive(now - T // 2, A, beacon(A, min(now, stopped) + 1_000 * T))
        both.receive(now - T // 2, B, beacon(B, now + 2_000 * T))
        if frozen is None or now < stopped + frozen * T:
            both.receive(now - T // 2, other, beacon(other, now))
        elif now == stopped + frozen * T:
            xdp.freeze(now, other)
        if now >= xdp.deadline:
            if now == stopped:
                assert xdp.deadline == now  # it has looked when the barrier was last seen to rise
            silent = [now for one in xdp.tick(now) if isinstance(one, Silent)]
        now += T
    assert silent == [stopped + (SILENT_INTERVALS + 1) * T]
    assert xdp.registers()[B].live


def test_a_switch_that_is_a_little_late_after_each_pause_finds_who_is_silent(twins: Make) -> None:
    both = twins()
    join(both, A)
    heard = both.xdp.deadline
    both.receive(heard, A, beacon(A, heard + 20 * T))
    for now, pause in ((heard, PAUSE_INTERVALS), (heard + 6 * T, 5)):
        both.path.words[at.TURNED_AT] = now  # a beacon of another input
        assert (both.xdp.tick(now), both.xdp.deadline) == ([], now + pause * T)
    found = both.xdp.tick(heard + 12 * T)
    assert [one.neighbour for one in found if isinstance(one, Silent)] == [A]


def test_no_register_is_copied_while_the_barrier_of_a_fenced_process_stands(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    both.receive(START, B, beacon(B, START + 5))  # above its floor
    for node in (both.node, both.xdp):
        node.freeze(START, B)
    commands = both.path.words[at.COMMAND]
    for intervals in range(1, 3 * SILENT_INTERVALS):
        now = START + intervals * T
        both.receive(now, A, beacon(A, now))
        if now >= both.xdp.deadline:
            assert both.xdp.tick(now) == []
    assert both.path.words[at.COMMAND] == commands


def test_no_register_of_a_spine_is_copied_while_its_barriers_stand(twins: Make) -> None:
    both = twins(switch_id("spine-1"), TREE)
    commands = both.path.words[at.COMMAND]
    for intervals in range(1, 3 * SILENT_INTERVALS):
        now = START + intervals * T
        for neighbour in (*both.switch.lower, *both.switch.upper):
            both.receive(now, neighbour, beacon(neighbour, START))
        assert both.xdp.tick(now) == []
    assert both.path.words[at.COMMAND] == commands


def test_a_link_that_is_behind_is_looked_at_in_each_interval(twins: Make) -> None:
    both = twins(switch_id("spine-1"), TREE)
    dead, *others = (*both.switch.lower, *both.switch.upper)
    now = START
    for _ in range(SILENT_INTERVALS + 3):
        now += T
        for neighbour in others:
            both.receive(now, neighbour, beacon(neighbour, now))
        both.tick(now)
    for one in (both.xdp, both.node):
        one.remove(now, dead, 1)
    both.receive(now, dead, beacon(dead, now - T, epoch=2))
    assert both.xdp.registers()[dead].is_behind
    now += T
    for neighbour in others:
        both.receive(now, neighbour, beacon(neighbour, now))
    both.receive(now, dead, beacon(dead, now, epoch=2))
    assert Joined(dead, 2) in both.xdp.tick(now)
    assert not both.xdp.registers()[dead].is_behind


def test_marks_are_those_of_the_phantom_queue(twins: Make) -> None:
    both = twins(drain_rate=1_600, mark_above=4_000)
    join(both, A, B)
    dice, now, marked = Random("marks"), START, 0
    for turn in range(400):
        now += dice.choice((0, 0, 1_000, 300_000, 2_000_000))
        packet = data(A, B, now + turn, turn, size=dice.randrange(1_401))
        wanted, found = both.receive(now, A, packet)
        assert without_beacons(wanted) == found
        marked += wire.decode(found[0].packet, now).flags & wire.ECN > 0
    assert 40 < marked < 360


@pytest.mark.parametrize("spoil", [
    lambda one: one[:-1],
    lambda one: one[: at.HEADER_BYTES + 39],
    lambda one: one[:OPCODE] + b"\0" + one[OPCODE + 1 :],
    lambda one: one[:OPCODE] + bytes((at.COMMAND_OPCODE,)) + one[OPCODE + 1 :],
    lambda one: one + bytes(1_500),
])  # fmt: skip
def test_packets_that_are_none_are_dropped(twins: Make, spoil: object) -> None:
    both = twins()
    join(both, A, B)
    before = bytes(both.path.words[at.UP_BARRIER : at.DOWN_COMMIT + 1])
    hop = hop_of(A)
    whole = at.frame(data(A, B, START + 5), bytes((10, 0, 0, 1)), 7000, hop.ip, hop.port)
    frame = spoil(whole)  # type: ignore[operator]
    if len(frame) > len(whole):
        frame = frame[:38] + (len(frame) - 34).to_bytes(2, "big") + frame[40:]
    assert both.path.run(START, frame, at.HOSTS).action == 1
    assert bytes(both.path.words[at.UP_BARRIER : at.DOWN_COMMIT + 1]) == before


@pytest.mark.parametrize("size", [0, 22, 39])
def test_a_packet_without_a_whole_header_is_counted_and_harms_nothing(
    twins: Make, size: int
) -> None:
    both = twins()
    join(both, A)
    assert both.receive(START, A, data(A, B, START + 5)[:size]) == ([], [])
    assert both.node.counters.damaged == both.xdp.counters.damaged == 1
    same_registers(both)


def test_a_flood_of_beacons_reaches_the_host_process_a_few_times_in_an_interval(
    twins: Make,
) -> None:
    both = twins(switch_id("spine-1"), TREE)
    path, ports = both.path, (*both.switch.lower, *both.switch.upper)
    old, other = ports[:2]

    def passes(neighbour: int, packet: bytes, now: int, port: int = 0) -> bool:
        hop = hop_of(neighbour)
        frame = at.frame(packet, OWN_IP, OWN_PORT, hop.ip, port or hop.port)
        return path.run(now, frame, at.BEHIND + ports.index(neighbour)).action == PASS

    flood = beacon(old, START, epoch=9)
    assert [passes(old, flood, START) for _ in range(4)] == [True, False, False, False]
    assert passes(other, beacon(other, START, epoch=2), START)  # each neighbour has its own share
    assert not passes(old, flood, START + T // 16 - 1)
    assert passes(old, flood, START + T // 16)
    # Neither what has another address nor other packets take the share of a beacon.
    later = START + 8 * T
    assert [passes(old, flood, later, port=1) for _ in range(2)] == [True, False]
    ack = bytes(wire.encode(Packet(wire.ACK, A, wire.NEIGHBOUR, epoch=77)))
    assert not passes(old, ack, later)
    assert passes(old, flood, later)


def test_links_that_have_ended_do_not_keep_the_host_process_busy(
    twins: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 processes are fenced at once, and go on as if they had not heard of it."""
    both = twins()
    processes = [process_id(0, 1 + number) for number in range(32)]
    join(both, *processes)
    for process in processes:
        both.xdp.freeze(START, process)

    def passes(process: int, packet: bytes, now: int) -> bool:
        hop = hop_of(process)
        frame = at.frame(packet, OWN_IP, OWN_PORT, hop.ip, hop.port)
        return both.path.run(now, frame, at.HOSTS).action == PASS

    for first in (0, 8):  # each is told, and told again if that was lost
        turns = range(first, first + 8)
        now = [START + turn * T for turn in turns]
        passed = [sum(passes(one, beacon(one, at), at) for one in processes) for at in now]
        assert passed == [32, 0, 0, 0, 0, 0, 0, 0]
    # What is no beacon has a share of all.
    end = START + 16 * T
    flood = [passes(one, data(one, A, end), end + T // 4 * turn) for turn in (0, 1)
             for one in processes]  # fmt: skip
    assert sum(flood) == 2
    # For an answer no register is read, and nothing waits for the kernel.
    monkeypatch.setattr(both.path, "settle", None)
    assert both.xdp.receive(end, B, bytearray(beacon(B, end)))
    assert not both.xdp.receive(end, B, bytearray(wire.encode(Packet(wire.JOIN, B, epoch=1))))


def test_a_process_that_comes_back_in_another_slot_has_its_beacons(twins: Make) -> None:
    both, other = twins(), process_id(0, 3)
    join(both, B, A)
    both.tick(START + T)
    now = START + T + 1
    for node in (both.node, both.xdp):
        node.freeze(now, A)
        node.remove(now, A, 1)
    join(both, other, now=now)
    for node in (both.node, both.xdp):
        node.freeze(now, other)  # its slot is not free yet
    join(both, A, now=now)
    _, found = both.tick(START + 2 * T)
    assert sorted(one.to for one in found) == [A, B]


@pytest.mark.parametrize("late", ["up", "down"])
def test_the_age_of_a_switch_is_that_of_its_older_minimum(twins: Make, late: str) -> None:
    both = twins(switch_id("spine-1"), TREE)
    for neighbour in (*both.switch.lower, *both.switch.upper):
        is_late = (neighbour in both.switch.lower) == (late == "up")
        both.receive(START, neighbour, beacon(neighbour, START + (300 if is_late else 500)))
    assert both.xdp.oldest_age(START + 900) == both.node.oldest_age(START + 900) == 600


def test_a_spine_marks_what_it_forwards(twins: Make) -> None:
    both = twins(switch_id("spine-1"), TREE, drain_rate=1_600, mark_above=4_000)
    marked = {}
    for below, process in zip(both.switch.lower, (A, FAR), strict=True):
        to = FAR if process == A else A
        sent = []
        for turn in range(8):
            wanted, found = both.receive(START, below, data(process, to, START, turn, size=1_000))
            assert without_beacons(wanted) == found
            sent += [bool(one.packet[23] & wire.ECN) for one in found]
        marked[process] = sent
    # Each output has a queue of its own.
    assert marked[A] == marked[FAR] == [False] * 3 + [True] * 5


@pytest.mark.parametrize("opcode", [wire.JOIN, wire.FENCED])
def test_a_flood_of_joins_reaches_the_host_process_a_few_times_in_an_interval(
    twins: Make, opcode: int
) -> None:
    path = twins().path

    def passes(process: int, now: int, port: int = 9_000) -> bool:
        packet = bytes(wire.encode(Packet(opcode, process, epoch=1)))
        frame = at.frame(packet, OWN_IP, OWN_PORT, hop_of(process).ip, port)
        return path.run(now, frame, at.HOSTS).action == PASS

    assert [passes(A, START, port) for port in range(4)] == [True, False, False, False]
    assert passes(B, START)  # each address has its own share
    assert not passes(A, START + T // 16 - 1)
    assert passes(A, START + T // 16)


def test_another_address_does_not_speak_for_a_process(twins: Make) -> None:
    both = twins()
    join(both, A, B)
    hop = hop_of(B)
    frame = at.frame(beacon(A, START + 5), bytes((10, 0, 0, 1)), 7000, hop.ip, hop.port)
    assert both.path.run(START, frame, at.HOSTS).action == 2  # the host process answers
    same_registers(both)


@pytest.mark.parametrize("is_near", [True, False])
def test_another_address_does_not_speak_for_a_switch(twins: Make, is_near: bool) -> None:
    both = twins(switch_id("spine-1"), TREE)
    for neighbour in (*both.switch.lower, *both.switch.upper):
        far = START + 1_000 * T
        ack = bytes(wire.encode(Packet(wire.ACK, A, barrier=far, commit=far, epoch=1)))
        for one in (beacon(neighbour, far), data(A, FAR, far), ack):
            both.receive_from_elsewhere(START, neighbour, one, is_near)
    same_registers(both)


@pytest.mark.parametrize("to", [wire.NEIGHBOUR, B])
def test_what_a_switch_says_to_this_one_counts_in_its_epoch_alone(twins: Make, to: int) -> None:
    both = twins(switch_id("spine-1"), TREE)
    below = both.switch.lower[0]
    ack = bytes(wire.encode(Packet(wire.ACK, A, to, barrier=START + 5, commit=START, epoch=77)))
    both.receive(START, below, ack)
    same_registers(both)
    assert (register(both, below)[1] == START + 5) is (to == B)


@pytest.mark.parametrize("name", ["rack-0", "spine-1", "core-0"])
@pytest.mark.parametrize("seed", range(2))
def test_both_switches_do_the_same(twins: Make, name: str, seed: int) -> None:
    """Random packets, silences, epochs, joins, removals and routes, across the wrap of stamps."""
    both = twins(switch_id(name), TREE, drain_rate=1_000, mark_above=3_000)
    World(both, Random(f"{name} {seed}")).play(150)


def test_a_switch_with_too_many_neighbours_is_refused(twins: Make) -> None:
    with pytest.raises(XdpError, match="spine-0 has 65 neighbours"):
        twins(switch_id("spine-0"), Topology.tree(65, 1))


def test_a_command_is_done_whole(twins: Make) -> None:
    both = twins()
    path: PathInTests = both.path
    changes = [at.Change(at.word(60, n), 5) for n in range(at.SLOT_WORDS)]
    path.execute(START, changes)
    assert [path.words[one.word] for one in changes] == [5] * len(changes)
    path.execute(START, [at.Change(at.word(60, 2), 3, raises=True), at.Change(at.word(60, 3), 2)])
    assert [path.words[at.word(60, n)] for n in (2, 3)] == [5, 2]
    with pytest.raises(ValueError, match="at most 64"):
        at.command(1, START, changes * 4)
