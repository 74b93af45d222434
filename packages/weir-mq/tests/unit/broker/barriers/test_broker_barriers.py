"""How far a topic's order is complete: what is told, when, and that nothing comes below it."""

from __future__ import annotations

from typing import Any

from weir.broker.api import events as ev
from weir.order.clock import stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, encode_request


def published(rig: Any, info: m.TopicInfo, sequence: int, partition: int = 0) -> m.Produce:
    here = m.TopicInfo(info.id, info.namespace, info.name, info.order, [info.addresses[partition]])
    batch: m.Produce = rig.batch(here, rig.grant, sequence, b"x")
    return batch


def founded(rig: Any, partitions: int) -> m.TopicInfo:
    rig.connect()
    rig.grant = rig.answer(1, m.OpenProducer())
    info: m.TopicInfo = rig.topic(1, "t", partitions)
    return info


def replies(rig: Any, number: int) -> list[m.Reply]:
    return [reply for of, reply in rig.replies[1] if of == number]


def test_idle_partitions_say_now_and_stamp_above_it(rig: Any) -> None:
    info = founded(rig, 3)
    barriers = rig.answer(1, m.AskBarriers(info.id, wait_ms=500))
    assert barriers.reached
    assert [p for p, _, _ in barriers.registers] == [0, 1, 2]
    lowest = min(stamp for _, stamp, _ in barriers.registers)
    assert lowest >= stamp_at(rig.time.wall_ms())
    for partition in range(3):
        assert rig.answer(1, published(rig, info, 0, partition)).stamp > lowest


def test_who_asks_anew_is_told_of_all_that_was_confirmed_before(rig: Any) -> None:
    info = founded(rig, 2)
    rig.time.pass_ms(900)
    confirm = rig.answer(1, published(rig, info, 0))
    rig.time.wall -= 900  # the clock was set back since
    barriers = rig.answer(1, m.AskBarriers(info.id, wait_ms=500))
    assert barriers.reached
    assert min(stamp for _, stamp, _ in barriers.registers) > confirm.stamp


def test_who_asks_anew_waits_for_what_is_under_way_at_a_clock_that_was_set_back(rig: Any) -> None:
    """Its first batch may be durable here, and so confirmed to who asked for no more than that."""
    info = founded(rig, 1)
    rig.time.pass_ms(5_000)
    rig.answer(1, published(rig, info, 0))
    rig.time.wall -= 5_000
    numbers = [rig.ask(1, published(rig, info, sequence)) for sequence in (1, 2)]
    asked = rig.ask(1, m.AskBarriers(info.id, wait_ms=500))
    assert replies(rig, asked) == []
    rig.settle()
    (barriers,) = replies(rig, asked)
    confirms = [replies(rig, number)[0] for number in numbers]
    assert barriers.registers == [(0, confirms[1].stamp, 3)]


def test_what_is_under_way_holds_the_barrier_below_it(rig: Any) -> None:
    info = founded(rig, 2)
    number = rig.ask(1, published(rig, info, 0, partition=1))
    asked = rig.ask(1, m.AskBarriers(info.id, stamp_at(rig.time.wall_ms()), 1_000))
    assert replies(rig, asked) == []
    rig.settle()
    (confirm,) = replies(rig, number)
    assert isinstance(confirm, m.Confirm)
    (barriers,) = replies(rig, asked)
    assert isinstance(barriers, m.Barriers)
    assert barriers.registers[1][1:] == (confirm.stamp, 1)


def test_who_asks_for_more_than_there_will_be_is_told_what_there_is_in_time(rig: Any) -> None:
    info = founded(rig, 1)
    far = stamp_at(rig.time.wall_ms() + 3_600_000)
    asked = rig.ask(1, m.AskBarriers(info.id, far, 500))
    rig.settle()
    assert replies(rig, asked) == []
    rig.tick(500)
    (barriers,) = replies(rig, asked)
    assert isinstance(barriers, m.Barriers)
    assert barriers.registers[0][1] < stamp_at(rig.time.wall_ms() + 1_000)


def test_nobody_is_forgotten_when_a_topic_goes(rig: Any) -> None:
    info = founded(rig, 1)
    asked = rig.ask(1, m.AskBarriers(info.id, stamp_at(rig.time.wall_ms() + 3_600_000), 500))
    rig.answer(1, a.DeleteTopic("t"))
    (refused,) = replies(rig, asked)
    assert isinstance(refused, m.Refusal)
    assert rig.answer(1, m.AskBarriers(info.id)).code == refused.code


def test_a_fetch_brings_the_barrier_along(rig: Any) -> None:
    info = founded(rig, 1)
    confirm = rig.answer(1, published(rig, info, 0))
    fetched = rig.answer(1, m.Fetch(info.addresses[0], 0, 1 << 20))
    assert (fetched.committed, fetched.barrier) == (1, confirm.stamp)


def marks(rig: Any, number: int) -> list[m.OrderMark]:
    found = replies(rig, number)
    assert all(isinstance(reply, m.OrderMark) for reply in found)
    return found  # type: ignore[return-value]


