"""Many groups over few links. Costs are counted in calls and messages, not in time."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest

from weir_raft import (
    Beat,
    BeatReply,
    Change,
    Config,
    LinkMessage,
    MemoryStorage,
    Message,
    Multi,
    Node,
    ReadState,
    Role,
    VoteRequest,
)
from weir_raft.core import Core
from weir_raft.leader import Leader


class Host:
    """One host of many groups, whose disk is quick."""

    def __init__(self, id: int, groups: int, hosts: tuple[int, ...], seed: int) -> None:
        self.id = id
        self.multi = Multi(lambda group, member: member % 100)
        self.nodes: dict[int, Node] = {}
        self.disks: dict[int, MemoryStorage] = {}
        self.random = random.Random(seed * 10 + id).random
        self.links: list[tuple[int, LinkMessage]] = []
        self.mail: list[tuple[int, Message]] = []
        self.reads: list[tuple[int, ReadState]] = []
        for group in range(groups):
            self.add(group, hosts)

    def add(self, group: int, voters: tuple[int, ...]) -> None:
        disk = self.disks[group] = MemoryStorage()
        config = Config(self.id, voters, random=self.random)
        self.nodes[group] = Node(config, disk, self.multi.context(group))
        self.multi.add(group, self.nodes[group])

    def serve(self) -> None:
        while active := self.multi.take_active():
            for group in active:
                self._serve(group, self.nodes[group])
        self.links += self.multi.take_beats()

    def _serve(self, group: int, node: Node) -> None:
        while node.has_ready:
            ready = node.ready()
            self.mail += [(group, message) for message in ready.messages]
            self.reads += [(group, read) for read in ready.reads]
            self.disks[group].save(ready.hard_state, ready.entries)
            if ready.must_persist:
                node.persisted(ready.number)
            if ready.committed:
                node.applied(ready.committed[-1].index)

    def led(self) -> set[int]:
        return {group for group, node in self.nodes.items() if node.role is Role.LEADER}


class Hosts:
    """Three hosts, the links between them, and all that goes over them."""

    def __init__(self, groups: int, seed: int = 1) -> None:
        self.all = {id: Host(id, groups, (1, 2, 3), seed) for id in (1, 2, 3)}
        self.cut: set[tuple[int, int]] = set()
        self.carried = 0
        for one, other in self.pairs():
            self.all[one].multi.link_up(other)

    def pairs(self) -> Iterator[tuple[int, int]]:
        return ((one, other) for one in self.all for other in self.all if one != other)

    def flow(self) -> None:
        for _ in range(100):
            moved = 0
            for host in self.all.values():
                host.serve()
                links, host.links = host.links, []
                mail, host.mail = host.mail, []
                for peer, message in links:
                    if (host.id, peer) not in self.cut:
                        self.all[peer].multi.step_link(host.id, message)
                for group, sent in mail:
                    if (host.id, sent.to) not in self.cut:
                        self.all[sent.to].nodes[group].step(sent)
                moved += len(links) + len(mail)
            self.carried += moved
            if not moved:
                return
        raise AssertionError("it never comes to rest")

    def pass_ms(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 50):
            for host in self.all.values():
                host.multi.tick(50)
            self.flow()

    def break_off(self, one: int, *, tell: bool) -> None:
        for other in self.all:
            if other != one:
                self.cut |= {(one, other), (other, one)}
                if tell:
                    self.all[one].multi.link_down(other)
                    self.all[other].multi.link_down(one)

    def mend(self) -> None:
        self.cut.clear()
        for one, other in self.pairs():
            self.all[one].multi.link_up(other)

    def check(self, groups: int) -> None:
        """Every group has one leader, whom all others follow."""
        for group in range(groups):
            leaders = {host.nodes[group].leader for host in self.all.values()}
            assert len(leaders) == 1, (group, leaders)
            (leader,) = leaders
            assert group in self.all[leader].led()

    def leader(self, group: int) -> Host:
        return next(host for host in self.all.values() if group in host.led())


@pytest.fixture
def hosts() -> Hosts:
    hosts = Hosts(30)
    hosts.pass_ms(3_000)
    hosts.check(30)
    return hosts


def test_groups_where_nothing_happens_cost_nothing(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.pass_ms(500)
    ticks: list[int] = []
    monkeypatch.setattr(Core, "tick", lambda core: ticks.append(core.node_state.id))
    before = hosts.carried
    hosts.pass_ms(10_000)
    assert ticks == []
    # A beat and its answer, each way of three links, ten times a second: however many groups.
    assert hosts.carried - before <= 2 * 6 * 101
    hosts.check(30)


def test_beats_name_the_groups_only_when_they_change(hosts: Hosts) -> None:
    one = hosts.all[1]
    one.multi.tick(200)
    beats = [beat for _, beat in one.multi.take_beats() if isinstance(beat, Beat)]
    assert [beat.led for beat in beats] == [None, None]
    group = min(one.led())
    one.nodes[group].transfer_leadership(2)
    hosts.flow()
    one.multi.tick(200)
    beats = [beat for _, beat in one.multi.take_beats() if isinstance(beat, Beat)]
    assert all(beat.led is not None and {g for g, _, _ in beat.led} == one.led() for beat in beats)


@pytest.mark.parametrize("tell", [True, False])
def test_the_groups_of_a_lost_host_are_led_by_others_soon(hosts: Hosts, tell: bool) -> None:
    lost = hosts.all[1].led()
    assert lost
    terms = {group: node.term for group, node in hosts.all[2].nodes.items()}
    hosts.break_off(1, tell=tell)
    hosts.pass_ms(1_000 if tell else 2_500)
    assert lost <= hosts.all[2].led() | hosts.all[3].led()
    assert hosts.all[1].led() == set()
    for group in set(range(30)) - lost:
        assert hosts.all[2].nodes[group].term == terms[group]
    hosts.mend()
    hosts.pass_ms(3_000)
    hosts.check(30)


def test_a_leader_whose_links_were_silent_before_steps_down_too_when_it_is_cut_off() -> None:
    """While it led nothing it sent no beats, so that no answer to one can be missed later."""
    hosts = Hosts(1)
    hosts.pass_ms(3_000)
    old = hosts.leader(0)
    new = hosts.all[1 if old.id != 1 else 2]
    old.nodes[0].transfer_leadership(new.id)
    while not new.led():
        hosts.flow()
        if not new.led():
            hosts.pass_ms(50)
    new.serve()
    hosts.break_off(new.id, tell=False)
    hosts.pass_ms(1_500)
    assert new.led() == set()


def test_one_broken_link_deposes_nobody(hosts: Hosts) -> None:
    terms = {group: hosts.leader(group).nodes[group].term for group in range(30)}
    hosts.cut |= {(1, 2), (2, 1)}
    hosts.all[1].multi.link_down(2)
    hosts.all[2].multi.link_down(1)
    hosts.pass_ms(10_000)
    assert {group: hosts.leader(group).nodes[group].term for group in range(30)} == terms
    hosts.mend()
    hosts.pass_ms(2_000)
    hosts.check(30)


def test_followers_catch_up_when_their_link_comes_back(hosts: Hosts) -> None:
    group = min(hosts.all[1].led())
    leader = hosts.all[1].nodes[group]
    hosts.break_off(3, tell=True)
    for item in range(10):
        leader.propose(item, 10)
        hosts.flow()
    assert leader.log.committed == leader.log.last_index
    hosts.mend()
    hosts.pass_ms(1_000)
    assert hosts.all[3].nodes[group].log.applied == leader.log.last_index


def test_a_read_sends_its_round_at_once_and_counts_only_later_answers(hosts: Hosts) -> None:
    group = min(hosts.all[1].led())
    one = hosts.all[1]
    one.multi.tick(200)
    old = one.multi.take_beats()
    for peer, message in old:
        hosts.all[peer].multi.step_link(1, message)
    one.nodes[group].read_index(5)
    for peer, _ in old:
        for to, reply in hosts.all[peer].multi.take_beats():
            if to == 1 and isinstance(reply, BeatReply):
                one.multi.step_link(peer, reply)
    one.serve()
    assert one.reads == []
    assert any(isinstance(message, Beat) for _, message in one.links)
    hosts.flow()
    assert one.reads == [(group, ReadState(5, one.nodes[group].log.committed))]


def test_no_read_is_confirmed_by_who_follows_somebody_else(hosts: Hosts) -> None:
    group = min(hosts.all[1].led())
    hosts.break_off(1, tell=False)
    hosts.all[1].nodes[group].read_index(5)
    hosts.pass_ms(3_000)
    hosts.mend()
    hosts.pass_ms(2_000)
    assert hosts.all[1].reads == []


def test_a_group_that_a_peer_lacks_is_named_and_taken_up_when_it_comes(hosts: Hosts) -> None:
    group = min(hosts.all[1].led())
    hosts.all[3].multi.remove(group)
    gone = hosts.all[3].nodes.pop(group)
    hosts.cut.add((1, 3))
    hosts.all[1].nodes[group].propose("x", 1)
    for host in hosts.all.values():
        host.multi.tick(200)
    hosts.all[1].serve()
    for peer, message in hosts.all[1].links:
        hosts.all[peer].multi.step_link(1, message)
    (reply,) = [r for to, r in hosts.all[3].multi.take_beats() if isinstance(r, BeatReply)]
    assert reply.dropped == ((group, 0),)
    hosts.all[1].multi.step_link(3, reply)
    hosts.cut.clear()
    hosts.all[3].nodes[group] = gone
    hosts.all[3].multi.add(group, gone)
    hosts.pass_ms(1_000)
    hosts.check(30)
    assert gone.log.applied == hosts.all[1].nodes[group].log.applied


def test_a_host_that_forgot_what_beats_named_asks_for_it(hosts: Hosts) -> None:
    hosts.all[2].multi.link_down(1)
    hosts.all[2].multi.link_up(1)
    hosts.pass_ms(2_000)
    hosts.check(30)


def test_a_restarted_host_finds_its_place_again(hosts: Hosts) -> None:
    disks = hosts.all[2].disks
    host = Host(2, 0, (), 7)
    for group, disk in disks.items():
        host.disks[group] = disk
        config = Config(2, (1, 2, 3), random=host.random)
        host.nodes[group] = Node(config, disk, host.multi.context(group))
        host.multi.add(group, host.nodes[group])
    for other in (1, 3):
        hosts.all[other].multi.link_down(2)
    hosts.all[2] = host
    hosts.mend()
    hosts.pass_ms(4_000)
    hosts.check(30)
    assert len({node.log.applied for node in (h.nodes[0] for h in hosts.all.values())}) == 1


def test_members_of_a_changed_configuration_are_beaten_for_or_no_more(hosts: Hosts) -> None:
    one = hosts.all[1]
    group = min(one.led())
    one.nodes[group].change(Change(remove=(3,)))
    hosts.pass_ms(500)
    one.multi.tick(200)
    one.nodes[min(one.led() - {group})].transfer_leadership(2)
    hosts.flow()
    one.multi.tick(200)
    named = {
        peer: {g for g, _, _ in beat.led}
        for peer, beat in one.multi.take_beats()
        if isinstance(beat, Beat) and beat.led is not None
    }
    assert group in named[2]
    assert group not in named[3]


def test_a_fence_is_what_a_majority_has_promised(hosts: Hosts) -> None:
    one, two, three = (hosts.all[id].multi for id in (1, 2, 3))
    group = min(hosts.all[1].led())
    one.fence_asked = one.fence_bound = 100
    hosts.pass_ms(200)
    assert one.fenced(group) == 0, "nobody else has promised anything"
    two.fence_bound = 70
    hosts.pass_ms(200)
    assert one.fenced(group) == 70
    three.fence_bound = 200
    hosts.pass_ms(200)
    assert one.fenced(group) == 100, "nobody promises more than it was asked for"
    assert hosts.all[3].nodes[group].fence == 100, "its votes say so"
    assert hosts.all[1].nodes[group].fence == 100, "and so do those of the leader itself"
    one.link_up(2)
    one.link_up(3)
    assert one.fenced(group) == 0, "who was linked anew may have forgotten it"


def test_a_fence_holds_for_what_is_led_and_followed_now(hosts: Hosts) -> None:
    one = hosts.all[1]
    group = min(one.led())
    for host in hosts.all.values():
        host.multi.fence_asked = host.multi.fence_bound = 100
    hosts.pass_ms(200)
    one.nodes[group].transfer_leadership(2)
    hosts.flow()
    assert one.multi.fenced(group) == 0
    hosts.pass_ms(200)
    assert hosts.all[2].multi.fenced(group) == 100


@pytest.mark.parametrize("by_beat", [False, True])
def test_nothing_is_kept_of_who_led_before(hosts: Hosts, by_beat: bool) -> None:
    """It was kept with the snapshot that it was sending, for as long as it led nothing again."""
    one = hosts.all[1]
    group = min(one.led())
    hosts.pass_ms(200)
    one.multi.fenced(group)
    members = one.nodes[group].core.state.members
    if by_beat:
        claimed = (group, one.nodes[group].term + 1, 2)
        one.multi.step_link(2, Beat(1_000, 1_000, (claimed,)))
    else:
        one.nodes[group].transfer_leadership(2)
    hosts.pass_ms(200)
    kept = [found for found in gc.get_objects() if isinstance(found, Leader)]
    assert kept
    assert not any(leader.members is members for leader in kept)


def test_lone_voters_need_no_links() -> None:
    host = Host(1, 0, (), 1)
    for group in range(3):
        host.add(group, (1,))
    host.multi.tick(50)
    host.serve()
    assert host.led() == {0, 1, 2}
    assert host.links == []
    host.multi.remove(1)
    host.multi.remove(1)
    host.multi.tick(50)
    assert host.multi.take_active() == []


def test_fences_of_lone_voters_are_those_of_each() -> None:
    host = Host(1, 0, (), 1)
    multi = host.multi
    for group in range(3):
        host.add(group, (1,))
    multi.fence_asked, multi.fence_bound = 100, 70
    assert list(multi.fences(range(3))) == [0, 0, 0], "nobody leads yet"
    multi.tick(50)
    host.serve()
    for asked, bound, told in ((100, 70, 70), (100, 70, 70), (100, 200, 100), (300, 200, 200)):
        multi.fence_asked, multi.fence_bound = asked, bound
        assert list(multi.fences(range(3))) == [told] * 3
        assert host.nodes[2].fence == told, "its votes say so"
    host.nodes[0].change(Change(add_voters=(2,)))
    assert list(multi.fences([0])) == [0], "nobody else has promised anything"
    leading = host.nodes[1]
    leading.step(VoteRequest(1, 2, leading.term + 1, 99, 99, forced=True))
    assert leading.role is Role.FOLLOWER
    assert list(multi.fences(range(3))) == [multi.fenced(group) for group in range(3)]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_links_there_is_one_leader_a_term(seed: int) -> None:
    hosts = Hosts(8, seed)
    dice = random.Random(seed)
    leaders: dict[tuple[int, int], int] = {}
    for step in range(150):
        draw = dice.random()
        if draw < 0.1:
            hosts.break_off(dice.choice((1, 2, 3)), tell=dice.random() < 0.5)
        elif draw < 0.2:
            one, other = dice.sample((1, 2, 3), 2)
            hosts.cut.add((one, other))
            if dice.random() < 0.5:
                hosts.all[other].multi.link_down(one)
        elif draw < 0.35:
            hosts.mend()
        elif draw < 0.5:
            host = hosts.all[dice.choice((1, 2, 3))]
            for group in sorted(host.led()):
                if host.nodes[group].accepts:
                    host.nodes[group].propose("x", 10)
        hosts.pass_ms(dice.choice((50, 100, 400)))
        for host in hosts.all.values():
            groups = sorted(host.led())
            host.multi.fence_asked = host.multi.fence_bound = step
            fences = list(host.multi.fences(groups))
            assert fences == [host.multi.fenced(group) for group in groups]
            for group in groups:
                term = host.nodes[group].term
                assert leaders.setdefault((group, term), host.id) == host.id
    hosts.mend()
    hosts.pass_ms(5_000)
    hosts.check(8)
    for group in range(8):
        assert len({host.nodes[group].log.applied for host in hosts.all.values()}) == 1
