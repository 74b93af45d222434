"""How a group gets from who has it to who is to have it: one safe step after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir_raft as raft
from weir.broker.api.settings import Identity, Layout
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.membership import Membership
from weir.broker.metadata.placement import Nodes
from weir.broker.metadata.reassignment import (
    LOOK_AT,
    STEADY_MS,
    GroupMover,
    Transfer,
    give_away,
    heir,
    next_step,
    report_of,
)
from weir.broker.records.registry import GroupsPlaced, GroupsSettled, NodeJoined, NodeRecord
from weir.errors import Unavailable
from weir.model.ids import REGISTRY_GROUP, voter_of
from weir.protocol.client.nodes import ReportLost, ReportSettled
from weir_raft.membership import Change, Configuration
from weir_raft.replication import Progress, ProgressState

A, B, C, D, E = (voter_of(node) for node in (1, 2, 3, 4, 5))


def everybody(_: int) -> bool:
    return True


def nobody(_: int) -> bool:
    return False


def step(
    me: int,
    now: Configuration,
    voters: tuple[int, ...],
    learners: tuple[int, ...] = (),
    is_current: Callable[[int], bool] = everybody,
    is_near: Callable[[int], bool] = everybody,
) -> Change | Transfer | None:
    return next_step(me, now, voters, learners, is_current, is_near)


def test_a_newcomer_learns_before_it_votes() -> None:
    now = Configuration((A, B, C))
    assert step(A, now, (A, B, D)) == Change(add_learners=(D,))
    learning = Configuration((A, B, C), (), (D,))
    assert step(A, learning, (A, B, D), is_current=lambda member: member != D) is None
    assert step(A, learning, (A, B, D)) == Change((D,), (), (C,))
    assert step(A, Configuration((A, B, D)), (A, B, D)) is None


def test_nothing_is_done_while_a_change_is_under_way() -> None:
    joint = Configuration((A, B, D), (A, B, C))
    assert step(A, joint, (A, B, C)) is None


def test_a_leader_that_is_to_go_hands_over_first() -> None:
    assert step(A, Configuration((A, B, C)), (B, C)) == Transfer(B)
    assert step(A, Configuration((A, B, C)), (B, C), is_near=lambda m: m == C) == Transfer(C)
    assert step(A, Configuration((A, B, C)), (B, C), is_near=nobody) is None
    assert step(B, Configuration((A, B, C)), (B, C)) == Change((), (), (A,))


def test_a_lone_leader_that_is_to_go_lets_others_vote_first() -> None:
    now = Configuration((A,), (), (B,))
    assert step(A, now, (B,)) == Change(add_voters=(B,))
    assert step(A, Configuration((A, B)), (B,)) == Transfer(B)


def test_the_registry_is_learnt_by_those_who_do_not_vote() -> None:
    now = Configuration((A, B, C))
    assert step(A, now, (A, B, C), (D,)) == Change(add_learners=(D,))
    assert step(A, Configuration((A, B, C), (), (D,)), (A, B, C), (D,)) is None
    swapped = step(A, Configuration((A, B, C), (), (D,)), (A, B, D), (C,))
    assert swapped == Change((D,), (C,), ())


def test_votes_count_anew_only_where_a_majority_has_all_that_is_committed() -> None:
    learning = Configuration((A, B, C), (), (D,))
    assert step(A, learning, (A, C, D), is_near={A, B}.__contains__) is None
    assert step(A, learning, (A, C, D), is_near={A, C}.__contains__) == Change((D,), (), (B,))
    lone = Configuration((A,), (), (B,))
    assert step(A, lone, (B,), is_near={A}.__contains__) is None
    assert step(A, lone, (A, B), is_near={A}.__contains__) is None


def test_another_incarnation_takes_the_place_of_the_first() -> None:
    again = voter_of(3, 1)
    now = Configuration((A, B, C))
    assert step(A, now, (A, B, again)) == Change(add_learners=(again,))
    learning = Configuration((A, B, C), (), (again,))
    assert step(A, learning, (A, B, again)) == Change((again,), (), (C,))


MEMBERS = st.sets(st.sampled_from([A, B, C, D, voter_of(3, 1)]), min_size=1)


@given(before=MEMBERS, learners=MEMBERS, after=MEMBERS)
def test_it_always_gets_there_and_voters_are_always_up_to_date(
    before: set[int], learners: set[int], after: set[int]
) -> None:
    now = Configuration(tuple(sorted(before)), (), tuple(sorted(learners - before)))
    wanted = tuple(sorted(after))
    leader = now.voters[0]
    current = set(now.voters)
    for _ in range(10):
        step = next_step(leader, now, wanted, (), current.__contains__, current.__contains__)
        if isinstance(step, Transfer):
            assert step.voter in now.voters
            leader = step.voter
        elif isinstance(step, Change):
            assert set(step.add_voters) <= current
            now = now.changed(step)
            if now.joint:
                now = now.left()
            assert leader in now.voters
        else:
            current |= set(now.learners)  # time passes
    assert set(now.members) == set(now.voters) == after


@dataclass(slots=True)
class FakeNode:
    """What `GroupMover` asks of a group's Raft node."""

    configuration: Configuration
    match: dict[int, int] = field(default_factory=dict)
    #: Through which entry all is on its way to everybody.
    sent: int = 1_000
    log: Any = field(default_factory=lambda: SimpleNamespace(committed=1_000))
    asked: list[object] = field(default_factory=list)
    busy: bool = False
    state: ProgressState = ProgressState.REPLICATE

    def progress(self) -> tuple[Progress, ...]:
        sent, state = self.sent, self.state
        return tuple(Progress(m, at, state, 0, max(at, sent)) for m, at in self.match.items())

    def change(self, change: Change) -> int:
        if self.busy:
            raise raft.NotReady("not now")
        self.asked.append(change)
        return 1

    def transfer_leadership(self, voter: int) -> None:
        self.asked.append(Transfer(voter))


