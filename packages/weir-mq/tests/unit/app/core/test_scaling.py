"""How many processes are wanted: a cluster that is only counted, with processes that only count."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.app.core.scaling import DRAIN, Look, Scaling

START_SECONDS = 1.0


class World:
    """Messages come, and each process does `each` of them a second, a while after it began."""

    def __init__(self, scaling: Scaling, each: float, useful: int | None = None) -> None:
        self.scaling = scaling
        self.now = 0.0
        self.waiting = 0.0
        self.changes: list[tuple[float, int]] = []
        self.why = ""
        self.each = each
        self._useful = useful
        self._published = 0.0
        self._begun = [0.0] * scaling.wanted

    def publish(self, messages: float) -> None:
        self._published += messages
        self.waiting += messages

    def run(self, seconds: float, comes: float = 0.0, jitter: float = 0.0) -> None:
        end = self.now + seconds
        turn = 0
        while self.now < end:
            self.now += 1.0
            turn += 1
            self.publish(comes * (1 + jitter * (-1) ** turn))
            lived = [min(max(self.now - t - START_SECONDS, 0.0), 1.0) for t in self._begun]
            self.waiting = max(self.waiting - sum(lived) * self.each, 0.0)
            self.look()

    def look(self) -> None:
        before, waiting = self.scaling.wanted, int(self.waiting)
        seen = (int(self._published), waiting, waiting, len(self._begun), 2, self._useful)
        decision = self.scaling.decide(Look(self.now, *seen))
        self.why = decision.why
        assert decision.wanted == self.scaling.wanted
        if decision.wanted != before:
            self.changes.append((self.now, decision.wanted))
            kept = self._begun[: decision.wanted]
            self._begun = kept + [self.now] * (decision.wanted - len(kept))


def test_a_great_backlog_has_all_processes_within_seconds() -> None:
    world = World(Scaling(1, 8), each=500)  # 2 ms a message
    world.publish(100_000)
    world.run(10)
    ((when, wanted),) = world.changes
    assert (wanted, when <= 6) == (8, True)


def test_what_waits_is_done_soon_and_then_the_least_are_enough() -> None:
    world = World(Scaling(1, 8, cool_down=30), each=500)
    world.publish(20_000)
    world.run(60)
    wanted = [wanted for _, wanted in world.changes]
    assert (wanted[0], wanted[-1]) == (5, 1)
    assert wanted == sorted(wanted, reverse=True)
    assert world.changes[1][0] >= world.changes[0][0] + 30
    assert "0 wait" in world.why


def test_it_says_why_and_that_more_than_the_most_are_needed() -> None:
    world = World(Scaling(1, 2), each=10)
    world.publish(10_000)
    whys = set[str]()
    for _ in range(8):
        world.run(1)
        whys.add(world.why)
    assert any("a process does 10/s" in why and "are needed, 2 are the most" in why for why in whys)


def test_bursts_within_the_cool_down_keep_what_they_need() -> None:
    world = World(Scaling(1, 8, cool_down=30), each=100)
    for _ in range(10):
        world.publish(6_000)
        world.run(20)
    assert [wanted for _, wanted in world.changes] == [7, 8]
    world.run(60)
    assert world.scaling.wanted == 1


def test_one_look_after_a_while_without_any_ends_no_process() -> None:
    world = World(Scaling(1, 8, cool_down=30), each=500)
    world.publish(100_000)
    world.run(20)
    assert world.scaling.wanted == 8
    world.now += 300  # the brokers were away, and all was done meanwhile
    world.waiting = 0
    world.run(29)
    assert world.scaling.wanted == 8
    world.run(10)
    assert world.scaling.wanted == 1


def test_where_nothing_is_done_more_processes_would_not_help() -> None:
    world = World(Scaling(1, 8), each=100)
    world.publish(1_000)
    world.run(4)
    world.each = 0.0  # the database is away
    world.run(4)
    kept = world.scaling.wanted
    world.run(60, comes=1_000)
    assert world.scaling.wanted == kept
    assert "none is done" in world.why


def test_nothing_is_decided_before_a_process_has_shown_what_it_does() -> None:
    world = World(Scaling(2, 8), each=0)
    world.publish(100_000)
    world.run(60)
    assert world.changes == []
    assert "not known yet" in world.why


def test_idle_processes_say_nothing_of_what_they_could_do() -> None:
    world = World(Scaling(1, 8), each=100)
    world.publish(500)
    world.run(120, comes=5)
    world.run(600, comes=80)  # far more than they were seen to do while they idled
    assert world.scaling.wanted == 1


def test_more_than_can_be_used_are_not_wanted() -> None:
    world = World(Scaling(1, 8), each=10, useful=3)
    world.publish(10_000)
    world.run(20)
    assert world.scaling.wanted == 3


def test_a_cluster_that_is_sought_back_is_no_negative_work() -> None:
    scaling = Scaling(1, 4)
    scaling.decide(Look(0, 1_000, 500, 400, 1, 2))
    for second in range(1, 6):
        scaling.decide(Look(second, 1_000, 500 - 10 * second, 400, 1, 2))
    for second in range(6, 12):
        decision = scaling.decide(Look(second, 1_000, 1_000, 900, 1, 2))
        assert 1 <= decision.wanted <= 4
        assert "-" not in decision.why


def test_what_lay_there_when_a_cluster_began_did_not_come_just_now() -> None:
    scaling = Scaling(1, 4)
    scaling.decide(Look(0, 0, 0, 0, 1, 0))
    for second in range(1, 6):
        left = 100_000 - 100 * second
        why = scaling.decide(Look(second, 100_000, left, left, 1, 2)).why
    assert why.startswith("99,500 wait, 0/s come, a process does 100/s")


def test_looks_without_time_between_them_change_nothing() -> None:
    scaling = Scaling(1, 4)
    for _ in range(3):
        assert scaling.decide(Look(5.0, 10, 10, 10, 1, 2)).wanted == 1


@pytest.mark.parametrize(("least", "most"), [(0, 1), (3, 2), (-1, -1)])
def test_bounds_that_cannot_be_kept_are_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match=f"{least} to {most} processes"):
        Scaling(least, most)


@given(
    each=st.floats(1, 5_000),
    of_most=st.floats(0, 2),
    jitter=st.floats(0, 0.1),
    most=st.integers(1, 16),
    backlog=st.integers(0, 100_000),
)
def test_a_steady_load_has_enough_processes_and_never_flaps(
    each: float, of_most: float, jitter: float, most: int, backlog: int
) -> None:
    world = World(Scaling(1, most, cool_down=30), each)
    comes = of_most * most * each
    world.publish(backlog)
    world.run(200, comes, jitter)
    wanted = [1, *(wanted for _, wanted in world.changes)]
    # Up, and once down behind the backlog: never up again after it went down.
    turns = [b > a for a, b in pairwise(wanted)]
    assert turns == sorted(turns, reverse=True)
    assert all(1 <= one <= most for one in wanted)
    if of_most < 0.8:
        assert world.scaling.wanted * each >= comes
    if of_most > 1.1:
        assert world.scaling.wanted == most


@given(looks=st.lists(st.tuples(*[st.integers(0, 10**9)] * 3, st.integers(0, 9)), max_size=60))
def test_whatever_is_seen_bounds_are_kept_and_fewer_come_only_after_the_cool_down(
    looks: list[tuple[int, int, int, int]],
) -> None:
    scaling = Scaling(2, 5, cool_down=DRAIN)
    raised = 0.0
    for second, (published, left, waiting, present) in enumerate(looks):
        before = scaling.wanted
        wanted = scaling.decide(Look(second, published, left, waiting, present, 2)).wanted
        assert 2 <= wanted <= 5
        assert wanted >= before or second - raised >= DRAIN
        if wanted > before:
            raised = second


def test_a_rate_is_learnt_only_where_what_waited_was_worth_half_of_what_was_done() -> None:
    """One message that waits beside a hundred that were done does not show that all were at work:
    processes that have little to do would look slow, and more of them would be wanted.
    """

    def known(waiting: int, done: int) -> bool:
        scaling = Scaling(1, 8)
        for second in range(8):
            why = scaling.decide(
                Look(1.0 + second, (second + 1) * done, waiting, waiting, 1, 2)
            ).why
        return "not known yet" not in why

    assert known(waiting=50, done=100)
    assert not known(waiting=49, done=100)
    assert not known(waiting=1, done=100)
