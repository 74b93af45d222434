"""What shards pass to each other comes back as it went, however the stream is cut."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from weir.access.tokens import SessionToken, TokenLimits
from weir.errors import RemoteProtocolError
from weir.model.limits import TRUNK_FRAME_BYTES_MAX
from weir.protocol import device as device
from weir.protocol import trunk
from weir.protocol.client.codec import ClientStream, decode_request, encode_request
from weir.protocol.client.messages import Address, Produce
from weir.protocol.device import (
    DeviceAck,
    DeviceExtend,
    DeviceHello,
    DeviceNack,
    DevicePing,
    DevicePublishes,
    DevicePull,
    DeviceRefused,
    DeviceSubscribe,
)
from weir.protocol.proof import DeviceProof, DeviceProven, Proven
from weir.protocol.trunk import Arrival, Introduction, Kind, TrunkStream

DEVICE_REQUESTS: list[Any] = [
    DeviceHello(1, 2**64 - 1, 3, 4, "topic"),
    DevicePing(9),
    DevicePublishes([1, 2], [0, device.NO_SEQUENCE], [b"", b"\xff" * 300], [0, 8]),
    DeviceRefused(1, 77, 22),
    DeviceSubscribe(1, 2, 3_000, "crew", "topic"),
    DevicePull(1, 5, 100),
    DeviceAck(1, 2, 3, 4, 5),
    DeviceNack(1, 2, 3, 4, 5, 6),
    DeviceExtend(1, 2, 3, 4),
    DeviceProof(1, 2, 3, 4, b"n" * 16, b"p" * 32),
    DeviceProven(1, DeviceHello(1, 2, 3, 4, "topic"), 5, b"p" * 32),
    DeviceProven(1, DeviceHello(1, 2, 3, 4, "topic"), 5, None),
]


def joined(*frames: tuple[Any, ...]) -> bytes:
    return b"".join(bytes(buffer) for frame in frames for buffer in frame)


@pytest.mark.parametrize("step", [1, 7, 16, 1_000])
def test_frames_do_not_depend_on_the_cuts(step: int) -> None:
    data = joined(
        trunk.encode(Kind.OPENED, 5, b"anonymous"),
        trunk.encode(Kind.CLOSED, 2**64 - 1),
        trunk.encode(Kind.REPLIES, 6, b"a" * 500, b"b"),
    )
    stream, found = TrunkStream(), []
    for at in range(0, len(data), step):
        found += [(k, s, bytes(b)) for k, s, b in stream.receive(data[at : at + step])]
    assert found == [
        (Kind.OPENED, 5, b"anonymous"),
        (Kind.CLOSED, 2**64 - 1, b""),
        (Kind.REPLIES, 6, b"a" * 500 + b"b"),
    ]
    assert stream.pending == 0


def test_a_clients_frame_passes_uncopied() -> None:
    produce = Produce(Address(1, 2, 3), 4, memoryview(bytes(range(200))))
    (frame,) = ClientStream().receive(joined(encode_request(produce, 77)))
    buffers = trunk.encode_client(9, frame)
    assert buffers[-1] is frame.body
    ((kind, session, again),) = TrunkStream().receive(joined(buffers))
    assert (kind, session) == (Kind.CLIENT, 9)
    assert (again.flags, again.opcode, again.correlation) == (
        frame.flags,
        frame.opcode,
        frame.correlation,
    )
    assert decode_request(again) == produce


@pytest.mark.parametrize("request_", DEVICE_REQUESTS, ids=lambda r: type(r).__name__)
def test_a_devices_request_comes_back_as_it_went(request_: Any) -> None:
    ((kind, session, body),) = TrunkStream().receive(joined(trunk.encode_device(3, request_)))
    assert (kind, session) == (Kind.DEVICE, 3)
    assert body == request_


def test_every_device_request_can_be_passed_on() -> None:
    assert {type(r) for r in DEVICE_REQUESTS} == set(get_args(device.DeviceRequest))


def test_a_frame_over_the_limit_is_refused_before_it_is_kept() -> None:
    (header,) = trunk.encode(Kind.REPLIES, 1)
    stream = TrunkStream()
    with pytest.raises(RemoteProtocolError, match="allowed"):
        stream.receive(header[:4] + (TRUNK_FRAME_BYTES_MAX + 1).to_bytes(4, "little") + header[8:])
    assert stream.pending == 0


def test_confirms_are_counted_and_nothing_else_is() -> None:
    confirms = device.encode_confirms([1, 2, 3], [0, 1, device.NO_SEQUENCE], [0, 9, 0], [5, 6, 7])
    assert trunk.count_confirms(confirms) == 3
    welcome = device.encode_welcome(1, 0, 99)
    assert trunk.count_confirms(welcome) == 0
    assert len(welcome) == trunk.WELCOME_BYTES
    confirms = device.encode_confirms([1, 2], [0, 1], [0, 0], [5, 6])
    assert trunk.count_confirms(welcome + confirms) == 2
    proven = device.encode_proven(1, Proven(99, b"p" * 32))
    assert trunk.count_confirms(proven) == 0
    assert trunk.count_confirms(proven + confirms) == 2
    assert trunk.count_confirms(device.encode_code(4, 1, 0)) == 0


@pytest.mark.parametrize("kind", [Kind.ARRIVALS, Kind.ANSWERS])
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\x01", b"\x92\xa1\xff\x90"])
def test_what_is_said_of_many_must_make_sense(kind: Kind, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"of kind {kind} makes no sense"):
        TrunkStream().receive(joined(trunk.encode(kind, 0, body)))


def test_what_is_said_of_many_comes_back_as_it_went() -> None:
    hello, publishes = DEVICE_REQUESTS[0], DEVICE_REQUESTS[2]
    arrivals = [Arrival(2**63, hello, publishes), Arrival(1, hello, publishes)]
    answers = [(2**63, b"a"), (1, b""), (1, b"c")]
    data = joined(trunk.encode_arrivals("ada", arrivals), trunk.encode_answers(answers))
    first, second = TrunkStream().receive(data)
    assert first == (Kind.ARRIVALS, 0, ("ada", arrivals))
    assert second == (Kind.ANSWERS, 0, answers)


@pytest.mark.parametrize(
    "introduction",
    [
        None,
        Introduction("192.0.2.7", 9),
        Introduction(
            "", 1 << 40, SessionToken("me", "k", "id", TokenLimits(("r",), ("a/b",), 1, 2))
        ),
    ],
)
def test_a_session_is_told_with_how_it_was_let_in(introduction: Introduction | None) -> None:
    data = joined(trunk.encode_opened(5, "user:default/ann#3", introduction))
    ((kind, session, body),) = TrunkStream().receive(data)
    assert (kind, session) == (Kind.OPENED, 5)
    found = trunk.decode_opened(body)
    assert found == ("user:default/ann#3", introduction or Introduction())


@pytest.mark.parametrize("more", [b"\0[]", b'\0{"admitted_at":-1}', b"\0{", b"\xff"])
def test_an_introduction_that_makes_no_sense_ends_the_trunk(more: bytes) -> None:
    data = joined(trunk.encode(Kind.OPENED, 5, b"ada" + more))
    with pytest.raises(RemoteProtocolError):
        TrunkStream().receive(data)


def test_the_bytes_of_an_introduction() -> None:
    token = SessionToken("me", "k", "id", TokenLimits(topics=("a/b",)))
    assert joined(trunk.encode_opened(5, "u", Introduction("h", 7, token))) == (
        b"\x01\0\0\0\x4c\0\0\0\x05\0\0\0\0\0\0\0u\0"
        b'{"address":"h","admitted_at":7,"token":["me","k","id",{"topics":["a/b"]}]}'
    )
