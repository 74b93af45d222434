"""Devices and time: what has expired is left out and acked for them, what is late comes late."""

from __future__ import annotations

from typing import Any

import pytest

from weir.order.clock import stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.device import PULL_BYTES_MIN


class Post:
    """A subscribed device, and a client that sends batches with columns of times."""

    def __init__(self, doors: Any) -> None:
        self.doors, self.rig = doors, doors.rig
        doors.subscribed()

    def publish(self, *delays_ms: int, column: str, ahead_ms: int = 0) -> None:
        now = self.rig.time.wall_ms()
        seen = stamp_at(now + ahead_ms)
        times = [delay and (now + delay) * 1000 for delay in delays_ms]
        values = [b"%d" % n for n in range(len(times))]
        doors = self.doors
        batch = self.rig.batch(doors.info, doors.grant, 0, *values, seen=seen, **{column: times})
        assert isinstance(self.rig.answer(1, batch), m.Confirm)

    def cursor(self) -> int:
        address = self.doors.info.addresses[0]
        (info,) = self.rig.answer(1, a.ListClusters(address, "crew")).clusters
        return int(info.cursor)


@pytest.fixture
def post(doors: Any) -> Post:
    return Post(doors)


def test_expired_messages_are_left_out_and_done(post: Post) -> None:
    post.publish(0, 100, 5_000, 100, 100, column="expires")
    post.rig.time.pass_ms(100)
    delivery = post.doors.pull()
    assert (delivery.offsets, delivery.values) == ([0, 2], [b"0", b"2"])
    assert post.doors.ack(delivery) == 0
    assert post.cursor() == 5


def test_messages_expire_by_the_time_where_stamps_are_ahead_of_it(post: Post) -> None:
    post.publish(500, 100, column="expires", ahead_ms=900)
    post.rig.time.pass_ms(100)
    delivery = post.doors.pull()
    assert delivery.offsets == [0]
    assert post.doors.ack(delivery) == 0
    assert post.cursor() == 2


def test_a_grant_of_nothing_but_expired_messages_brings_nothing(post: Post) -> None:
    post.publish(100, 100, column="expires")
    post.rig.time.pass_ms(100)
    assert post.doors.pull().offsets == []
    assert post.cursor() == 2


def test_time_goes_on_behind_a_grant(post: Post) -> None:
    """What had not expired when it was granted is handed out, also with a later reply."""
    post.publish(100, 100, 100, column="expires")
    assert post.doors.pull(9, PULL_BYTES_MIN + 1).offsets == [0]
    post.rig.time.pass_ms(100)
    assert post.doors.pull(9).offsets == [1, 2]


def test_delayed_messages_come_when_they_are_due_in_parts_that_can_be_acked(post: Post) -> None:
    post.publish(0, 500, 0, 0, 500, column="dues")
    for offsets in ([0], [2, 3], []):
        delivery = post.doors.pull()
        assert delivery.offsets == offsets
        assert not offsets or post.doors.ack(delivery) == 0
    post.rig.tick(500)
    for offsets in ([1], [4]):
        delivery = post.doors.pull()
        assert delivery.offsets == offsets
        assert post.doors.ack(delivery) == 0
    assert post.cursor() == 5
