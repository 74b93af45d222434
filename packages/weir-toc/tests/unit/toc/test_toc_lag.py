"""The lag alarm by transcript: what nodes read, and what is reported of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rigs.one_rack import START, OneRack, T
from weir_toc.controller.codec import lagging_to, reading_from
from weir_toc.controller.lag import (
    FRESH_INTERVALS,
    READ_INTERVALS,
    UNREAD_NS_MIN,
    Cause,
    LagAlarm,
    Lagging,
    Link,
    LinkReading,
    NodeReading,
)
from weir_toc.endpoint.events import Service
from weir_toc.errors import ControlError
from weir_toc.topology import Topology, process_id, switch_id

RACK_0, RACK_1, SPINE = switch_id("rack-0"), switch_id("rack-1"), switch_id("spine-0")
A, B, C, D = process_id(0, 1), process_id(0, 2), process_id(1, 1), process_id(1, 2)
READ = READ_INTERVALS * T
#: The inputs of each switch, and their ages in a quiet network.
QUIET = {
    RACK_0: {A: T, B: T, SPINE: 3 * T},
    RACK_1: {C: T, D: T, SPINE: 3 * T},
    SPINE: {RACK_0: 2 * T, RACK_1: 2 * T},
}


class Network:
    """Two racks below a spine, whose links are read each ten intervals."""

    def __init__(self) -> None:
        self.alarm = LagAlarm(Topology.tree(2, 1), T)
        self.now = START
        self.told: list[Lagging] = []
        self.age = {switch: dict(links) for switch, links in QUIET.items()}
        self.counts: dict[tuple[int, int], int] = {}
        self.late = dict.fromkeys((A, B, C, D, *QUIET), 0)
        self.clock = dict.fromkeys(self.late, 0)
        self.silent: set[int] = set()
        #: The share of packets that comes by a link.
        self.arrives: dict[tuple[int, int], float] = {}

    def read(self, times: int = 1) -> None:
        """Let all nodes read their links; each link has carried ten packets."""
        for _ in range(times):
            self.now += READ
            for node in self.late:
                if node not in self.silent:
                    self.told += self.alarm.read(self.reading(node))

    def reading(self, node: int) -> NodeReading:
        """What a node reads now; each link has carried ten packets since it read before."""
        links = {}
        ages = self.age.get(node, {RACK_0 if node in (A, B) else RACK_1: 0})
        for neighbour, age in ages.items():
            share = self.arrives.get((node, neighbour), 1.0)
            self.counts[node, neighbour] = self.counts.get((node, neighbour), 0) + int(10 * share)
            sent = (self.now - START) // T
            heard = self.counts[node, neighbour]
            links[neighbour] = LinkReading(neighbour, age, heard, sent)
        clock = self.now - self.clock[node]
        return NodeReading(node, self.now, clock, self.late[node], links)


def lag(network: Network, *links: tuple[int, int], by: int = 8 * T) -> None:
    """Let barriers be later on links."""
    for node, neighbour in links:
        network.age[node][neighbour] += by


#: What makes A late, and what is named as the cause.
CAUSES: list[tuple[Callable[[Network], object], Cause]] = [
    (lambda network: None, Cause.QUEUE),
    (lambda network: network.clock.update({A: 8 * T}), Cause.CLOCK),
    (lambda network: network.late.update({A: 8 * T}), Cause.STOPPED),
    (lambda network: network.silent.add(A), Cause.STOPPED),
    (lambda network: network.arrives.update({(RACK_0, A): 0.3}), Cause.LOSS),
]


@pytest.mark.parametrize(("make", "cause"), CAUSES)
def test_a_process_that_lags_is_named_with_the_cause_within_fifty_intervals(
    make: Callable[[Network], object], cause: Cause
) -> None:
    network = Network()
    network.read(6)
    make(network)
    begun = network.now
    lag(network, (RACK_0, A), (SPINE, RACK_0), (RACK_0, SPINE), (RACK_1, SPINE))
    while not network.told:
        network.read()
        assert network.now - begun <= 50 * T
    found = network.told[0]
    assert (found.link, found.hop, found.cause) == (Link(RACK_0, A), Link(RACK_0, A), cause)
    assert found.behind == 8 * T
    assert found.since == begun + READ
    network.read(4)
    # Above, the switch lags because of that link; in its down half nothing is unusual.
    assert [one.link for one in network.told] == [Link(RACK_0, A), Link(SPINE, RACK_0)]
    assert {one.hop for one in network.told} == {Link(RACK_0, A)}
    assert {one.cause for one in network.told} == {cause}


@pytest.mark.parametrize("others", [True, False])
def test_a_link_lags_no_more_once_its_node_has_read_nothing_for_long(others: bool) -> None:
    network = Network()
    lag(network, (RACK_0, A))
    network.read(4)
    (begun,) = network.told
    assert not begun.is_over
    last = network.now
    network.silent |= {RACK_0} if others else {*network.late}
    while len(network.told) == 1:
        network.read()
        if not others:
            network.told += network.alarm.expire(network.now)
        assert network.now <= last + UNREAD_NS_MIN + READ
    assert network.now > last + UNREAD_NS_MIN
    assert network.told == [begun, begun._replace(is_over=True)]
    assert network.alarm.lagging == {}
    network.silent.clear()
    network.read()
    assert network.alarm.lagging == {}  # it must last again
    network.read(4)
    assert [*network.alarm.lagging] == [begun.link]


def test_what_is_forgotten_is_over_and_must_last_again() -> None:
    network = Network()
    lag(network, (RACK_0, A))
    network.read(4)
    (begun,) = network.told
    assert network.alarm.forget() == [begun._replace(is_over=True)]
    assert network.alarm.forget() == []
    network.read(2)
    assert network.told == [begun]
    network.read()
    assert network.alarm.reported == len(network.told) == 2


def test_readings_count_as_long_as_that_of_a_slow_interval() -> None:
    slow = LagAlarm(Topology.tree(2, 1), UNREAD_NS_MIN)
    ages = {one: LinkReading(one, age) for one, age in {A: 0, B: 0, SPINE: 0, C: 10**11}.items()}
    for at in (0, 10, 20):
        slow.read(NodeReading(RACK_0, at * UNREAD_NS_MIN, 0, 0, ages))
    assert slow.lagging
    assert slow.expire((20 + FRESH_INTERVALS) * UNREAD_NS_MIN) == []
    # A node that is new makes none of the others unknown.
    slow.read(NodeReading(A, (20 + FRESH_INTERVALS) * UNREAD_NS_MIN, 0, 0, {}))
    assert len(slow.expire((20 + FRESH_INTERVALS) * UNREAD_NS_MIN + 1)) == 1


def test_what_is_more_than_five_intervals_behind_is_reported() -> None:
    network = Network()
    network.age[RACK_0][A] += 5 * T + 1
    network.read(4)
    assert [one.link for one in network.told] == [Link(RACK_0, A)]


def test_a_process_alone_in_its_rack_is_found_from_above() -> None:
    network = Network()
    del network.age[RACK_0][B]
    lag(network, (RACK_0, A), (SPINE, RACK_0))
    network.read(4)
    (found,) = network.told
    assert (found.link, found.hop) == (Link(SPINE, RACK_0), Link(RACK_0, A))


def test_a_link_between_switches_is_the_lowest_hop_itself() -> None:
    network = Network()
    lag(network, (SPINE, RACK_0))
    network.late[RACK_0] = 9 * T
    network.read(4)
    (found,) = network.told
    assert (found.link, found.hop) == (Link(SPINE, RACK_0), Link(SPINE, RACK_0))
    assert found.cause is Cause.STOPPED


def test_what_is_short_or_small_is_not_reported() -> None:
    network = Network()
    network.age[RACK_0][A] += 5 * T  # not more than five
    network.read(10)
    network.age[RACK_0][A] += 1
    network.read(2)  # for ten intervals
    network.age[RACK_0][A] -= 1
    network.read()
    network.age[RACK_0][A] += 1
    network.read(2)
    assert network.told == []
    assert network.alarm.reported == 0


@pytest.mark.parametrize("early", [READ // 2 - 1, READ])
def test_readings_may_come_a_little_sooner_than_they_are_due(early: int) -> None:
    """The third of them counts; two, however far apart, are too few."""
    network = Network()
    network.age[RACK_0][A] += 8 * T
    network.read(2)
    network.now -= early
    network.read()
    assert bool(network.told) == (early < READ // 2)


def test_a_clock_or_a_pause_seen_once_is_no_cause() -> None:
    for what in ("late", "clock"):
        network = Network()
        lag(network, (RACK_0, A))
        for turn in range(3):
            getattr(network, what)[A] = 8 * T * (turn == 1)
            network.read()
        assert [one.cause for one in network.told] == [Cause.QUEUE]


@pytest.mark.parametrize(
    ("arrives", "cause"), [(0.5, Cause.LOSS), (0.6, Cause.LOSS), (0.7, Cause.QUEUE)]
)
def test_a_link_that_loses_a_third_lags_by_loss(arrives: float, cause: Cause) -> None:
    network = Network()
    network.read(6)
    network.arrives[RACK_0, A] = arrives
    lag(network, (RACK_0, A))
    network.read(3)
    assert [one.cause for one in network.told] == [cause]


def test_loss_is_counted_over_all_readings_in_which_the_link_lagged() -> None:
    network = Network()
    network.read(6)
    lag(network, (RACK_0, A))
    for arrives in (1.0, 0.0, 1.0):  # a burst of loss alone would be half of it
        network.arrives[RACK_0, A] = arrives
        network.read()
    (one,) = network.told
    assert one.cause is Cause.LOSS


@pytest.mark.parametrize("alone", [False, True])
def test_packets_that_wait_as_a_lag_begins_are_not_lost(alone: bool) -> None:
    """The spine reads its links soon after that, and the rack's switch just before it."""
    network = Network()
    if alone:  # then no alarm of its own switch tells the cause
        del network.age[RACK_0][B]
    network.read(6)
    lag(network, (SPINE, RACK_0))
    network.read()
    lag(network, (RACK_0, A))
    network.arrives[RACK_0, A] = 0.3  # the others come seven intervals later
    network.read()
    network.arrives.clear()
    network.read()
    assert network.told == []  # the hop has lagged in two readings
    network.silent.add(SPINE)
    network.read()
    links = [Link(SPINE, RACK_0)] if alone else [Link(RACK_0, A), Link(SPINE, RACK_0)]
    assert sorted(one.link for one in network.told) == sorted(links)
    assert {(one.hop, one.cause) for one in network.told} == {(Link(RACK_0, A), Cause.QUEUE)}


