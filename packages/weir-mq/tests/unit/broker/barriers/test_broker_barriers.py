"""How far a topic's order is complete: what is told, when, and that nothing comes below it."""

from __future__ import annotations

from typing import Any

from weir.order.clock import stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


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
