"""Streams of marks between two shards: what goes up, what comes down, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from weir.broker.barriers.streams import (
    DEMAND_MS,
    IDLE_EVERY_MS,
    MarkStream,
    MarkStreams,
    Subscription,
    Subscriptions,
)
from weir.broker.barriers.topic_order import OrderPlan, Scope, TopicOrder
from weir.broker.runtime.outbox import Caller
from weir.errors import RemoteProtocolError, Unavailable, UnknownOpcode, UnknownTopic
from weir.order.barrier import Barrier
from weir.order.clock import STAMP_MAX
from weir.protocol.client.codec import decode_reply, encode_reply
from weir.protocol.client.messages import Refusal
from weir.protocol.client.order import SetMark, SubscribeMarks
from weir.protocol.trunk import one_client_frame

TOPIC, PLACE, SUBSCRIBE = 7, 9, 98
CALLER = Caller(3, SUBSCRIBE, 1)


class Clock:
    def __init__(self) -> None:
        self.now = 100_000

    def monotonic_ms(self) -> int:
        return self.now


class Sent:
    """What stands for the outbox of the upper shard."""

    def __init__(self) -> None:
        self.marks: list[SetMark] = []

    def send(self, session: int, *buffers: Any) -> None:
        assert session == CALLER.session
        reply = decode_reply(one_client_frame(memoryview(b"".join(map(bytes, buffers)))))
        assert isinstance(reply, SetMark)
        self.marks.append(reply)


class Asked:
    """What stands for the forwarder of the lower shard."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, SubscribeMarks, int]] = []
        self.is_closed = False

    def ask_own(self, place: int, request: SubscribeMarks, number: int = 0) -> None:
        if self.is_closed:
            raise Unavailable("it is closed")
        self.requests.append((place, request, number))


def order(*partitions: int, **registers: tuple[int, int]) -> TopicOrder:
    found = TopicOrder(TOPIC, Scope.LED)
    found.take_plan(OrderPlan([*partitions], [], [*partitions], {}), (0, 0))
    for name, (stamp, through) in registers.items():
        found.registers[int(name[1:])] = Barrier(stamp, through)
        found.lasts[int(name[1:])] = stamp
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def upper(clock: Clock, sent: Any) -> MarkStreams:
    time: Any = clock
    return MarkStreams(sent, time)


# -- sets and marks ----------------------------------------------------------------------------


def test_a_set_is_announced_with_its_first_mark_and_offsets_are_told_when_they_change() -> None:
    one, stream = order(0, 1, p0=(50, 5), p1=(40, 9)), MarkStream(TOPIC, Scope.LED, CALLER)
    assert stream.next_mark(one) == SetMark(TOPIC, 1, 40, [(0, 5, 50), (1, 9, 40)], (0, 1))
    one.registers[0] = Barrier(90, 5)
    one.registers[1] = Barrier(80, 9)
    assert stream.next_mark(one) == SetMark(TOPIC, 1, 80, [])
    one.registers[1] = Barrier(95, 10)
    one.lasts[1] = 93
    assert stream.next_mark(one) == SetMark(TOPIC, 1, 90, [(1, 10, 93)])


def test_another_set_has_another_number_and_tells_all_of_it_again() -> None:
    one, stream = order(0, 1, p0=(50, 5), p1=(40, 9)), MarkStream(TOPIC, Scope.LED, CALLER)
    stream.next_mark(one)
    one.take_plan(OrderPlan([1], [], [1], {}), (1, 1))
    assert stream.next_mark(one) == SetMark(TOPIC, 2, 40, [(1, 9, 40)], (1,))


def test_what_is_not_known_to_lie_low_is_told_as_as_high_as_stamps_go() -> None:
    one, stream = order(0, p0=(50, 5)), MarkStream(TOPIC, Scope.LED, CALLER)
    del one.lasts[0]
    assert stream.next_mark(one).throughs == [(0, 5, STAMP_MAX)]