@pytest.mark.parametrize(("arrives", "cause"), [(0.5, Cause.LOSS), (1.0, Cause.QUEUE)])
def test_an_alarm_waits_for_its_hop_for_ten_intervals(arrives: float, cause: Cause) -> None:
    """Then two readings tell the cause: here that between them is missing."""
    network = Network()
    network.read(6)
    lag(network, (SPINE, RACK_0))
    network.read(2)
    lag(network, (RACK_0, A))
    network.arrives[RACK_0, A] = arrives
    network.read()
    network.silent.add(RACK_0)
    network.read()
    assert network.told == []
    network.now += T
    network.told += network.alarm.read(network.reading(RACK_0))
    (found,) = network.told
    assert (found.link, found.hop, found.cause) == (Link(SPINE, RACK_0), Link(RACK_0, A), cause)


def test_a_process_that_pauses_as_it_is_to_be_read_is_no_loss() -> None:
    """It reads its link once it goes on: until then it was late but once since the lag began."""
    network = Network()
    network.read(5)
    network.silent.add(A)
    network.read()  # its readings go back to before that
    network.silent.clear()
    lag(network, (RACK_0, A))
    network.late[A] = 7 * T
    network.arrives[RACK_0, A] = 0.5  # the others were not sent
    network.read()
    network.silent.add(A)
    network.read(2)
    assert network.told == []
    network.now += 6 * T
    network.told += network.alarm.read(network.reading(A))
    (found,) = network.told
    assert found.cause is Cause.STOPPED


