"""Transcripts of switches: registers, minima, beacons, silence, epochs, joins and removals."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from weir_toc import packet as wire
from weir_toc.node import STEPS_PER_INTERVAL, Effect, Joined, Send, Silent, SwitchConfig, SwitchNode
from weir_toc.packet import Packet
from weir_toc.topology import Link, Topology, process_id

T = 1_000_000
#: One second before stamps wrap.
START = ((1 << 48) - 1_000_000_000) // T * T
A, B = process_id(0, 1), process_id(0, 2)
FAR = process_id(1, 1)


def node(topology: Topology | None = None, **settings: object) -> SwitchNode:
    topology = topology or Topology.tree(1)
    config = SwitchConfig(interval=T, **settings)  # type: ignore[arg-type]
    return SwitchNode(topology.switch_of_rack(0), topology, START, config)


def sent(effects: Iterable[Effect], now: int = START) -> list[tuple[int, Packet]]:
    found = (one for one in effects if isinstance(one, Send))
    return [(one.to, wire.decode(one.data, now)) for one in found]


def beacon(source: int, barrier: int, commit: int | None = None, epoch: int = 1) -> bytearray:
    commit = barrier if commit is None else commit
    return wire.encode(Packet(wire.BEACON, source, barrier=barrier, commit=commit, epoch=epoch))


def data(source: int, to: int, stamp: int, epoch: int = 1) -> bytearray:
    return wire.encode(
        Packet(wire.DATA_BE, source, to, stamp, stamp, stamp - 1, epoch=epoch, payload=b"x")
    )


def join(one: SwitchNode, *processes: int, now: int = START) -> Sequence[tuple[int, int]]:
    floors = []
    for process in processes:
        answer = one.receive(now, process, wire.encode(Packet(wire.JOIN, process, epoch=1)))
        ((to, joined),) = sent(answer, now)
        assert (to, joined.opcode) == (process, wire.JOINED)
        floors.append(wire.decode_floors(joined.payload))
    return floors


def test_a_barrier_is_the_minimum_of_all_inputs() -> None:
    one = node()
    join(one, A, B)
    one.receive(START + 10, A, beacon(A, START + 500))
    assert one.up.barrier < START  # nothing of B yet
    one.receive(START + 20, B, beacon(B, START + 300))
    assert (one.up.barrier, one.down.barrier) == (START + 300, START + 300)


def test_each_process_is_an_input_also_where_two_share_a_cable() -> None:
    one = node()
    join(one, A, B)
    one.receive(START, A, beacon(A, START + 500))
    effects = one.receive(START, A, beacon(B, START + 900))  # A speaks for B
    assert [packet.opcode for _, packet in sent(effects)] == [wire.FENCED]
    assert one.registers()[B].barrier < START


def test_each_damaged_byte_of_a_beacon_but_its_barriers_is_found_also_behind_a_whole_one() -> None:
    one = node()
    join(one, A)
    one.receive(START, A, beacon(A, START + 500))
    places = [*range(6), *range(18, wire.OVERHEAD_BYTES)]
    for at in places:
        damaged = beacon(A, START + 900)
        damaged[at] ^= 1
        one.receive(START + 1, A, damaged)
        assert one.registers()[A].barrier == START + 500
    assert one.counters.damaged == len(places)
    one.receive(START + 2, A, beacon(A, START + 900))
    assert one.registers()[A].barrier == START + 900


def test_registers_never_go_back() -> None:
    one = node()
    join(one, A)
    one.receive(START, A, beacon(A, START + 500))
    one.receive(START, A, beacon(A, START + 400))
    assert one.up.barrier == START + 500


def test_a_packet_carries_the_minimum_of_the_moment_in_which_it_is_queued() -> None:
    one = node()
    join(one, A, B)
    one.receive(START, A, beacon(A, START + 500, START + 400))
    effects = one.receive(START + 9, B, data(B, A, START + 300))
    (to, packet), *_ = sent(effects)
    assert (to, packet.stamp, packet.barrier) == (A, START + 300, START + 300)
    assert packet.commit == START + 299
    assert packet.payload == b"x"


def test_only_beacons_carry_barriers_where_packets_are_not_rewritten() -> None:
    one = node(rewrites=False)
    join(one, A, B)
    one.receive(START, A, beacon(A, START + 500))
    effects = one.receive(START, B, data(B, A, START + 300))
    assert one.up.barrier < START
    ((_, packet),) = sent(effects)
    assert packet.barrier == START + 300  # as its sender wrote it


def test_all_outputs_beacon_at_multiples_of_the_interval() -> None:
    one = node()
    join(one, A, B)
    assert one.deadline % T == 0
    due = one.deadline + T
    effects = one.tick(due)
    assert {(to, packet.opcode) for to, packet in sent(effects, due)} == {
        (A, wire.BEACON), (B, wire.BEACON)
    }  # fmt: skip
    assert one.deadline == due + T


def test_a_minimum_that_moved_is_passed_on_at_once_but_at_most_four_times_an_interval() -> None:
    one = node()
    join(one, A)
    now = START + T // 2
    first = sent(one.receive(now, A, beacon(A, now)), now)
    assert [(to, packet.barrier) for to, packet in first] == [(A, now)]
    step = T // STEPS_PER_INTERVAL
    assert sent(one.receive(now + step, A, beacon(A, now + step)), now) == []
    assert one.deadline == now + T // 4
    later = sent(one.tick(one.deadline), now)
    assert [packet.barrier for _, packet in later] == [now + step]


def test_a_small_step_waits_for_more_or_for_the_next_beacon() -> None:
    one = node()
    join(one, A)
    now = START + T // 2
    one.receive(now, A, beacon(A, now))
    step = T // STEPS_PER_INTERVAL
    assert sent(one.receive(now + T // 4, A, beacon(A, now + step - 1)), now) == []
    assert one.deadline == START + T
    told = sent(one.receive(now + T // 3, A, beacon(A, now + step)), now)
    assert [packet.barrier for _, packet in told] == [now + step]
    commit = one.receive(now + T, A, beacon(A, now + step, now + 2 * step))
    assert [packet.commit for _, packet in sent(commit, now)] == [now + 2 * step]
    one.receive(now + T + 1, A, beacon(A, now + step + 1))
    due = START + 3 * T
    assert [packet.barrier for _, packet in sent(one.tick(due), due)] == [now + step + 1]


def test_an_input_that_is_silent_for_ten_intervals_leaves_the_best_effort_minimum() -> None:
    one = node()
    join(one, A, B)
    for tick in range(1, 13):
        now = START + tick * T
        one.receive(now, A, beacon(A, now))
        if tick == 1:
            one.receive(now, B, beacon(B, now, now - 5))
        effects = one.tick(now)
        assert [e for e in effects if isinstance(e, Silent)] == (
            [Silent(B, 1, START + T - 5)] if tick == 12 else []
        )
    assert one.up.barrier == START + 12 * T
    assert one.up.commit == START + T - 5  # frozen, and still in the minimum


def silent_b() -> SwitchNode:
    one = node()
    join(one, A, B)
    one.receive(START, B, beacon(B, START, START))
    for tick in range(1, 13):
        now = START + tick * T
        one.receive(now, A, beacon(A, now))
        one.tick(now)
    return one


def test_a_frozen_commit_register_follows_nothing_and_leaves_by_the_controller() -> None:
    one, now = silent_b(), START + 13 * T
    effects = one.receive(now, B, beacon(B, now))
    assert [packet.opcode for _, packet in sent(effects, now)] == [wire.FENCED]
    assert one.up.commit == START
    one.remove(now, B, epoch=0)  # an older incarnation
    assert one.up.commit == START
    one.remove(now, B, epoch=1)
    assert one.up.commit == START + 12 * T
    assert B not in one.registers()


def test_a_process_that_says_nothing_after_it_joined_fails_where_it_began() -> None:
    one = node()
    join(one, A)
    for tick in range(1, 4):
        one.receive(START + tick * T, A, beacon(A, START + tick * T))
    join(one, B, now=START + 3 * T)
    began = one.up.commit
    assert began == START + 3 * T
    found = []
    for tick in range(4, 16):
        one.receive(START + tick * T, A, beacon(A, START + tick * T))
        found += [each for each in one.tick(START + tick * T) if isinstance(each, Silent)]
    assert found == [Silent(B, 1, began)]


def test_an_id_that_is_fenced_does_not_join_again() -> None:
    one, now = silent_b(), START + 13 * T
    assert sent(one.receive(now, B, wire.encode(Packet(wire.JOIN, B, epoch=2))), now) == []


def test_a_process_that_joins_is_told_what_was_promised_and_freezes_it() -> None:
    one = node()
    join(one, A)
    now = START + 5 * T
    one.receive(now, A, beacon(A, now, now - 3))
    ((barrier, commit),) = join(one, B, now=now)
    assert (barrier, commit) == (now, now - 3)
    one.receive(now + 1, A, beacon(A, now + T))
    assert one.up.barrier == now  # until B has passed it
    one.receive(now + 2, B, beacon(B, now + 50))
    assert one.up.barrier == now + 50


def test_a_switch_without_inputs_promises_its_own_time() -> None:
    one = node()
    one.tick(START + 3 * T)
    assert one.up.barrier == START + 3 * T
    ((barrier, commit),) = join(one, A, now=START + 3 * T)
    assert (barrier, commit) == (START + 3 * T, START + 3 * T)


def test_a_process_of_another_rack_cannot_join_here() -> None:
    one = node()
    assert one.receive(START, FAR, wire.encode(Packet(wire.JOIN, FAR, epoch=1))) == []
    assert one.counters.unroutable == 1


def test_damaged_packets_change_nothing() -> None:
    one = node()
    join(one, A)
    broken = data(A, A, START + 300)
    broken[0] ^= 1
    assert one.receive(START, A, broken) == []
    assert one.counters.damaged == 1


def two_racks() -> tuple[Topology, SwitchNode]:
    topology = Topology.tree(racks=2, spines=2)
    return topology, node(topology)


def test_packets_turn_round_below_or_go_up() -> None:
    topology, one = two_racks()
    join(one, A, B)
    upper = topology.switch_of_rack(0).upper
    assert [to for to, _ in sent(one.receive(START, A, data(A, B, START + 1)))] == [B]
    ways = set()
    for psn in range(64):
        packet = wire.encode(Packet(wire.DATA_R, A, FAR, START, START, START, psn, 0, 1))
        ways |= {to for to, _ in sent(one.receive(START, A, packet))}
    assert ways == set(upper)  # all paths


def test_packets_take_the_routes_that_came_last() -> None:
    topology, one = two_racks()
    join(one, A)
    above = one.switch.upper

    def ports() -> set[int]:
        ways = set()
        for psn in range(64):
            packet = wire.encode(Packet(wire.DATA_R, A, FAR, START, START, START, psn, 0, 1))
            ways |= {to for to, _ in sent(one.receive(START, A, packet))}
        return ways

    assert ports() == {*above}
    cut = frozenset({Link(one.switch.id, above[0])})
    one.set_routes(topology.routes(one.switch.id, cut))
    assert ports() == {above[1]}


def test_what_came_down_does_not_go_up_again() -> None:
    topology, one = two_racks()
    above = topology.switch_of_rack(0).upper[0]
    assert one.receive(START, above, data(FAR, FAR, START + 1)) == []
    assert one.counters.unroutable == 1


def test_a_fenced_switch_begins_a_new_epoch() -> None:
    topology, one = two_racks()
    above = topology.switch_of_rack(0).upper[0]
    told = wire.encode(Packet(wire.FENCED, above, epoch=1))
    ((to, packet),) = sent(one.receive(START, above, told))
    assert (to, packet.opcode, packet.epoch) == (above, wire.BEACON, 2)


@pytest.mark.parametrize("is_removed_first", [False, True])
def test_a_link_that_comes_back_counts_again_once_the_controller_has_settled_it(
    is_removed_first: bool,
) -> None:
    topology, one = two_racks()
    dead, alive = topology.switch_of_rack(0).upper
    for tick in range(1, 13):
        now = START + tick * T
        one.receive(now, alive, beacon(alive, now))
        one.tick(now)
    assert one.down.commit < START
    now = START + 13 * T
    if is_removed_first:
        one.remove(now, dead, epoch=1)
        assert one.down.commit == START + 12 * T
    effects = one.receive(now, dead, beacon(dead, now, epoch=2))
    assert Joined(dead, 2, is_removed_first) in effects
    if not is_removed_first:
        assert one.registers()[dead].commit < START  # frozen until then
        one.remove(now, dead, epoch=1)
    one.receive(now + 1, dead, beacon(dead, now + 1, epoch=2))
    one.receive(now + 1, alive, beacon(alive, now + 2))
    one.tick(now + 1)
    assert one.down.commit == now + 1


def test_a_link_that_was_removed_tells_once_it_has_come_up_to_what_was_promised() -> None:
    topology, one = two_racks()
    dead, alive = topology.switch_of_rack(0).upper
    for tick in range(1, 13):
        now = START + tick * T
        one.receive(now, alive, beacon(alive, now))
        one.tick(now)
    one.remove(now, dead, epoch=1)
    assert one.down.commit == START + 12 * T
    assert Joined(dead, 2, True) in one.receive(now, dead, beacon(dead, now, START, epoch=2))
    now += T
    one.receive(now, dead, beacon(dead, now, START + 12 * T - 1, epoch=2))
    assert not [effect for effect in one.tick(now) if isinstance(effect, Joined)]
    for tick in range(13, 26):  # it falls silent, and comes back before the controller removes it
        one.receive(now := START + tick * T, alive, beacon(alive, now))
        one.tick(now)
    now = START + 40 * T  # it was held back
    assert Joined(dead, 3, True) in one.receive(now, dead, beacon(dead, now, START, epoch=3))
    one.remove(now, dead, epoch=2)
    one.receive(now, dead, beacon(dead, now, START + 12 * T, epoch=3))
    assert Joined(dead, 3) in one.tick(now)
    assert not [effect for effect in one.tick(now) if isinstance(effect, Joined)]


def silent_link() -> tuple[SwitchNode, int, int]:
    """Return a switch that has fenced one of its two upper links, that neighbour, and the time."""
    topology, one = two_racks()
    dead, alive = topology.switch_of_rack(0).upper
    for tick in range(1, 13):
        now = START + tick * T
        one.receive(now, alive, beacon(alive, now))
        one.tick(now)
    return one, dead, now


def test_a_link_that_is_held_at_its_removal_comes_back_when_it_is_removed_again() -> None:
    one, dead, now = silent_link()
    one.remove(now, dead, 1, holds=True)
    assert one.down.commit == now  # its register is out of the minimum
    for command in (None, 7, 1):  # one of another epoch is of another failure
        effects = one.receive(now, dead, beacon(dead, now, START, epoch=2))
        assert not [effect for effect in effects if isinstance(effect, Joined)]
        if command:
            one.remove(now, dead, command)
    assert Joined(dead, 2, True) in one.receive(now, dead, beacon(dead, now, START, epoch=2))


def test_a_link_that_is_back_before_it_would_be_held_is_not() -> None:
    one, dead, now = silent_link()
    one.receive(now, dead, beacon(dead, now, epoch=2))
    one.remove(now, dead, 1, holds=True)
    later = now + 200 * T  # it falls silent again, and comes back
    one.tick(later - T)
    one.tick(later)
    for tick in range(1, 13):
        one.tick(later + tick * T)
    assert not one.registers()[dead].live
    effects = one.receive(later + 13 * T, dead, beacon(dead, later, epoch=3))
    assert Joined(dead, 3) in effects


def test_a_link_that_breaks_again_before_its_removal_waits_for_the_second_one() -> None:
    topology, one = two_racks()
    dead, alive = topology.switch_of_rack(0).upper
    now = START

    def go_on(until: int) -> list[Silent]:
        nonlocal now
        found = []
        while now < START + until * T:
            now += T
            one.receive(now, alive, beacon(alive, now))
            found += [each for each in one.tick(now) if isinstance(each, Silent)]
        return found

    (first,) = go_on(13)
    assert (first.neighbour, first.epoch) == (dead, 1)
    one.receive(now, dead, beacon(dead, now, epoch=2))
    (second,) = go_on(26)
    # Still the register of the first time: nobody has delivered what lies above.
    assert second == Silent(dead, 2, first.commit)
    one.remove(now, dead, epoch=1)
    assert one.down.commit < START
    one.remove(now, dead, epoch=2)
    go_on(27)
    assert one.down.commit == now


class Flapping:
    """A switch, one cable of which falls silent and comes back."""

    def __init__(self) -> None:
        topology, self.node = two_racks()
        self.dead, self._alive = topology.switch_of_rack(0).upper
        self._interval = 0
        self.epoch = 1

    def go_on(self, intervals: int, *, is_whole: bool) -> int:
        """Let intervals pass; return how many of them the cable counted for."""
        counted = 0
        for _ in range(intervals):
            self._interval += 1
            now = START + self._interval * T
            self.node.receive(now, self._alive, beacon(self._alive, now))
            if is_whole:
                told = self.node.receive(now, self.dead, beacon(self.dead, now, epoch=self.epoch))
                counted += self.node.registers()[self.dead].live
                self.epoch += sum(one.opcode == wire.FENCED for _, one in sent(told, now))
            self.node.tick(now)
        return counted


def test_a_cable_that_breaks_soon_after_it_came_back_is_held_back_for_longer_each_time() -> None:
    cable = Flapping()
    assert cable.go_on(20, is_whole=True) == 20
    waited = []
    for _ in range(10):
        cable.go_on(11, is_whole=False)  # fenced in the last one of them
        cable.epoch += 1
        whole = 0
        while not cable.go_on(1, is_whole=True):
            whole += 1
        waited.append(whole)
    # At once after the first time. A hold is counted from the silence on.
    assert waited == [0, *(10 * 2 ** min(k, 6) - 1 for k in range(9))]


@pytest.mark.parametrize(("whole", "comes_back"), [(88, False), (89, True)])
def test_a_cable_that_was_whole_for_100_intervals_comes_back_at_once(
    whole: int, comes_back: bool
) -> None:
    cable = Flapping()
    for intervals in (5, 1 + whole):  # silence is noticed in the eleventh interval
        cable.go_on(intervals - 1, is_whole=True)
        cable.go_on(11, is_whole=False)
        cable.epoch += 1
        is_first = intervals == 5
        assert cable.go_on(1, is_whole=True) == (is_first or comes_back)


def test_a_cable_that_was_whole_for_long_is_held_back_as_at_first_when_it_breaks_again() -> None:
    cable = Flapping()
    waited = []
    for whole in (5, 1, 1, 1, 200, 1):
        cable.go_on(whole, is_whole=True)
        cable.go_on(11, is_whole=False)
        cable.epoch += 1
        silent = 0
        while not cable.go_on(1, is_whole=True):
            silent += 1
        waited.append(silent)
    assert waited == [0, 9, 19, 39, 0, 9]


def test_congested_outputs_mark_packets() -> None:
    one = node(drain_rate=1, mark_above=100)
    join(one, A, B)
    flags = [
        packet.flags
        for stamp in range(4)
        for to, packet in sent(one.receive(START, A, data(A, B, START + stamp)))
        if packet.opcode == wire.DATA_BE
    ]
    assert flags == [0, 0, wire.ECN, wire.ECN]


def test_a_run_is_marked_from_the_packet_on_that_crosses_the_threshold() -> None:
    settings = {"drain_rate": 1_000, "mark_above": 5_000}
    payloads, whole, single = [bytes(60)] * 64, node(**settings), node(**settings)
    for one in (whole, single):
        join(one, A, B)
    run = wire.encode_run(
        Packet(
            wire.DATA_BE, A, B, START, START, START - 1, 0, epoch=1, flags=wire.BEGIN | wire.END
        ),
        payloads,
    )
    size = len(run) // 64
    effects = whole.receive_run(START, A, bytearray(run), size)
    (forwarded,) = [one for one in effects if isinstance(one, Send) and one.size]
    flags = [one[23] & wire.ECN for one in wire.split(forwarded.data, size)]
    alone = [sent(single.receive(START, A, bytearray(one))) for one in wire.split(run, size)]
    assert flags == [
        packet.flags & wire.ECN for effects in alone for to, packet in effects
        if packet.opcode == wire.DATA_BE
    ]  # fmt: skip
    assert 0 < sum(map(bool, flags)) < 64


PROCESSES = [process_id(0, number) for number in range(1, 9)]


def at_once(one: SwitchNode, now: int, beacons: Sequence[tuple[int, bytearray]]) -> list[Effect]:
    return one.receive_beacons(now, [id for id, _ in beacons], [bytes(data) for _, data in beacons])


@pytest.mark.parametrize("seed", range(20))
def test_beacons_that_come_at_once_count_as_those_that_come_one_by_one(seed: int) -> None:
    dice = random.Random(seed)
    one, other = node(), node()
    for each in (one, other):
        join(each, *PROCESSES)
    for turn in range(60):
        now = START + turn * T // 2
        burst = []
        for process in dice.sample(PROCESSES, dice.randint(1, 8)):
            near = now + dice.randint(-3 * T, T)
            data = beacon(process, near, near - dice.randint(0, T), dice.choice((1, 1, 1, 2)))
            if dice.random() < 0.1:
                data[dice.choice((*range(6), *range(18, 40)))] ^= 1 << dice.randrange(8)
            burst.append((process, data))
        if dice.random() < 0.05:
            silent = dice.choice(PROCESSES)
            assert one.freeze(now, silent)[:1] == other.freeze(now, silent)[:1]
        at_once(one, now, burst)
        for process, data in burst:
            other.receive(now, process, bytearray(data))
        one.tick(now), other.tick(now)
        assert (one.up.barrier, one.up.commit) == (other.up.barrier, other.up.commit)
        assert (one.down.barrier, one.down.commit) == (other.down.barrier, other.down.commit)
        assert one.registers() == other.registers()
        assert one.counters == other.counters


def test_beacons_that_come_at_once_are_answered_by_one_on_each_output() -> None:
    one = node()
    join(one, *PROCESSES)
    for turn in range(1, 4):
        now = START + turn * T
        burst = [(id, beacon(id, now + n * T // 6)) for n, id in enumerate(PROCESSES)]
        told = sent(at_once(one, now, burst), now)
        assert [(to, packet.barrier) for to, packet in told] == [(id, now) for id in PROCESSES]


def test_a_beacon_that_was_accepted_before_is_not_accepted_once_its_input_is_fenced() -> None:
    one = node()
    join(one, A, B)
    for _ in range(2):
        at_once(one, START, [(A, beacon(A, START)), (B, beacon(B, START))])
    for intervals in (5, 10, 11):
        one.tick(START + intervals * T)
    told = sent(at_once(one, START + 11 * T, [(A, beacon(A, START + 11 * T))]))
    assert [packet.opcode for _, packet in told] == [wire.FENCED]
    assert one.registers()[A].barrier == START


def test_a_beacon_of_a_former_epoch_is_refused_after_its_switch_has_come_back() -> None:
    topology = Topology.tree(2, 1)
    spine = next(one for one in topology.switches.values() if one.lower)
    below = spine.lower[0]
    one = SwitchNode(spine, topology, START, SwitchConfig(interval=T))
    for _ in range(2):
        at_once(one, START, [(below, beacon(below, START))])
    for intervals in (5, 10, 11):
        one.tick(START + intervals * T)
    now = START + 12 * T
    at_once(one, now, [(below, beacon(below, now, epoch=2))])
    told = sent(at_once(one, now, [(below, beacon(below, now + T))]), now)
    assert (below, wire.FENCED) in [(to, packet.opcode) for to, packet in told]
    assert one.registers()[below].barrier == now