def test_who_joined_and_who_ended_is_told_once_before_the_mark_counts() -> None:
    one, stream = order(0, 1, 2, p0=(50, 5), p1=(90, 9)), MarkStream(TOPIC, Scope.LED, CALLER)
    one.learn([(2, 30)])
    one.learn_end(2, 44, 8)
    mark = stream.next_mark(one)
    assert (mark.partitions, mark.stamp) == ((0, 1), 50), "nobody waits for what has ended"
    assert (mark.roster, mark.ends) == (((2, 30),), ((2, 44, 8),))
    again = stream.next_mark(one)
    assert (again.roster, again.ends) == ((), ())


def test_who_holds_a_demand_back_for_long_leaves_the_set_until_it_has_caught_up(
    clock: Clock, upper: MarkStreams
) -> None:
    one, stream = order(0, 1, p0=(50, 5), p1=(20, 9)), upper.open(CALLER, TOPIC, Scope.LED)
    upper.demand(stream, 45)
    stream.leave_out(one, clock.now + 499)
    assert stream.next_mark(one).partitions == (0, 1)
    stream.leave_out(one, clock.now + 500)
    mark = stream.next_mark(one)
    assert (mark.number, mark.partitions, mark.stamp) == (2, (0,), 50)
    one.registers[1] = Barrier(44, 9)
    assert stream.next_mark(one).partitions == ()
    # It need not overtake the others: nothing moves a register beyond what is demanded.
    one.registers[1] = Barrier(45, 9)
    mark = stream.next_mark(one)
    assert (mark.number, mark.partitions, mark.stamp) == (3, (0, 1), 45)


def test_where_all_are_behind_none_leaves_the_set(clock: Clock, upper: MarkStreams) -> None:
    one, stream = order(0, 1, p0=(5, 5), p1=(2, 9)), upper.open(CALLER, TOPIC, Scope.LED)
    upper.demand(stream, 45)
    stream.leave_out(one, clock.now + 9_000)
    assert stream.next_mark(one).partitions == (0, 1)


# -- the upper shard ---------------------------------------------------------------------------


def test_a_mark_comes_when_a_demand_is_reached_and_not_when_its_time_is_up(
    upper: MarkStreams, clock: Clock, sent: Sent
) -> None:
    stream = upper.open(CALLER, TOPIC, Scope.LED)
    first, second = upper.demand(stream, 50), upper.demand(stream, 60)
    assert first is not None
    assert second is not None
    assert first.deadline_ms == clock.now + DEMAND_MS
    upper.told(second, False)
    assert (list(stream.demands), list(upper.due)) == ([50], [])
    upper.told(first, True)
    assert list(upper.due) == [stream]
    upper.send(stream, order(0, p0=(50, 5)))
    assert [mark.stamp for mark in sent.marks] == [50]
    assert not upper.due


def test_a_stream_has_a_bounded_number_of_demands(upper: MarkStreams) -> None:
    stream = upper.open(CALLER, TOPIC, Scope.LED)
    made = [upper.demand(stream, stamp) for stamp in range(1, 100)]
    assert len(stream.demands) == 16
    assert made[16] is None
    assert upper.demand(stream, 3) is not None, "what is repeated always fits"


def test_no_more_marks_go_out_than_one_a_millisecond(upper: MarkStreams, sent: Sent) -> None:
    stream = upper.open(CALLER, TOPIC, Scope.LED)
    for _ in range(60):
        upper.send(stream, order(0, p0=(50, 5)))
    assert len(sent.marks) == 50
    assert stream.is_due
    assert upper.tick(stream)
    upper.send(stream, order(0, p0=(50, 5)))
    assert len(sent.marks) == 51


def test_a_mark_that_is_left_to_the_next_tick_is_late_and_none_is_where_ticks_are_rare(
    upper: MarkStreams, sent: Sent, clock: Clock
) -> None:
    stream = upper.open(CALLER, TOPIC, Scope.LED)
    for _ in range(100):
        upper.send(stream, order(0, p0=(50, 5)))
        clock.now += 1
    assert not upper.has_late
    assert len(sent.marks) == 100
    for _ in range(51):
        upper.send(stream, order(0, p0=(50, 5)))
    assert upper.has_late
    clock.now += 50
    upper.send(stream, order(0, p0=(50, 5)))
    assert not upper.has_late


