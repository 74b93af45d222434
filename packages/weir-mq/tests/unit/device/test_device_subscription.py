"""What a subscription asks of its line."""

from __future__ import annotations

from typing import Any, cast

import pytest

from weir.device.client import Received, Subscription
from weir.device.connection import DeviceConnection
from weir.errors import StaleGrant
from weir.protocol import device as wire
from weir.protocol.device import DeviceAck, DeviceStream


class FakeLine:
    """Refuses the acks of fence 1."""

    def __init__(self) -> None:
        self.acked: list[DeviceAck] = []

    def ask(self, frame: bytes, **_: Any) -> None:
        (request,) = DeviceStream().receive(frame)
        assert isinstance(request, DeviceAck)
        self.acked.append(request)
        if request.fence == 1:
            raise StaleGrant(f"offset {request.first}")


def test_an_ack_that_is_refused_keeps_back_no_other() -> None:
    line = FakeLine()
    lock = Subscription(cast(DeviceConnection, line), 3)
    places = [(1, 5), (1, 6), (2, 9), (1, 7)]
    with pytest.raises(StaleGrant, match="offset 5"):
        lock.ack([Received(b"", 0, offset, 1, fence) for fence, offset in places])
    frames = [wire.ack(3, 0, *run) for run in ((1, 5, 7), (2, 9, 10), (1, 7, 8))]
    assert line.acked == [DeviceStream().receive(frame)[0] for frame in frames]
