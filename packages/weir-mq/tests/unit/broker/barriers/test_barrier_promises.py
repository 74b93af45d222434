"""When a shard asks for promises, and how far its bounds are extended for those of others."""

from __future__ import annotations

from typing import Any

import pytest

import weir_raft as raft
from rigs.shards import link_of
from weir.broker.barriers.barriers import IDLE_AFTER_MS, IDLE_AHEAD_MS, Promises
from weir.model.limits import MAX_AHEAD_MS, PROMISE_EVERY_MS
from weir.order.barrier import Bound
from weir.order.clock import HighestStamp, HybridClock, stamp_at


class FakeLog:
    """A log of which each bound is durable when the test says so."""

    def __init__(self, time: Any) -> None:
        self.bound = Bound()
        self.time = time
        self.written = 0

    def extend_bound(self) -> None:
        self.written = self.bound.extension(self.time.wall_ms()) or self.written


@pytest.fixture
def logs(time: Any) -> list[FakeLog]:
    return [FakeLog(time), FakeLog(time)]


@pytest.fixture
def multi() -> raft.Multi:
    return raft.Multi(lambda group, member: member)


@pytest.fixture
def highest() -> HighestStamp:
    return HighestStamp()


@pytest.fixture
def promises(multi: raft.Multi, highest: HighestStamp, time: Any, logs: list[FakeLog]) -> Promises:
    return Promises(multi, highest, logs, time)


def test_clocks_of_the_shard_stamp_above_what_was_asked_for(time: Any, logs: list[FakeLog]) -> None:
    highest = HighestStamp()
    multi = raft.Multi(lambda group, member: member)
    promises = Promises(multi, highest, logs, time)
    promises.ask(stamp_at(time.wall + 300))
    assert HybridClock(0, highest).stamp(time.wall) == stamp_at(time.wall + 300) + 1
    promises.ask(stamp_at(time.wall + 200))
    assert promises.rounds == 1, "less than what was asked is no other question"


def test_nobody_is_dragged_further_than_a_client_may_see(
    promises: Promises, time: Any, multi: raft.Multi
) -> None:
    promises.ask(stamp_at(time.wall + 3_600_000))
    assert multi.fence_asked == stamp_at(time.wall + 1_000)


def test_the_least_bound_of_all_logs_is_what_may_be_promised(
    promises: Promises, logs: list[FakeLog], time: Any, multi: raft.Multi
) -> None:
    promises.ask(0)
    promises.pursue()
    assert all(log.written > stamp_at(time.wall) for log in logs)
    logs[0].bound.written(logs[0].written)
    promises.pursue()
    assert multi.fence_bound == 0
    logs[1].bound.written(logs[1].written)
    promises.pursue()
    assert multi.fence_bound == logs[0].written


def test_bounds_are_extended_only_while_somebody_asks(
    promises: Promises, logs: list[FakeLog], time: Any
) -> None:
    for _ in range(100):
        time.pass_ms(50)
        promises.pursue()
    assert logs[0].written == 0
    promises.ask(0)
    promises.pursue()
    first = logs[0].written
    for log in logs:
        log.bound.written(first)
    promises.pursue()
    time.pass_ms(5_000)
    promises.pursue()
    assert logs[0].written == first, "the question of before wants no more"


def test_bounds_follow_the_clock_to_what_a_clock_that_was_ahead_asked_for(
    promises: Promises, logs: list[FakeLog], time: Any, multi: raft.Multi
) -> None:
    for log in logs:
        log.bound.written(log.bound.extension(time.wall_ms()))
    promises.pursue()
    multi.ask(stamp_at(time.wall + 20_000))  # higher than any question that follows
    promises.pursue()
    for _ in range(4):
        time.pass_ms(1_000)
        promises.pursue()
        for log in logs:
            log.bound.written(log.written)
        promises.pursue()
        assert multi.fence_bound > stamp_at(time.wall)


def test_those_who_ask_at_the_same_time_share_a_question(
    promises: Promises, highest: HighestStamp, time: Any, multi: raft.Multi
) -> None:
    HybridClock(0, highest).stamp(time.wall)
    multi.link_up(2)
    link_of(multi, 2).outward.lead(1, 1, 1)
    link_of(multi, 2).outward.silent = False
    promises.ask(0)
    asked = multi.fence_asked
    multi.take_beats()
    promises.ask(asked + 5)
    assert multi.fence_asked == asked, "the last one is not answered yet"
    time.pass_ms(PROMISE_EVERY_MS)
    promises.pursue()
    assert multi.fence_asked == stamp_at(time.wall)


def test_asking_again_asks_for_more(
    promises: Promises,
    multi: raft.Multi,
) -> None:
    promises.ask(0)
    asked = multi.fence_asked
    promises.ask_again()
    assert multi.fence_asked > asked, "so that whoever answered less looks at it again"


def test_an_idle_shard_that_is_asked_of_late_has_promised_what_is_asked_for_next(
    promises: Promises, highest: HighestStamp, time: Any, multi: raft.Multi
) -> None:
    promises.ask(0)
    assert multi.fence_asked == stamp_at(time.wall), "nobody has asked before"
    time.pass_ms(50)
    promises.ask(stamp_at(time.wall))
    assert multi.fence_asked == stamp_at(time.wall + IDLE_AHEAD_MS)
    rounds = promises.rounds
    for _ in range(IDLE_AHEAD_MS // 50):
        time.pass_ms(50)
        promises.ask(stamp_at(time.wall))
    assert promises.rounds == rounds
    time.pass_ms(50)
    promises.ask(stamp_at(time.wall))
    assert promises.rounds == rounds + 1
    assert HybridClock(0, highest).stamp(time.wall) > stamp_at(time.wall + IDLE_AHEAD_MS)


def test_who_is_asked_once_in_a_while_promises_the_time(
    promises: Promises, time: Any, multi: raft.Multi
) -> None:
    for _ in range(3):
        promises.ask(0)
        assert multi.fence_asked == stamp_at(time.wall)
        time.pass_ms(IDLE_AFTER_MS)


def test_a_shard_that_stamps_promises_the_time(
    promises: Promises, highest: HighestStamp, time: Any, multi: raft.Multi
) -> None:
    clock = HybridClock(0, highest)
    for _ in range(10):
        assert clock.stamp(time.wall) <= stamp_at(time.wall) + 1
        time.pass_ms(IDLE_AFTER_MS // 2)
        promises.ask(0)
        assert multi.fence_asked == stamp_at(time.wall)
    time.pass_ms(IDLE_AFTER_MS // 2 + 1)
    promises.ask(0)
    assert multi.fence_asked == stamp_at(time.wall + IDLE_AHEAD_MS), "it has stopped"


def test_what_is_promised_ahead_grows_with_the_clock_alone(
    promises: Promises, time: Any, multi: raft.Multi
) -> None:
    promises.ask(0)
    for _ in range(5):
        promises.ask(multi.fence_asked + 1)
        assert multi.fence_asked <= stamp_at(time.wall + IDLE_AHEAD_MS) + 5
    promises.ask(stamp_at(time.wall + 3_600_000))
    assert multi.fence_asked == stamp_at(time.wall + MAX_AHEAD_MS)
