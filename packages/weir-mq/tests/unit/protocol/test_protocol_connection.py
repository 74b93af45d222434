"""The first byte of a connection tells its dialect."""

from __future__ import annotations

import pytest

from weir.errors import RemoteProtocolError
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, encode_request
from weir.protocol.connection import Connection
from weir.protocol.device import DevicePing, DeviceStream

CLIENT = b"".join(encode_request(m.Ping(), 1))
DEVICE = device.frame(device.DeviceOpcode.PING, 3, b"")


def test_a_client_is_told_by_its_two() -> None:
    connection = Connection()
    (frame,) = connection.receive(CLIENT)
    assert isinstance(connection.stream, ClientStream)
    assert frame.correlation == 1  # type: ignore[union-attr]


def test_a_device_is_told_by_its_one() -> None:
    connection = Connection()
    assert connection.receive(DEVICE) == [DevicePing(3)]
    assert isinstance(connection.stream, DeviceStream)


def test_nothing_read_tells_nothing() -> None:
    connection = Connection()
    assert list(connection.receive(b"")) == []
    assert (connection.stream, connection.pending) == (None, 0)
    assert len(connection.receive(CLIENT)) == 1


@pytest.mark.parametrize("first", [0, 3, 22, 71, 255])
def test_other_peers_are_sent_away_at_their_first_byte(first: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"not {first}"):
        Connection().receive(bytes([first]))


@pytest.mark.parametrize(("opening", "other"), [(CLIENT, DEVICE), (DEVICE, CLIENT)])
def test_a_connection_keeps_to_its_dialect(opening: bytes, other: bytes) -> None:
    connection = Connection()
    connection.receive(opening)
    with pytest.raises(RemoteProtocolError, match="begins with version"):
        connection.receive(other + bytes(16))


def test_pending_is_that_of_the_dialect() -> None:
    for whole in (CLIENT, DEVICE):
        connection = Connection()
        connection.receive(whole + whole[:5])
        assert connection.pending == 5
