"""A node whose clock is wrong leads nothing for long, and lets nothing go as too old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.model.topic import SettingsChange
from weir.order.clock import milliseconds_of, stamp_at
from weir.protocol.client import messages as m

HOUR_MS = 3_600_000


@pytest.mark.parametrize("ahead_ms", [3 * HOUR_MS, -3 * HOUR_MS, 2_000])
def test_who_leads_with_a_wrong_clock_hands_over_and_is_not_given_it_back(
    trio: Any, produce: Any, ahead_ms: int
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    wrong = trio.leader(group)
    wrong.time.ahead_ms = ahead_ms
    trio.run(500)
    assert not wrong.group(group).machine.leads
    for number in range(1, 12):
        confirm = trio.told(produce(info, grant, number, b"b"), group)
        assert abs(milliseconds_of(confirm.stamp) - trio.clock.wall) <= 1_000
        trio.run(1_000)
        assert trio.leader(group) is not wrong, "it was given back to a clock that is wrong"
    wrong.time.ahead_ms = 0
    trio.until(lambda: trio.leader(group) is wrong, "it is right again, and is not given it back")


def test_a_wrong_clock_stamps_nothing_before_it_hands_over(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    wrong = trio.leader(group)
    wrong.time.ahead_ms = 3 * HOUR_MS
    question = wrong.ask(m.Ping())
    assert wrong.group(group).machine.leads, "no time has passed, and it has not handed over"
    assert abs(wrong.reply_to(question).wall_ms - trio.clock.wall) <= 1_000
    confirm = trio.told(produce(info, grant, 0, b"a"), group)
    assert abs(milliseconds_of(confirm.stamp) - trio.clock.wall) <= 1_000


def test_a_clock_that_is_days_ahead_lets_nothing_go(
    make_trio: Callable[..., Any], produce: Any
) -> None:
    trio = make_trio(retention_every_ms=50)
    info = trio.topic(settings=SettingsChange(retention_ms=60_000))
    grant, group = trio.producer(), info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    for node in trio.live():
        node.time.ahead_ms = 48 * HOUR_MS
        trio.run(1_000)
        assert trio.same_everywhere(group) == [b"a"]
        node.time.ahead_ms = 0
        trio.run(7_000)


def test_who_leads_a_partition_alone_goes_by_the_clocks_of_the_set(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(replicas=1), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    trio.leader(group).time.ahead_ms = 3 * HOUR_MS
    trio.run(500)
    # It holds the partition alone, and goes by what the others say all the same.
    confirm = trio.told(produce(info, grant, 1, b"b"), group)
    assert abs(milliseconds_of(confirm.stamp) - trio.clock.wall) <= 1_000


def test_where_no_other_is_heard_a_clock_is_what_it_is(trio: Any) -> None:
    left = trio.leader()
    left.time.ahead_ms = 3 * HOUR_MS
    trio.isolate(left.id)
    trio.run(6_000)
    assert trio.answer(left, m.Ping()).wall_ms - trio.clock.wall == 3 * HOUR_MS


def test_a_delay_ends_by_the_time_where_a_new_leader_stamps_ahead_of_it(
    trio: Any, produce: Any
) -> None:
    """Simulated even-parcels seed 344039898: it stamps above all that was promised before."""
    info, grant = trio.topic(), trio.producer()
    address, group = info.addresses[0], info.addresses[0].group
    due_ms = trio.clock.wall + 2_000
    trio.told(produce(info, grant, 0, b"a", dues=[due_ms * 1_000]), group)
    first = trio.leader(group)
    trio.run(1_500)
    promised = stamp_at(trio.clock.wall + 1_000)
    trio.answer(first, m.AskBarriers(info.id, promised, 1_000))
    leader = next(node for node in trio.live() if node is not first)
    first.group(group).node.transfer_leadership(leader.group(group).voter)
    first.group(group).process_ready()
    trio.until(lambda: trio.leader(group) is leader)
    clock = leader.group(group).machine.leading.appender.clock
    assert trio.clock.wall < due_ms
    assert milliseconds_of(clock.last) > due_ms, "it stamps no further ahead"

    def pull() -> int:
        granted = trio.answer(leader, m.Pull(address, "crew", 9, 1 << 20, 0, 60_000))
        return int(granted.next_offset)

    while trio.clock.wall < due_ms:
        assert pull() == 0
        trio.run(50)
    assert pull() == 1
