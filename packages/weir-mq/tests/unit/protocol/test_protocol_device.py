"""The device dialect, both sides."""

from __future__ import annotations

import struct

import pytest

from weir.errors import BadChecksum, BadRequest, RemoteProtocolError, UnknownOpcode
from weir.model.limits import DEVICE_BODY_BYTES_MAX
from weir.protocol import device as device
from weir.protocol.device import (
    NO_SEQUENCE,
    DeviceHello,
    DeviceOpcode,
    DevicePing,
    DevicePublishes,
    DeviceRefused,
    DeviceReplies,
    DeviceReply,
    DeviceStream,
)


def read(*frames: bytes) -> list[device.DeviceRequest]:
    return DeviceStream().receive(b"".join(frames))


def spoiled(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 0x10])


def test_publishes_of_one_read_become_columns() -> None:
    (found,) = read(device.publish(1, b"a"), device.publish(2, b"", 5), device.publish(1, b"c", 0))
    assert found == DevicePublishes([1, 2, 1], [NO_SEQUENCE, 5, 0], [b"a", b"", b"c"], [0, 0, 0])


def test_order_is_kept_around_other_requests() -> None:
    ping = device.frame(DeviceOpcode.PING, 9, b"")
    found = read(device.publish(1, b"a"), ping, device.publish(1, b"b"))
    assert found == [
        DevicePublishes([1], [NO_SEQUENCE], [b"a"], [0]),
        DevicePing(9),
        DevicePublishes([1], [NO_SEQUENCE], [b"b"], [0]),
    ]


def test_one_spoiled_publish_is_refused_alone_and_in_its_place() -> None:
    good, bad = device.publish(1, b"a", 5), spoiled(device.publish(2, b"b", 6))
    (found,) = read(good, bad, good)
    assert isinstance(found, DevicePublishes)
    assert found.codes == [0, BadChecksum.code, 0]
    assert found.values == [b"a", b"", b"a"]
    assert found.sequences == [5, 6, 5]


@pytest.mark.parametrize("opcode", [DeviceOpcode.HELLO, DeviceOpcode.PING, 99])
def test_other_spoiled_frames_are_refused_whatever_they_ask(opcode: int) -> None:
    assert read(spoiled(device.frame(opcode, 4, b"x" * 20))) == [
        DeviceRefused(4, opcode, BadChecksum.code)
    ]


@pytest.mark.parametrize("body", [b"", b"abc", b"\xff\xff\xff\xff", b"\xff\xff\xff\xffvalue"])
def test_a_sequence_must_be_one(body: bytes) -> None:
    # 0xFFFFFFFF means "none": taken as one, it would quietly switch dedupe off.
    (found,) = read(device.frame(DeviceOpcode.PUBLISH_SEQUENCED, 1, body))
    assert found == DevicePublishes([1], [NO_SEQUENCE], [b""], [BadRequest.code])


@pytest.mark.parametrize("body", [b"", bytes(13), bytes(14) + b"\xff"])
def test_a_hello_that_is_none_is_refused(body: bytes) -> None:
    assert read(device.frame(DeviceOpcode.HELLO, 1, body)) == [
        DeviceRefused(1, DeviceOpcode.HELLO, BadRequest.code)
    ]


def test_a_hello_says_who_and_where() -> None:
    assert read(device.hello(5, 1, "locks"), device.hello(2**64 - 1, 0, "", 3, 7)) == [
        DeviceHello(0, 5, 1, device.BY_HUB, "locks"),
        DeviceHello(7, 2**64 - 1, 0, 3, ""),
    ]


@pytest.mark.parametrize("opcode", [0, 8, 13, 0x4004, 0x8001, 0xFFFF])
def test_an_unknown_opcode_is_refused_and_the_stream_goes_on(opcode: int) -> None:
    ping = device.frame(DeviceOpcode.PING, 9, b"")
    assert read(device.frame(opcode, 1, b"x"), ping) == [
        DeviceRefused(1, opcode, UnknownOpcode.code),
        DevicePing(9),
    ]


def test_the_largest_body_passes_and_one_more_does_not() -> None:
    (found,) = read(device.publish(1, bytes(DEVICE_BODY_BYTES_MAX)))
    assert isinstance(found, DevicePublishes)
    assert found.values == [bytes(DEVICE_BODY_BYTES_MAX)]
    with pytest.raises(BadRequest, match="65,536 allowed"):
        device.publish(1, bytes(DEVICE_BODY_BYTES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="65,536 allowed"):
        read(struct.pack(">BIHB", 1, DEVICE_BODY_BYTES_MAX + 1, 2, 0))


def test_values_do_not_keep_the_read_alive() -> None:
    (found,) = read(device.publish(1, b"small"), device.publish(1, bytes(1000)))
    assert isinstance(found, DevicePublishes)
    assert {type(value) for value in found.values} == {bytes}


def test_replies_come_back() -> None:
    frames = [
        device.encode_welcome(1, 0, 77),
        device.encode_confirms([1, 2], [NO_SEQUENCE, 5], [0, 9], [1000, 4]),
        device.encode_code(DeviceOpcode.PING, 3, 0),
        device.encode_code(99, 3, UnknownOpcode.code),
        device.encode_code(DeviceOpcode.PUBLISH, 4, BadRequest.code),
    ]
    assert DeviceReplies().receive(b"".join(frames)) == [
        DeviceReply(DeviceOpcode.HELLO, 1, 0),
        DeviceReply(DeviceOpcode.PUBLISH, 1, 0, NO_SEQUENCE, 1000),
        DeviceReply(DeviceOpcode.PUBLISH_SEQUENCED, 2, 9, 5, 4),
        DeviceReply(DeviceOpcode.PING, 3, 0),
        DeviceReply(99, 3, UnknownOpcode.code),
        DeviceReply(DeviceOpcode.PUBLISH, 4, BadRequest.code),
    ]


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (spoiled(device.encode_code(4, 1, 0)), "check byte"),
        (device.frame(0x8004, 1, b"\0"), "without a code"),
        (device.frame(0x8001, 1, b""), "without a code"),
        (device.frame(DeviceOpcode.PING, 1, b"\0\0"), "is a request"),
    ],
)
def test_replies_that_are_none_are_the_peers_fault(frame: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        DeviceReplies().receive(frame)


def test_confirms_need_columns_of_one_length() -> None:
    with pytest.raises(ValueError, match="shorter"):
        device.encode_confirms([1, 2], [5], [0], [0])


def test_a_device_stream_tells_what_it_holds() -> None:
    stream = DeviceStream()
    frame = device.publish(1, bytes(100))
    assert stream.receive(frame[:50]) == []
    assert stream.pending == 50
    assert len(stream.receive(frame[50:])) == 1
    assert stream.pending == 0