def test_where_nothing_is_demanded_a_mark_comes_each_second(
    upper: MarkStreams, clock: Clock
) -> None:
    stream = upper.open(CALLER, TOPIC, Scope.LED)
    upper.send(stream, order(0, p0=(50, 5)))
    clock.now += IDLE_EVERY_MS - 1
    assert not upper.tick(stream)
    clock.now += 1
    assert upper.tick(stream)
    upper.send(stream, order(0, p0=(50, 5)))
    upper.demand(stream, 60)
    assert upper.tick(stream), "with each tick while something is demanded"


def test_another_number_replaces_a_stream_and_a_session_ends_all_of_its_own(
    upper: MarkStreams,
) -> None:
    stream = upper.open(CALLER, TOPIC, Scope.LED)
    assert upper.open(CALLER, TOPIC, Scope.LED) is stream
    other = upper.open(Caller(3, SUBSCRIBE, 2), TOPIC, Scope.LED)
    assert other is not stream
    waiter = upper.demand(other, 5)
    assert waiter is not None
    upper.told(waiter, True)
    upper.session_closed(3)
    assert (upper.all(), list(upper.due)) == ([], [])
    upper.told(waiter, True)
    assert not upper.due


# -- the lower shard ---------------------------------------------------------------------------


def lower(clock: Clock) -> tuple[Subscriptions, Asked]:
    forwarder: Any = Asked()
    time: Any = clock
    return Subscriptions(forwarder, time), forwarder


def framed(reply: Any, number: int = 1) -> Any:
    return one_client_frame(
        memoryview(b"".join(map(bytes, encode_reply(reply, SUBSCRIBE, number))))
    )


def first(stamp: int = 40, number: int = 1) -> SetMark:
    return SetMark(TOPIC, number, stamp, [(0, 5, 30)], (0,))


def test_one_stream_serves_all_and_a_demand_under_way_is_not_repeated_at_once(
    clock: Clock,
) -> None:
    subscriptions, asked = lower(clock)
    assert subscriptions.demand(TOPIC, PLACE, {50})
    assert subscriptions.demand(TOPIC, PLACE, {50})
    assert subscriptions.demand(TOPIC, PLACE, {60})
    assert asked.requests == [(PLACE, SubscribeMarks(TOPIC, stamp), 1) for stamp in (50, 60)]
    clock.now += 500
    subscriptions.demand(TOPIC, PLACE, {60})
    assert len(asked.requests) == 3


def test_what_a_mark_has_met_is_demanded_again_where_somebody_still_waits(clock: Clock) -> None:
    subscriptions, asked = lower(clock)
    subscriptions.demand(TOPIC, PLACE, {50})
    taken = subscriptions.take(framed(first(55)))
    assert taken is not None
    assert taken[0].throughs == {0: (5, 30)}
    subscriptions.demand(TOPIC, PLACE, {50})  # of a partition that is led there only now
    assert len(asked.requests) == 2


def bad_marks() -> Iterator[tuple[str, Iterable[SetMark]]]:
    yield "in a stream of", [SetMark(8, 1, 40, [(0, 5, 30)], (0,))]
    yield "without all of its offsets", [SetMark(TOPIC, 1, 40, [(0, 5, 30)], (0, 1))]
    yield "is not in set", [SetMark(TOPIC, 1, 40, [(0, 5, 30), (1, 5, 30)], (0,))]
    yield "is not in set", [SetMark(TOPIC, 1, 40, [(0, 5, 30)])]
    yield "was announced before", [first(), first()]
    yield "which is over", [first(number=2), first()]
    yield "behind one at", [first(40), SetMark(TOPIC, 1, 39, [])]


@pytest.mark.parametrize(("says", "told"), list(bad_marks()))
def test_a_mark_that_makes_no_sense_ends_the_trunk(
    says: str, told: Iterable[SetMark], clock: Clock
) -> None:
    subscription = Subscription(TOPIC, PLACE, 1, clock.now)
    *good, bad = told
    for mark in good:
        subscription.take(mark)
    with pytest.raises(RemoteProtocolError, match=says):
        subscription.take(bad)


