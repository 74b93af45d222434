"""DESIGN §5 Produce, *Stamp*: max(HLC, last + 1, seen + 1), bounded by the clock."""

import pytest

from weir.errors import StampTooFar
from weir.order.clock import LOGIC_BITS, HighestStamp, HybridClock, milliseconds_of, stamp_at

NOW = 1_700_000_000_000


def test_a_stamp_is_the_time_while_it_runs() -> None:
    clock = HybridClock()
    assert clock.stamp(NOW) == stamp_at(NOW)
    assert clock.stamp(NOW + 1) == stamp_at(NOW + 1)


def test_stamps_rise_when_the_clock_stands_or_falls_back() -> None:
    clock = HybridClock()
    first = clock.stamp(NOW)
    assert clock.stamp(NOW) == first + 1
    assert clock.stamp(NOW - 3_600_000) == first + 2


def test_the_logic_carries_into_the_milliseconds() -> None:
    clock = HybridClock(stamp_at(NOW) + (1 << LOGIC_BITS) - 1)
    assert milliseconds_of(clock.stamp(NOW)) == NOW + 1


def test_a_stamp_lies_above_what_the_client_saw() -> None:
    clock = HybridClock()
    seen = stamp_at(NOW + 500)
    clock.check_seen(NOW, seen)
    assert clock.stamp(NOW, seen) == seen + 1


def test_a_seen_stamp_over_max_ahead_is_refused_and_changes_nothing() -> None:
    """Counterexample 7: one poisoned client would stamp a partition into the far future."""
    clock = HybridClock()
    with pytest.raises(StampTooFar) as refused:
        clock.check_seen(NOW, stamp_at(NOW + 1_001))
    assert refused.value.detail == stamp_at(NOW + 1_000)
    assert clock.stamp(NOW) == stamp_at(NOW)


def test_clients_cannot_creep_ahead_request_by_request() -> None:
    """Counterexample 7, second half: the bound is the clock's, not the last stamp's."""
    clock = HybridClock()
    limit = stamp_at(NOW + clock.max_ahead_ms)
    for _ in range(5):
        clock.check_seen(NOW, limit)
        limit = clock.stamp(NOW, limit)
        with pytest.raises(StampTooFar):
            clock.check_seen(NOW, limit + 1)


def test_a_leader_goes_on_above_its_log_and_fence() -> None:
    floor = stamp_at(NOW + 10_000)
    assert HybridClock(floor).stamp(NOW) == floor + 1


def test_who_cannot_be_refused_is_held_to_the_clock() -> None:
    """Even below what the shard gave: or one poisoned partition would drag the next along."""
    shard = HighestStamp()
    HybridClock(stamp_at(NOW + 30 * 24 * 3_600_000), shard)
    clock = HybridClock(0, shard)
    limit = stamp_at(NOW + clock.max_ahead_ms)
    assert clock.clamp(NOW, limit) == limit
    assert clock.clamp(NOW, limit + 1) == clock.clamp(NOW, shard.stamp) == limit


def test_the_highest_stamp_is_that_of_all_clocks() -> None:
    shard = HighestStamp()
    one, other = HybridClock(5, shard), HybridClock(0, shard)
    assert one.highest.stamp == other.highest.stamp == 5
    assert other.stamp(NOW, other.highest.stamp) == one.highest.stamp > one.last