class Clock:
    now = 0

    def monotonic_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.now


def placed(**placements: tuple[int, ...]) -> Nodes:
    nodes = Nodes()
    for node in (1, 2, 3, 4):
        nodes.apply(NodeJoined(node, "h", node, 1, 1))
    nodes.place_new([1 << 16 | n for n in range(len(placements))], 3)
    rows = [(1 << 16 | n, to) for n, to in enumerate(placements.values())]
    nodes.apply(GroupsPlaced(rows))
    return nodes


@dataclass(slots=True)
class FakeGroup:
    """A group that is led here, by `voter`."""

    voter: int
    node: Any
    id: int = 1 << 16

    @property
    def machine(self) -> FakeGroup:
        return self

    def changing(self) -> None:
        """It has promised nothing to anybody."""

    def process_ready(self) -> None:
        """There is nothing to go on with."""


def test_leadership_drifts_back_once_the_preferred_leader_has_long_been_up_to_date() -> None:
    clock = Clock()
    moving = GroupMover(clock)
    nodes = placed(one=(A, B, C))
    node = FakeNode(Configuration((A, B, C)), {A: 900, C: 1_000})
    moving.look([FakeGroup(B, node)], nodes)
    clock.now = STEADY_MS - 1
    moving.look([FakeGroup(B, node)], nodes)
    assert node.asked == []
    clock.now = STEADY_MS
    moving.look([FakeGroup(B, node)], nodes)
    assert node.asked == [], "it has acknowledged nothing since: its disk hangs, perhaps"
    node.match[A], node.sent, node.log.committed = 1_000, 1_100, 1_100
    moving.look([FakeGroup(B, node)], nodes)
    assert node.asked == [Transfer(A)]


def test_leadership_stays_while_the_preferred_leader_lags() -> None:
    clock = Clock()
    moving = GroupMover(clock)
    nodes = placed(one=(A, B, C))
    node = FakeNode(Configuration((A, B, C)), {A: 10, C: 1_000})
    for clock.now in range(0, 4 * STEADY_MS, 500):
        moving.look([FakeGroup(B, node)], nodes)
    assert node.asked == []


def test_nobody_leads_or_votes_who_is_yet_to_be_sent_what_is_committed() -> None:
    """The group stands still while they catch up: 200 entries may take a long while."""
    nodes = placed(one=(B, C), two=(A, B, D))
    leaving = FakeNode(Configuration((A, B, C)), {B: 800, C: 990}, sent=850)
    joining = FakeNode(Configuration((A, B, C), (), (D,)), {B: 990, C: 1_000, D: 990}, sent=995)
    groups = [FakeGroup(A, leaving), FakeGroup(A, joining, (1 << 16) + 1)]
    GroupMover(Clock()).look(groups, nodes)
    give_away(groups[:1])
    assert (leaving.asked, joining.asked) == ([], [])
    leaving.match[C] = joining.sent = 1_000
    GroupMover(Clock()).look(groups, nodes)
    give_away(groups[:1])
    assert leaving.asked == [Transfer(C), Transfer(C)]
    assert joining.asked == [Change((D,), (), (C,))]


