"""Positions for a stamp hold: nothing stamped below it comes behind the end that was told."""

from __future__ import annotations

from typing import Any

from weir.model.batch import split
from weir.order.clock import milliseconds_of, stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


def asked(rig: Any, info: m.TopicInfo, stamp: int) -> int:
    return rig.ask(1, m.Positions(info.addresses[0], stamp))


def replies(rig: Any, number: int) -> list[m.Reply]:
    return [reply for of, reply in rig.replies[1] if of == number]


def test_what_is_accepted_and_not_committed_is_waited_for(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.ask(1, rig.batch(info, grant, 0, b"a", b"b"))
    rig.time.pass_ms(5)
    number = asked(rig, info, stamp_at(rig.time.wall_ms()))
    plain = asked(rig, info, 0)
    assert replies(rig, number) == []
    assert replies(rig, plain) == [m.PositionsReply(0, 0, 0)], "without a stamp nobody waits"
    rig.settle()
    assert replies(rig, number) == [m.PositionsReply(0, 2, 2)]


def test_nothing_is_stamped_below_what_was_answered(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    ahead = stamp_at(rig.time.wall_ms() + 400)
    assert rig.answer(1, m.Positions(info.addresses[0], ahead)) == m.PositionsReply(0, 0, 0)
    assert rig.answer(1, rig.batch(info, grant, 0, b"a")).stamp >= ahead


def test_nobody_drags_a_partition_further_ahead_by_asking(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, m.Positions(info.addresses[0], stamp_at(rig.time.wall_ms() + 3_600_000)))
    confirm = rig.answer(1, rig.batch(info, grant, 0, b"a"))
    assert milliseconds_of(confirm.stamp) <= rig.time.wall_ms() + 1_000


def test_who_waits_is_answered_when_it_takes_long_or_the_topic_goes(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.ask(1, rig.batch(info, grant, 0, b"a"))
    slow = asked(rig, info, stamp_at(rig.time.wall_ms()))
    rig.tick(10_000)
    (refused,) = replies(rig, slow)
    assert "take long" in refused.message
    rig.settle()
    rig.connect(2)
    rig.ask(1, rig.batch(info, grant, 1, b"b"))
    number = asked(rig, info, stamp_at(rig.time.wall_ms()))
    rig.ask(2, a.DeleteTopic("t"))
    rig.settle()
    assert len(replies(rig, number)) == 1


def test_a_read_up_to_now_has_all_that_was_stamped_before(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    address = info.addresses[0]
    sent = [rig.ask(1, rig.batch(info, grant, i, b"%d" % i)) for i in range(5)]
    rig.time.pass_ms(1)
    until = stamp_at(rig.time.wall_ms())
    number = asked(rig, info, until)
    sent += [rig.ask(1, rig.batch(info, grant, i, b"%d" % i)) for i in range(5, 8)]
    rig.settle()
    (reply,) = replies(rig, number)
    fetched = rig.answer(1, m.Fetch(address, 0, 1 << 20))
    below = [
        offset
        for payload in fetched.batches
        for batch in split(payload, address.group)
        for offset in range(batch.header.first_offset, batch.header.next_offset)
        if batch.header.stamp < until
    ]
    assert below == [0, 1, 2, 3, 4]
    assert reply.end >= 5