def test_an_earlier_set_says_nothing_of_the_next_one(clock: Clock) -> None:
    subscription = Subscription(TOPIC, PLACE, 1, clock.now)
    subscription.take(SetMark(TOPIC, 1, 90, [(0, 5, 30), (1, 7, 80)], (0, 1)))
    subscription.take(SetMark(TOPIC, 2, 40, [(1, 7, 30)], (1,)))
    assert (subscription.throughs, subscription.stamp) == ({1: (7, 30)}, 40)


def test_a_place_of_an_earlier_release_is_told_until_its_trunk_breaks(clock: Clock) -> None:
    subscriptions, _ = lower(clock)
    subscriptions.demand(TOPIC, PLACE, {50})
    assert subscriptions.take(framed(Refusal(UnknownOpcode.code, "98?"))) is None
    assert not subscriptions.demand(TOPIC, PLACE, {50})
    subscriptions.trunk_closed(PLACE)
    assert subscriptions.demand(TOPIC, PLACE, {50})


def test_a_refusal_ends_the_stream_and_the_next_demand_opens_another(clock: Clock) -> None:
    subscriptions, asked = lower(clock)
    subscriptions.demand(TOPIC, PLACE, {50})
    subscriptions.take(framed(Refusal(UnknownTopic.code, "gone")))
    assert len(subscriptions) == 0
    subscriptions.demand(TOPIC, PLACE, {50})
    assert [number for *_, number in asked.requests] == [1, 2]
    assert subscriptions.take(framed(first())) is None, "it is of the first"


def test_a_silent_stream_is_dead_after_half_a_second_and_its_place_is_avoided(
    clock: Clock,
) -> None:
    subscriptions, asked = lower(clock)
    subscriptions.demand(TOPIC, PLACE, {50})
    subscriptions.take(framed(first()))
    for _ in range(9):
        clock.now += 50
        subscriptions.tick()
    assert len(subscriptions) == 1
    clock.now += 50
    subscriptions.tick()
    assert (len(subscriptions), list(subscriptions.avoided)) == (0, [PLACE])
    assert asked.requests[-1] == (PLACE, SubscribeMarks(TOPIC, is_over=True), 1)
    for _ in range(40):
        clock.now += 50
        subscriptions.tick()
    assert not subscriptions.avoided


def test_a_stream_on_a_long_way_gets_three_round_trips(clock: Clock) -> None:
    subscriptions, _ = lower(clock)
    subscriptions.demand(TOPIC, PLACE, {50})
    for _ in range(8):
        clock.now += 50
        subscriptions.tick()
    subscriptions.take(framed(first()))
    for _ in range(23):
        clock.now += 50
        if not _ % 8:
            subscriptions.demand(TOPIC, PLACE, {50})
        subscriptions.tick()
    assert len(subscriptions) == 1
    clock.now += 50
    subscriptions.tick()
    assert len(subscriptions) == 0


def test_while_nothing_is_demanded_a_stream_may_be_silent_for_ten_seconds(clock: Clock) -> None:
    subscriptions, _ = lower(clock)
    subscriptions.demand(TOPIC, PLACE, {30})
    subscriptions.take(framed(first()))
    for _ in range(199):
        clock.now += 50
        subscriptions.tick()
    assert len(subscriptions) == 1
    clock.now += 50
    subscriptions.tick()
    assert len(subscriptions) == 0


def test_a_shard_that_stood_still_itself_calls_no_stream_dead(clock: Clock) -> None:
    subscriptions, _ = lower(clock)
    subscriptions.demand(TOPIC, PLACE, {50})
    subscriptions.take(framed(first()))
    clock.now += 60_000
    subscriptions.tick()
    assert len(subscriptions) == 1


def test_a_trunk_that_is_closed_opens_no_stream(clock: Clock) -> None:
    subscriptions, asked = lower(clock)
    asked.is_closed = True
    assert subscriptions.demand(TOPIC, PLACE, {50})
    assert len(subscriptions) == 0


def test_a_topic_that_nobody_reads_any_more_is_given_up_everywhere(clock: Clock) -> None:
    subscriptions, asked = lower(clock)
    for topic, place in ((TOPIC, 8), (TOPIC, 9), (6, 9)):
        subscriptions.demand(topic, place, {50})
    subscriptions.end(TOPIC)
    assert len(subscriptions) == 1
    ended = [place for place, request, _ in asked.requests if request.is_over]
    assert ended == [8, 9]