def test_only_one_leadership_a_second_drifts_back() -> None:
    clock = Clock()
    moving = GroupMover(clock)
    nodes = placed(one=(A, B, C), two=(A, C, B))
    both = [FakeNode(Configuration((A, B, C)), {A: 1_000}) for _ in range(2)]
    groups = [FakeGroup(B, both[0]), FakeGroup(B, both[1], (1 << 16) + 1)]
    moving.look(groups, nodes)
    clock.now = STEADY_MS
    moving.look(groups, nodes)
    assert [len(node.asked) for node in both] == [1, 0]


def test_few_groups_learn_at_a_time() -> None:
    nodes = placed(**{str(n): (A, B, D) for n in range(10)})
    moving = GroupMover(Clock())
    fakes = [FakeNode(Configuration((A, B, C)), {B: 1_000, C: 1_000}) for _ in range(10)]
    moving.look([FakeGroup(A, fake, (1 << 16) + n) for n, fake in enumerate(fakes)], nodes)
    assert sum(bool(fake.asked) for fake in fakes) == 4
    assert moving.moving == 10


def test_a_leader_that_cannot_change_yet_is_asked_again() -> None:
    nodes = placed(one=(A, B, D))
    moving = GroupMover(Clock())
    node = FakeNode(Configuration((A, B, C)), {B: 1_000, C: 1_000}, busy=True)
    moving.look([FakeGroup(A, node)], nodes)
    node.busy = False
    moving.look([FakeGroup(A, node)], nodes)
    assert node.asked == [Change(add_learners=(D,))]


def test_each_group_has_its_turn_and_those_with_something_to_do_have_it_always() -> None:
    clock, nodes = Clock(), placed(**{str(n): (A, B, C) for n in range(2)}, gone=(A, B, D))
    moving = GroupMover(clock)
    here = [(1 << 16) + n for n in range(5, 2 * LOOK_AT + 10)]
    astray = FakeGroup(A, FakeNode(Configuration((A, B, C)), {B: 0, C: 0}), (1 << 16) + 2)
    steady = FakeGroup(B, FakeNode(Configuration((A, B, C)), {A: 1_000}), (1 << 16) + 1)
    moving.look([astray, steady], nodes)
    assert moving.moving == 1
    always = {REGISTRY_GROUP, astray.id, steady.id, 7 << 16}
    seen: list[int] = []
    for _ in range(3):
        turn = moving.turn(iter(here), [7 << 16])
        assert turn == sorted(turn)
        assert always <= set(turn)
        assert len(turn) <= LOOK_AT + len(always)
        seen += sorted(set(turn) - always)
    assert seen == here
    moving.look([], nodes)
    assert moving.moving == 0
    assert set(moving.turn(iter([]), ())) == {REGISTRY_GROUP}, "they are led here no more"


def test_who_a_group_moves_to_comes_back_though_others_leave_and_one_at_a_time() -> None:
    """The group waited for who was damaged while it learnt, and that one for the group."""
    group, catalog, proposed = 1 << 16, Catalog(), list[NodeRecord]()
    catalog.nodes = nodes = placed(one=(A, B, C))
    nodes.apply(GroupsSettled([(group, (A, B, C))]))
    nodes.apply(GroupsPlaced([(group, (B, C, D))]))
    assert nodes.leaving(group) == (A,)

    def propose(record: NodeRecord) -> int:
        proposed.append(record)
        return len(proposed)

    unheard: Any = None
    log = SimpleNamespace(propose=propose)
    registry = Membership(catalog, Identity(7, node=1), Layout(2, 2), 1, unheard, log)
    registry.take_report(ReportLost(group, D))
    again = voter_of(4, 1)
    assert proposed == [GroupsPlaced([(group, (B, C, again))])]
    registry.apply(1, proposed[0])
    registry.take_report(ReportLost(group, B))
    assert len(proposed) == 1, "what B has left may be what D lacks"
    nodes.apply(GroupsSettled([(group, (B, C, again))]))
    registry.take_report(ReportLost(group, B))
    assert proposed[1:] == [GroupsPlaced([(group, (voter_of(2, 1), C, again))])]


