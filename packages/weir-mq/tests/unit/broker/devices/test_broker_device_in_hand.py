"""A device holds so many messages at a time: it settles them before it gets more."""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import BadRequest, StaleGrant
from weir.model.limits import DEVICE_IN_HAND_MAX
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.device import PULL_BYTES_MIN, Delivery, DeviceExtend, DeviceNack, DeviceReply
from weir.protocol.device import DeviceOpcode as Op

#: As `Doors` subscribe.
LEASE_MS = 5_000
NOTIFY = DeviceReply(Op.NOTIFY, 1, 0)


@pytest.fixture
def one(make_doors: Any) -> Any:
    """A device that said nothing of a limit; three messages are there."""
    doors = make_doors()
    doors.subscribed(in_hand=0)
    doors.publish(b"a", b"b", b"c")
    assert doors.replies() == [NOTIFY]
    return doors


def settled(doors: Any, frame: bytes) -> list[DeviceReply]:
    """Ask, and return what came behind the reply."""
    reply, *more = doors.ask(frame)
    assert reply.code in (0, StaleGrant.code)
    return list(more)


def test_one_message_is_in_hand_unless_more_is_asked_for(one: Any) -> None:
    first = one.pull(9)
    assert first.values == [b"a"]
    assert one.replies() == []
    assert one.pull(9) == Delivery()
    assert one.pull(1) == Delivery()
    assert one.replies() == []
    assert settled(one, d.ack(1, 0, first.fence, 0, 1)) == [NOTIFY]
    assert one.pull(9).values == [b"b"]


@pytest.mark.parametrize("in_hand", [1, 2])
def test_the_limit_is_set_by_the_subscription(make_doors: Any, in_hand: int) -> None:
    doors = make_doors(device_in_hand=3)
    doors.subscribed(in_hand=in_hand)
    doors.publish(b"a", b"b", b"c")
    assert len(doors.pull(9).values) == in_hand
    assert doors.pull(9) == Delivery()


def test_the_default_is_set_by_the_operator(make_doors: Any) -> None:
    doors = make_doors(device_in_hand=2)
    doors.subscribed(in_hand=0)
    doors.publish(b"a", b"b", b"c")
    assert doors.pull(1).values == [b"a"]
    assert doors.pull(9).values == [b"b"]
    assert doors.pull(9) == Delivery()


def test_what_is_given_back_is_not_in_hand(one: Any) -> None:
    first = one.pull()
    nack = d.encode_change(DeviceNack(1, 0, first.fence, 0, 1, 60_000))
    assert settled(one, nack) == [NOTIFY]
    assert one.pull().values == [b"b"]


def test_an_ack_of_something_else_makes_no_room(one: Any) -> None:
    first = one.pull()
    for frame in (
        d.ack(1, 0, first.fence + 1, 0, 1),
        d.ack(1, 0, first.fence, 1, 2),
        d.ack(1, 0, first.fence, 1, 0),
        d.encode_change(DeviceExtend(1, 0, first.fence + 1, 1_000)),
    ):
        one.ask(frame)
        assert one.pull() == Delivery()


def test_the_end_of_a_lease_makes_room_and_is_told(one: Any) -> None:
    assert one.pull().values == [b"a"]
    one.rig.tick(LEASE_MS - 1)
    assert one.replies() == []
    assert one.pull() == Delivery()
    one.rig.tick(1)
    assert one.replies() == [NOTIFY]
    again = one.pull()
    assert (again.values, again.attempts) == ([b"a"], 2)


def test_a_lease_that_is_extended_makes_room_later(one: Any) -> None:
    first = one.pull()
    one.rig.tick(LEASE_MS - 1)
    assert settled(one, d.encode_change(DeviceExtend(1, 0, first.fence, 20_000))) == []
    one.rig.tick(19_999)
    assert one.replies() == []
    assert one.pull() == Delivery()
    one.rig.tick(1)
    assert one.replies() == [NOTIFY]


@pytest.mark.parametrize(
    "ask",
    [
        lambda fence: d.ack(1, 0, fence, 0, 1),
        lambda fence: d.encode_change(DeviceNack(1, 0, fence, 0, 1, 0)),
        lambda fence: d.encode_change(DeviceExtend(1, 0, fence, 60_000)),
    ],
    ids=["ack", "nack", "extend"],
)
def test_what_the_broker_calls_stale_is_not_in_hand(one: Any, ask: Any) -> None:
    first = one.pull()
    one.rig.answer(1, a.SeekCluster(one.info.addresses[0], "crew", 0))
    one.subscribed(51)
    assert one.pull(1, session=51).values == [b"a"]
    assert one.pull() == Delivery()
    (reply,) = [r for r in one.ask(ask(first.fence)) if r.opcode != Op.NOTIFY]
    assert reply.code == StaleGrant.code
    assert one.pull().values == [b"b"]


def test_what_has_no_value_is_not_in_hand(make_doors: Any) -> None:
    doors = make_doors()
    doors.subscribed(in_hand=0)
    doors.publish(bytes(100), b"b")
    assert doors.pull(9, PULL_BYTES_MIN + 10).too_large == 100
    assert doors.pull(9, PULL_BYTES_MIN + 10).values == [b"b"]


def test_what_one_reply_does_not_take_is_counted_when_it_comes(make_doors: Any) -> None:
    doors = make_doors()
    doors.subscribed(in_hand=2)
    doors.publish(bytes(100), bytes(100), bytes(100))
    room = PULL_BYTES_MIN + 100
    first, second = doors.pull(9, room), doors.pull(9, room)
    assert (first.offsets, second.offsets) == ([0], [1])
    assert first.fence == second.fence
    assert doors.pull(9, room) == Delivery()
    assert doors.ack(second) == 0
    assert doors.pull(9, room).offsets == [2]


def test_a_new_connection_begins_with_none_in_hand(one: Any) -> None:
    first = one.pull()
    one.subscribed(51, in_hand=0)
    assert one.pull(session=51).values == [b"b"]
    assert one.ack(first) == 0


@pytest.mark.parametrize("in_hand", [0, DEVICE_IN_HAND_MAX + 1, 0xFFFF])
def test_a_limit_that_makes_no_sense_is_refused(doors: Any, in_hand: int) -> None:
    doors.hub()
    body = in_hand.to_bytes(2, "big") + d.subscribe(1, "crew", "t")[8:-1]
    frame = d.frame(Op.SUBSCRIBE_LIMITED, 1, body)
    assert doors.ask(frame) == [DeviceReply(Op.SUBSCRIBE_LIMITED, 1, BadRequest.code)]
