"""Devices that give messages back, or keep them longer."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.api import events as ev
from weir.errors import BadRequest, NotSubscribed, StaleGrant
from weir.model.limits import GRANT_MS_MAX
from weir.protocol import device as d
from weir.protocol.device import PULL_BYTES_MIN, Delivery, DeviceExtend, DeviceNack, DeviceReply
from weir.protocol.device import DeviceOpcode as Op

#: As `Doors` subscribe.
LEASE_MS = 5_000
NOTIFY = DeviceReply(Op.NOTIFY, 1, 0)


def asked(doors: Any, request: DeviceNack | DeviceExtend, session: int = 50) -> int:
    opcode = Op.NACK if isinstance(request, DeviceNack) else Op.EXTEND
    replies = doors.ask(d.encode_change(request), session=session)
    (reply,) = [one for one in replies if one.opcode == opcode]
    assert reply.content == request
    return int(reply.code)


def nack(fence: int, first: int, behind: int, delay_ms: int = 0) -> DeviceNack:
    return DeviceNack(1, 0, fence, first, behind, delay_ms)


def test_what_a_device_gives_back_goes_to_another_at_once(doors: Any) -> None:
    doors.subscribed(50)
    doors.subscribed(51)
    doors.publish(b"a", b"b")
    pulled = doors.pull(session=50)
    doors.replies(51)
    assert asked(doors, nack(pulled.fence, 1, 2)) == 0
    doors.rig.tick()
    again = doors.pull(session=51)
    assert (again.offsets, again.attempts) == ([1], 2)
    assert asked(doors, nack(pulled.fence, 1, 2)) == StaleGrant.code
    assert doors.ack(again, session=51) == 0


def test_with_a_delay_it_comes_again_later(doors: Any) -> None:
    doors.subscribed()
    doors.publish(b"a")
    pulled = doors.pull()
    assert asked(doors, nack(pulled.fence, 0, 1, 60_000)) == 0
    doors.rig.tick(59_999)
    assert doors.pull() == Delivery()
    doors.rig.tick(1)
    doors.rig.tick()
    assert doors.replies() == [NOTIFY]
    assert doors.pull().attempts == 2


def test_what_is_kept_longer_comes_to_nobody_else(doors: Any) -> None:
    doors.subscribed(50)
    doors.subscribed(51)
    doors.publish(b"a")
    pulled = doors.pull(session=50)
    doors.rig.tick(LEASE_MS - 1)
    assert asked(doors, DeviceExtend(1, 0, pulled.fence, 20_000)) == 0
    doors.rig.tick(19_999)
    assert doors.pull(session=51) == Delivery()
    assert doors.ack(pulled, session=50) == 0


def test_the_rest_of_a_grant_is_handed_out_for_as_long(doors: Any) -> None:
    doors.subscribed()
    doors.publish(bytes(100), bytes(100))
    room = PULL_BYTES_MIN + 100
    first = doors.pull(2, room)
    assert asked(doors, DeviceExtend(1, 0, first.fence, 10 * LEASE_MS)) == 0
    doors.rig.tick(2 * LEASE_MS)
    rest = doors.pull(2, room)
    assert (rest.offsets, rest.fence) == ([1], first.fence)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (DeviceNack(2, 0, 1, 0, 1), NotSubscribed.code),
        (DeviceNack(1, 1, 1, 0, 1), BadRequest.code),
        (DeviceNack(1, 0, 1, 0, 2), BadRequest.code),
        (DeviceNack(1, 0, 1, 1, 0), BadRequest.code),
        (DeviceNack(1, 0, 2**64 - 1, 0, 1), 0),  # done already, whoever says so
        (DeviceExtend(2, 0, 1, 1_000), NotSubscribed.code),
        (DeviceExtend(1, 9, 1, 1_000), BadRequest.code),
        (DeviceExtend(1, 0, 1, 0), BadRequest.code),
        (DeviceExtend(1, 0, 1, GRANT_MS_MAX + 1), BadRequest.code),
        (DeviceExtend(1, 0, 1, 1_000), StaleGrant.code),
    ],
    ids=str,
)
def test_every_refusal_of_these_is_a_number(doors: Any, request_: Any, code: int) -> None:
    doors.subscribed()
    doors.publish(b"a")
    doors.ack(doors.pull())
    doors.replies()
    assert asked(doors, request_) == code


def test_they_wait_for_their_commit(doors: Any) -> None:
    doors.subscribed()
    doors.publish(b"a")
    pulled = doors.pull()
    doors.replies()
    doors.rig.device(50, d.encode_change(nack(pulled.fence, 0, 1)))
    assert doors.rig.device_replies[50] == [], "nothing is durable yet"
    doors.rig.handle(ev.Ticked())
    assert DeviceReply(Op.NACK, 1, 0, content=nack(pulled.fence, 0, 1)) in doors.replies()