def test_two_that_are_damaged_while_they_learn_do_not_wait_for_each_other() -> None:
    """Who came back waited for the group to arrive, the group for the other one, which was to come
    back once the first had: for good.
    """
    group, catalog, proposed = 1 << 16, Catalog(), list[NodeRecord]()
    catalog.nodes = nodes = placed(one=(A, B, C))
    nodes.apply(GroupsSettled([(group, (A, B, C))]))
    nodes.apply(GroupsPlaced([(group, (C, D, E))]))

    def propose(record: NodeRecord) -> int:
        proposed.append(record)
        return len(proposed)

    unheard: Any = None
    log = SimpleNamespace(propose=propose)
    registry = Membership(catalog, Identity(7, node=1), Layout(2, 2), 1, unheard, log)

    def hear(report: ReportLost | ReportSettled) -> None:
        registry.take_report(report)
        for at, record in enumerate(proposed, 1):
            registry.apply(at, record)
        proposed.clear()

    d, e = voter_of(4, 1), voter_of(5, 1)
    hear(ReportSettled([], [(group, [D, E])]))
    hear(ReportLost(group, D))
    assert nodes.voters(group) == (C, d, E)
    hear(ReportLost(group, E))
    assert nodes.voters(group) == (C, d, E), "it may vote, and have what D lacks"
    # Its leader knows of the one that comes back, and neither has a vote yet.
    learning = Configuration((A, B, C), (), (D, E, d))
    assert step(A, learning, nodes.voters(group), is_current=lambda m: m != E) is None
    hear(ReportSettled([], [(group, [*learning.learners])]))
    hear(ReportLost(group, E))
    assert nodes.voters(group) == (C, d, e)
    # What was said of others says nothing of those that came since.
    hear(ReportLost(group, d))
    assert nodes.voters(group) == (C, d, e)


def test_leaders_tell_who_votes_where_a_group_arrived_and_who_learns_where_one_comes_back() -> None:
    again = voter_of(3, 1)
    nodes = placed(there=(A, B, C), back=(A, B, again), moves=(A, B, D), joint=(A, B, again))
    for number, before in ((0, D), (1, C), (2, C), (3, C)):
        voters = nodes.voters(1 << 16 | number)
        nodes.apply(GroupsPlaced([(1 << 16 | number, (A, B, before))]))
        nodes.apply(GroupsPlaced([(1 << 16 | number, voters)]))
    configurations = [
        Configuration((B, A, C)),
        Configuration((A, B, C), (), (again,)),
        Configuration((A, B, C), (), (D,)),
        Configuration((A, B, again), (A, B, C)),
    ]
    led = [FakeGroup(A, FakeNode(one), 1 << 16 | n) for n, one in enumerate(configurations)]
    back = (led[1].id, [again])
    assert report_of(led, nodes) == ReportSettled([(led[0].id, [B, A, C])], [back])
    assert report_of(led[2:], nodes) is None


def test_who_is_catching_up_is_handed_nothing_and_who_is_probed_as_before() -> None:
    """Nothing would be taken in until it has all, or Raft gives up."""
    node = FakeNode(Configuration((A, B, C)), {B: 1_000, C: 100}, sent=0)
    group, nodes = FakeGroup(A, node), placed(one=(C, A, B))
    for to in (0, 3):
        with pytest.raises(Unavailable, match=r"node 3 lacks entries .* once it has caught up"):
            heir(group, to, nodes)
    assert heir(group, 2, nodes) == B
    assert heir(group, 1, nodes) == A
    node.sent = 1_000  # all is on its way, and it lacks too much still
    with pytest.raises(Unavailable):
        heir(group, 3, nodes)
    node.match[C] = 990
    assert heir(group, 3, nodes) == heir(group, 0, nodes) == C
    node.match[C] = 100
    node.state = ProgressState.PROBE
    assert heir(group, 3, nodes) == C
    node.state = ProgressState.SNAPSHOT
    with pytest.raises(Unavailable):
        heir(group, 3, nodes)
