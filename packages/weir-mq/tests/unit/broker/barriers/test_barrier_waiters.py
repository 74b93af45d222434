"""Those who wait for a topic's order, and what a shard keeps of its partitions meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rigs.shards import deadlines_of
from weir.broker.barriers import topic_order as room
from weir.broker.barriers.topic_order import (
    BarrierWaiter,
    BarrierWaiters,
    LedPartition,
    OrderPlan,
    Scope,
    TopicOrder,
)
from weir.broker.runtime.outbox import Caller
from weir.errors import Overloaded
from weir.order.barrier import Barrier


def waiter(stamp: int, deadline_ms: int = 100, session: int = 1, after: int = -1) -> BarrierWaiter:
    return BarrierWaiter(7, Scope.ALL, stamp, deadline_ms, Caller(session, 0, 0), None, after)


def test_waiters_end_in_the_order_of_their_deadlines() -> None:
    waiters = BarrierWaiters()
    ends = [waiter(1, ms) for ms in (300, 100, 200)]
    for one in ends:
        waiters.add(one)
    assert waiters.ended(99) == []
    assert waiters.ended(200) == [ends[1], ends[2]]
    assert [one.is_over for one in ends] == [False, True, True]
    assert list(waiters.waiting.values()) == ends[:1]


def test_a_peer_that_is_gone_is_forgotten() -> None:
    waiters = BarrierWaiters()
    mine, other = waiter(1), waiter(1, session=2)
    waiters.add(mine)
    waiters.add(other)
    waiters.session_closed(1)
    waiters.session_closed(9)
    assert mine.is_over
    assert waiters.ended(1_000) == [other]


def test_deadlines_of_those_who_were_told_do_not_pile_up() -> None:
    waiters = BarrierWaiters()
    for n in range(5_000):
        waiters.add(waiter(n, 60_000))
        waiters.take(n)
    assert len(deadlines_of(waiters)) < 200


def test_no_more_wait_than_peers_may_be_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CONNECTIONS_MAX", 2)
    waiters = BarrierWaiters()
    waiters.add(waiter(1))
    waiters.check_room()
    waiters.add(waiter(1))
    with pytest.raises(Overloaded):
        waiters.check_room()


def led(partition: int, stamp: int, roster: Any = (), ends: Any = ()) -> LedPartition:
    leading: Any = SimpleNamespace(barrier=lambda fenced: Barrier(max(stamp, fenced), 5))
    membership = SimpleNamespace(joined=roster, ends=dict(ends))
    state: Any = SimpleNamespace(membership=membership, last_stamp=stamp)
    return LedPartition(partition, partition, leading, state)


def order(*here: LedPartition, others: tuple[int, ...] = (), **places: int) -> TopicOrder:
    found = TopicOrder(7, Scope.ALL)
    known = {int(name[1:]): place for name, place in places.items()}
    everything = sorted([one.partition for one in here] + list(others))
    found.take_plan(OrderPlan(everything, list(here), list(others), known), (0, 0))
    return found


def nothing(groups: Iterable[int]) -> Iterator[int]:
    return (0 for _ in groups)


def test_all_partitions_must_be_there() -> None:
    one = order(led(0, 50), led(1, 70), others=(2,), p2=9)
    assert one.is_behind(waiter(50), nothing), "nothing is known of partition 2"
    one.take([(2, 60, 3)])
    assert not one.is_behind(waiter(50), nothing)
    assert one.is_behind(waiter(55), nothing), "partition 0 is at 50"
    assert one.to_ask() == (True, set())
    assert not one.is_behind(waiter(55), lambda groups: [55 for _ in groups])


def held(partition: int, stamp: int, given: int, under_way: int = 0) -> LedPartition:
    """Return a partition that what is undecided holds at `stamp`, below what it has given."""
    barrier = Barrier(stamp, 5)
    appender = SimpleNamespace(highest_under_way=under_way)
    leading: Any = SimpleNamespace(barrier=lambda fenced: barrier, appender=appender)
    return led(partition, given)._replace(leading=leading)


def given_waiter(stamp: int, number: int) -> BarrierWaiter:
    found = waiter(stamp, after=0)
    found.given, found.number = {}, number
    return found


def test_partitions_must_be_at_what_they_have_given_if_that_is_higher() -> None:
    one, first = order(held(0, 60, 70)), given_waiter(50, 1)
    assert one.is_behind(first, nothing)
    one.plan.led[:] = one.behind_here[:] = [held(0, 70, 90)]
    assert not one.is_behind(first, nothing), "what came since is not waited for"
    assert one.is_behind(given_waiter(50, 2), nothing), "it came before this one asked"
    assert order(held(0, 60, 60, under_way=70)).is_behind(given_waiter(50, 1), nothing)


def test_who_leads_since_must_be_at_what_it_has_given() -> None:
    one, first = order(held(0, 60, 60)), given_waiter(50, 1)
    assert not one.is_behind(first, nothing)
    one.take_plan(OrderPlan([0, 1], [held(0, 60, 90), held(1, 60, 70)], [], {}), (1, 2))
    assert one.is_behind(first, nothing)
    one.take_plan(OrderPlan([0], [held(0, 60, 90)], [], {}), (2, 2))
    assert not one.is_behind(first, nothing), "it was asked before"


def test_those_who_lead_what_is_behind_are_asked_once_each() -> None:
    one = order(others=(0, 1, 2, 3), p0=9, p1=9, p2=8)
    assert one.is_behind(waiter(50), nothing)
    assert one.to_ask() == (False, {8, 9})
    one.take([(2, 60, 1), (3, 60, 1)])
    assert one.is_behind(waiter(50), nothing)
    assert one.to_ask() == (False, {9})


def test_registers_only_rise() -> None:
    one = order(others=(0,))
    one.take([(0, 60, 8)])
    one.take([(0, 40, 9)])
    assert one.registers[0] == Barrier(60, 8)


def test_who_asks_anew_takes_no_answer_to_an_earlier_question() -> None:
    one = order(others=(0,), p0=9)
    one.take([(0, 60, 1)], query=4)
    assert not one.is_behind(waiter(50), nothing)
    assert one.is_behind(waiter(50, after=4), nothing)
    one.take([(0, 60, 1)], query=5)
    assert not one.is_behind(waiter(50, after=4), nothing)


def test_the_lowest_stamp_comes_first_and_those_who_left_do_not_come() -> None:
    one = order()
    high, low, gone = waiter(90), waiter(20), waiter(10)
    for number, each in enumerate((high, low, gone)):
        each.number = number
        one.queue.add(each)
    gone.is_over = True
    assert one.queue.next() is low
    low.is_over = True
    assert one.queue.next() is high


def test_who_joined_is_learnt_with_the_barrier_that_may_lie_above() -> None:
    one = order(led(0, 50, roster=[(3, 40)]))
    one.is_behind(waiter(50), nothing)
    assert one.roster == ((3, 40),)
    one.learn(())
    assert one.roster == ((3, 40),)


def test_nobody_waits_for_who_has_ended() -> None:
    one = order(led(0, 50, ends={2: (40, 9)}), others=(1, 2), p1=8, p2=9)
    assert one.is_behind(waiter(50), nothing), "nothing is known of partition 1"
    assert one.to_ask() == (False, {8})
    one.take([(1, 60, 0)])
    assert not one.is_behind(waiter(50), nothing)
    assert one.known(50) == [(0, 50, 5), (1, 60, 0), (2, 50, 9)], "up to any stamp, if it ended"
    assert one.known(30) == [(0, 50, 5), (1, 60, 0), (2, 40, 9)]


def test_who_leads_what_has_ended_promises_nothing_for_it() -> None:
    one = order(led(1, 20))
    one.learn_end(1, 30, 9)
    assert one.to_ask() == (False, set())
    assert not one.is_behind(waiter(50, after=3), nothing)


def test_a_mark_leaves_out_only_what_is_known_to_have_nothing_above_the_last() -> None:
    one = order(led(0, 50), led(1, 70), others=(2,))
    one.take([(2, 60, 3)])
    one.is_behind(waiter(40), nothing)
    assert one.mark(0) == (50, [(0, 5), (1, 5), (2, 3)])
    assert one.mark(60) == (50, [(1, 5), (2, 3)]), "who told of 2 did not say what is stamped how"
    one.take([(1, 90, 9)])  # another node leads it by now
    assert one.mark(80) == (50, [(1, 9), (2, 3)])
    one.learn_end(0, 45, 5)
    assert one.mark(45) == (60, [(1, 9), (2, 3)])
    one.learn_end(1, 90, 9)
    one.learn_end(2, 60, 3)
    assert one.mark(60) == (90, [(1, 9)]), "all have ended"


def test_those_who_are_parked_wait_for_what_others_wait_for() -> None:
    one = order(led(0, 50))
    early, late, gone = (BarrierWaiter(7, Scope.ALL, 0, 9, Caller(1, 0, 0), above=above)
                         for above in (10, 60, 10))  # fmt: skip
    for parked in (early, late, gone):
        assert parked.is_parked
        one.queue.park(parked)
    gone.is_over = True
    one.queue.demand(55)
    assert (early.stamp, late.stamp, gone.stamp) == (55, 0, 0)
    assert one.queue.first is early
    assert one.queue.has_parked
    late.is_over = True
    assert not one.queue.has_parked