@pytest.mark.parametrize(("arrives", "cause"), [(0.6, Cause.LOSS), (0.75, Cause.QUEUE)])
def test_packets_that_wait_as_a_lag_grows_are_not_lost(arrives: float, cause: Cause) -> None:
    network = Network()
    network.read(6)
    for grows in (6 * T, 2 * T, T):
        lag(network, (RACK_0, A), by=grows)
        network.arrives[RACK_0, A] = arrives * (1 - grows / READ)
        network.read()
    assert [one.cause for one in network.told] == [cause]


def test_one_reading_of_a_hop_is_not_enough_to_know_a_loss() -> None:
    network = Network()
    network.read(6)
    lag(network, (SPINE, RACK_0))
    network.read(2)
    lag(network, (RACK_0, A))
    network.arrives[RACK_0, A] = 0.0
    network.read()
    network.silent.add(RACK_0)
    network.read()
    network.now += T
    network.told += network.alarm.read(network.reading(RACK_1))
    assert [(one.hop, one.cause) for one in network.told] == [(Link(RACK_0, A), Cause.QUEUE)]


def test_a_link_that_lags_no_more_while_it_waits_for_its_hop_is_not_reported() -> None:
    network = Network()
    network.read(6)
    lag(network, (SPINE, RACK_0))
    network.read()
    lag(network, (RACK_0, A))
    network.read(2)
    lag(network, (SPINE, RACK_0), by=-8 * T)
    network.late = dict.fromkeys((SPINE, A, B, RACK_0), 0)  # the spine is read first
    network.read()
    assert [one.link for one in network.told] == [Link(RACK_0, A)]