def test_a_mark_comes_with_what_is_accepted_while_it_is_awaited(rig: Any) -> None:
    info = founded(rig, 3)
    asked = rig.ask(1, m.AwaitMark(info.id, wait_ms=5_000))
    rig.settle()
    assert marks(rig, asked) == [], "nothing is published"
    confirm = rig.answer(1, published(rig, info, 0, partition=1))
    rig.settle()
    (mark,) = marks(rig, asked)
    assert (mark.topic, mark.partitions, mark.ended, mark.reached) == (info.id, 3, 0, True)
    assert mark.stamp >= confirm.stamp
    assert mark.throughs == [(1, 1)], "the others have no message at all"
    for partition in range(3):
        confirm = rig.answer(1, published(rig, info, int(partition == 1), partition))
        assert confirm.stamp > mark.stamp


def test_a_mark_does_not_come_before_what_it_tells_of_is_committed(rig: Any) -> None:
    info = founded(rig, 2)
    asked = rig.ask(1, m.AwaitMark(info.id, wait_ms=5_000))
    number = rig.ask(1, published(rig, info, 0))
    assert replies(rig, number) == []
    assert marks(rig, asked) == []
    rig.settle()
    (confirm,) = replies(rig, number)
    (mark,) = marks(rig, asked)
    assert isinstance(confirm, m.Confirm)
    assert mark.stamp >= confirm.stamp


def test_only_a_publish_that_somebody_awaits_leaves_work_for_what_is_deferred(rig: Any) -> None:
    info = founded(rig, 2)

    def publish(sequence: int) -> bool:
        data = b"".join(encode_request(published(rig, info, sequence), 100 + sequence))
        rig.do(rig.shard.step(ev.Received(1, ClientStream().receive(data))))
        left = rig.shard.has_deferred
        rig.do(rig.shard.run_deferred())
        rig.settle()
        return left

    assert not publish(0)
    asked = rig.ask(1, m.AwaitMark(info.id, wait_ms=5_000))
    assert publish(1)
    assert len(marks(rig, asked)) == 1
    rig.shard.budget.take(rig.shard.budget.limit)
    assert rig.shard.has_deferred, "reading is to be held"


def test_a_mark_tells_only_what_is_new_above_the_last_one(rig: Any) -> None:
    info = founded(rig, 3)
    first = rig.answer(1, published(rig, info, 0, partition=0))
    rig.answer(1, published(rig, info, 0, partition=2))
    now = stamp_at(rig.time.wall_ms())
    mark = rig.answer(1, m.AwaitMark(info.id, 0, now + 1, 500))
    assert mark.throughs == [(0, 1), (2, 1)]
    asked = rig.ask(1, m.AwaitMark(info.id, mark.stamp, 0, 5_000))
    rig.answer(1, published(rig, info, 1, partition=2))
    rig.settle()
    (second,) = marks(rig, asked)
    assert second.throughs == [(2, 2)]
    again = rig.answer(1, m.AwaitMark(info.id, first.stamp - 1, second.stamp, 500))
    assert again.throughs == [(0, 1), (2, 2)]


def test_whoever_waits_for_a_stamp_lets_all_have_the_mark(rig: Any) -> None:
    info = founded(rig, 2)
    rig.connect(2)
    asked = rig.ask(2, m.AwaitMark(info.id, wait_ms=5_000))
    wanted = stamp_at(rig.time.wall_ms()) + 5
    assert rig.answer(1, m.AskBarriers(info.id, wanted, 500)).reached
    ((number, mark),) = rig.replies[2][-1:]
    assert number == asked
    assert mark.reached
    assert mark.stamp >= wanted
    later = rig.ask(2, m.AwaitMark(info.id, mark.stamp, 0, 5_000))
    rig.answer(1, m.AskBarriers(info.id, wanted - 1, 500))
    assert later not in [number for number, _ in rig.replies[2]], "it has a mark above that"


def test_a_mark_comes_in_time_though_nothing_happens(rig: Any) -> None:
    info = founded(rig, 2)
    asked = rig.ask(1, m.AwaitMark(info.id, wait_ms=2_000))
    rig.tick(1_900)
    assert marks(rig, asked) == []
    rig.tick(200)
    (mark,) = marks(rig, asked)
    assert not mark.reached
    assert rig.answer(1, m.AwaitMark(info.id)).reached is False
    far = stamp_at(rig.time.wall_ms() + 3_600_000)
    asked = rig.ask(1, m.AwaitMark(info.id, 0, far, 500))
    rig.tick(600)
    assert marks(rig, asked)[0].stamp < far


def test_a_shard_rests_until_a_mark_ends_and_hears_of_each_tick_while_a_stamp_is_awaited(
    rig: Any,
) -> None:
    info = founded(rig, 2)
    for _ in range(4):
        rig.tick()
        rig.settle()
    rig.ask(1, m.AwaitMark(info.id, wait_ms=700))
    assert rig.shard.idle_ms(1_000) == 700
    far = stamp_at(rig.time.wall_ms() + 500)
    asked = rig.ask(1, m.AwaitMark(info.id, 0, far, 5_000))
    assert rig.shard.idle_ms(1_000) == 0
    for _ in range(12):
        rig.tick()
        rig.settle()
    assert len(marks(rig, asked)) == 1
    assert rig.shard.idle_ms(5_000) > 0


def test_who_awaits_a_mark_of_a_topic_that_goes_is_told(rig: Any) -> None:
    info = founded(rig, 1)
    asked = rig.ask(1, m.AwaitMark(info.id, wait_ms=1_000))
    rig.answer(1, a.DeleteTopic("t"))
    rig.tick(1_100)
    (refused,) = replies(rig, asked)
    assert isinstance(refused, m.Refusal)
    assert rig.answer(1, m.AwaitMark(info.id)).code == refused.code