def test_an_alarm_says_how_far_a_link_is_behind_now() -> None:
    network = Network()
    lag(network, (RACK_0, A))
    network.read(2)
    lag(network, (RACK_0, A), by=-2 * T)
    network.read()
    assert [one.behind for one in network.told] == [6 * T]


def test_two_hops_at_one_switch_have_causes_of_their_own() -> None:
    network = Network()
    others = [process_id(0, serial) for serial in (3, 4, 5)]
    network.age[RACK_0].update(dict.fromkeys(others, T))
    lag(network, (RACK_0, A), (RACK_0, others[0]))  # the controller hears nothing of the second
    network.read(3)
    causes = {one.hop: one.cause for one in network.told}
    assert causes == {Link(RACK_0, A): Cause.QUEUE, Link(RACK_0, others[0]): Cause.STOPPED}


def test_what_comes_back_on_a_link_does_not_say_what_it_loses() -> None:
    network = Network()
    network.read(6)
    lag(network, (SPINE, RACK_0))
    network.arrives[SPINE, RACK_0] = 0.75
    for _ in range(3):
        lag(network, (RACK_0, SPINE), by=3 * T)
        network.read()
    assert [one.cause for one in network.told] == [Cause.QUEUE]


def test_all_links_that_lag_because_of_one_hop_have_one_cause() -> None:
    network = Network()
    network.read(6)
    lag(network, (RACK_0, A))
    network.read(3)
    network.late[A] = 8 * T
    lag(network, (SPINE, RACK_0))
    network.read(4)
    hop = Link(RACK_0, A)
    causes = {one.link: (one.hop, one.cause) for one in network.told}
    assert causes[hop] == causes[Link(SPINE, RACK_0)] == (hop, Cause.QUEUE)


@pytest.mark.parametrize("below", [1, 3, 5])
def test_a_lag_begins_where_most_of_it_is_seen(below: int) -> None:
    """Ages further up are a little larger, and readings are of other moments."""
    network = Network()
    lag(network, (SPINE, RACK_0))
    network.age[SPINE][RACK_0] -= 2 * T - 1  # barely more than five
    network.age[RACK_0][A] += below * T
    network.read(3)
    (one,) = network.told
    assert one.hop == (Link(SPINE, RACK_0) if below < 4 else Link(RACK_0, A))


def test_quiet_networks_report_nothing() -> None:
    network = Network()
    network.read(600)
    assert network.told == []


def test_a_link_that_lags_no_more_or_is_gone_is_told_once() -> None:
    network = Network()
    lag(network, (RACK_0, A), (RACK_1, C))
    network.read(9)
    assert [one.is_over for one in network.told] == [False, False]
    assert network.alarm.lagging.keys() == {Link(RACK_0, A), Link(RACK_1, C)}
    network.age[RACK_0][A] -= 8 * T
    del network.age[RACK_1][C]
    network.read(5)
    over = network.told[2:]
    assert {one.link for one in over} == {Link(RACK_0, A), Link(RACK_1, C)}
    assert all(one.is_over for one in over)
    assert not network.alarm.lagging
    assert network.alarm.reported == 2


def test_nodes_that_are_gone_are_forgotten_as_others_come() -> None:
    network = Network()
    network.read(2)
    network.silent.add(A)
    network.read(4)
    network.late[process_id(1, 9)] = network.clock[process_id(1, 9)] = 0
    network.age[process_id(1, 9)] = {RACK_1: 0}
    network.read(2)
    lag(network, (RACK_0, A))
    network.read(3)
    assert [(one.hop, one.cause) for one in network.told] == [(Link(RACK_0, A), Cause.STOPPED)]


def test_switches_and_processes_of_a_quiet_rack_read_what_is_quiet() -> None:
    rack = OneRack(4)
    alarm = LagAlarm(Topology.tree(1), T)
    rack.run(3)
    told: list[Lagging] = []
    for round in range(30):
        rack.run(10)
        links = {one.neighbour: one for one in rack.switch.read_links(rack.now)}
        assert links.keys() == {1, 2, 3, 4}
        if round >= 15:  # from here on, 3 stands behind by its clock
            links[3] = links[3]._replace(age=links[3].age + 7 * T)
        told += alarm.read(NodeReading(RACK_0, rack.now, rack.now, 0, links))
        for process, endpoint in rack.endpoints.items():
            mine = endpoint.read_link(RACK_0)
            assert mine.sent > 10 * round
            assert links[process].heard == mine.sent
            clock = rack.now - (7 * T if process == 3 and round >= 15 else 0)
            told += alarm.read(NodeReading(process, rack.now, clock, 0, {RACK_0: mine}))
        assert bool(told) == (round >= 17)
    (found,) = told
    assert (found.link, found.cause) == (Link(RACK_0, 3), Cause.CLOCK)


def test_readings_come_as_frames_of_numbers() -> None:
    row = [A, -5, 7, 9]
    frame = {"op": "links", "clock": 100, "late": 3, "links": [row]}
    found = reading_from(RACK_0, 101, frame)
    assert found == NodeReading(RACK_0, 101, 100, 3, {A: LinkReading(A, -5, 7, 9)})
    for wrong in ({"links": None}, {"links": [[1, 2, 3]]}, {"links": [3]}, {"clock": -1},
                  {"late": None}, {"links": [[A, 1 << 70, 1, 1]]}, {"links": [[A, "x", 1, 1]]},
                  {"links": [[A, True, 1, 1]]}):  # fmt: skip
        with pytest.raises(ControlError):
            reading_from(RACK_0, 101, {**frame, **wrong})


def test_a_lagging_link_is_shown_by_names() -> None:
    one = Lagging(Link(SPINE, RACK_0), Link(RACK_0, A), Cause.LOSS, 8 * T, START)
    shown = lagging_to(one, {A: "a"})
    assert shown == {
        "link": ["rack-0", "spine-0"], "hop": ["a", "rack-0"], "cause": "loss", "behind_ms": 8.0,
        "since_ns": START, "over": False,
    }  # fmt: skip
    unnamed = one._replace(hop=Link(RACK_0, B))
    assert lagging_to(unnamed, {})["hop"] == ["process 2", "rack-0"]


def test_what_comes_down_is_no_reason_for_what_goes_up() -> None:
    alarm = LagAlarm(Topology.tree(2, 2), T)
    other = switch_id("spine-1")
    told: list[Lagging] = []
    for now in range(START, START + 4 * READ, READ):
        ages = {A: T, B: T, SPINE: 12 * T, other: 12 * T}
        links = {one: LinkReading(one, age) for one, age in ages.items()}
        told += alarm.read(NodeReading(RACK_0, now, now, 0, links))
        links = {one: LinkReading(one, age) for one, age in ((RACK_0, 9 * T), (RACK_1, 2 * T))}
        told += alarm.read(NodeReading(SPINE, now, now, 0, links))
    (found,) = told
    assert found.link == found.hop == Link(SPINE, RACK_0)


def test_runs_count_as_their_packets_and_fenced_inputs_are_not_read() -> None:
    rack = OneRack(2)
    rack.send(1, Service.RELIABLE, (2, b"a window"))
    rack.run(4)
    before = {one.neighbour: one for one in rack.switch.read_links(rack.now)}
    many = [[(2, b"%03d" % number)] for number in range(50)]
    rack.endpoints[1].send_many(rack.now, Service.RELIABLE, many)
    for data, size in rack.endpoints[1].take_runs():
        rack.switch.receive_run(rack.now, 1, bytearray(data), size)
    links = {one.neighbour: one for one in rack.switch.read_links(rack.now)}
    assert links[1].heard == rack.endpoints[1].read_link(RACK_0).sent
    assert links[1].heard >= before[1].heard + 50
    assert links[2].sent >= before[2].sent + 50
    rack.switch.freeze(rack.now, 2)
    assert [one.neighbour for one in rack.switch.read_links(rack.now)] == [1]
