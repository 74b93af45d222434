"""Proofs on the wire, and signed frames: the next one of this way, or none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.access.devices import FrameKeys, Level
from weir.errors import BadRequest, ProofNeeded, RemoteProtocolError, UnknownOpcode
from weir.model.limits import DEVICE_BODY_BYTES_MAX
from weir.protocol import device
from weir.protocol.connection import Connection
from weir.protocol.device import (
    DeviceOpcode,
    DevicePing,
    DevicePublishes,
    DeviceRefused,
    DeviceReplies,
    DeviceStream,
)
from weir.protocol.proof import (
    SIGNED,
    Challenge,
    DeviceProof,
    FrameOpener,
    FrameSigner,
    Proven,
    ReplySigner,
)

KEYS = FrameKeys(b"d" * 32, b"b" * 32)
PING = device.frame(DeviceOpcode.PING, 9, b"")
PROOF = DeviceProof(3, 7, 1, Level.PROOF, b"n" * 16, b"p" * 32)
SIGNING = DeviceProof(3, 7, 1, Level.SIGNED, b"n" * 16, b"p" * 32)


def signed_stream() -> DeviceStream:
    stream = DeviceStream()
    stream.receive(device.prove(SIGNING))
    stream.expect_signed(KEYS)
    return stream


@pytest.mark.parametrize("proof", [PROOF, SIGNING])
def test_a_proof_is_read_as_it_was_written(proof: DeviceProof) -> None:
    assert DeviceStream().receive(device.prove(proof)) == [proof]


@pytest.mark.parametrize("size", [0, 1, 53, 55, 54 + 8])
def test_a_proof_of_another_size_is_refused(size: int) -> None:
    frame = device.frame(DeviceOpcode.PROVE, 3, bytes(size))
    assert DeviceStream().receive(frame) == [DeviceRefused(3, 12, BadRequest.code)]


@pytest.mark.parametrize("size", [11, 26, 28, 100])
def test_a_challenge_of_another_size_ends_the_connection(size: int) -> None:
    body = ProofNeeded.code.to_bytes(2, "big") + bytes(size - 2)
    with pytest.raises(RemoteProtocolError, match="challenge"):
        DeviceReplies().receive(device.frame(0x8001, 0, body))


@pytest.mark.parametrize("size", [2, 10, 41, 43])
def test_a_brokers_proof_of_another_size_ends_the_connection(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="proof"):
        DeviceReplies().receive(device.frame(0x800C, 0, bytes(size)))


BODIES = st.lists(st.binary(max_size=80), min_size=1, max_size=6)


@settings(max_examples=100)
@given(BODIES, st.data())
def test_signed_frames_come_out_as_they_went_in_however_they_are_cut(
    values: list[bytes], data: Any
) -> None:
    frames = [device.publish(1, value, n) for n, value in enumerate(values)]
    signer, stream = FrameSigner(KEYS.of_device), signed_stream()
    wire = signer.sign(b"".join(frames[:2])) + b"".join(map(signer.sign, frames[2:]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=4)))
    plain = DeviceStream()
    found, expected = [], []
    for at, behind in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        for request in stream.receive(wire[at:behind]):
            assert isinstance(request, DevicePublishes)
            found += zip(request.sns, request.sequences, request.values, request.codes, strict=True)
    for frame in frames:
        (request,) = plain.receive(frame)
        assert isinstance(request, DevicePublishes)
        expected += zip(request.sns, request.sequences, request.values, request.codes, strict=True)
    assert found == expected


@settings(max_examples=200)
@given(st.integers(0, 36), st.integers(1, 255))
def test_no_changed_byte_of_a_signed_frame_is_taken(at: int, change: int) -> None:
    frame = bytearray(FrameSigner(KEYS.of_device).sign(device.publish(7, b"unlock door 3", 0)))
    frame[at % len(frame)] ^= change
    mended = bytearray(frame)
    if at % len(frame) < len(frame) - 1:  # who changes a byte on purpose mends the check byte
        mended[-1] ^= change
    for wire in (frame, mended):
        stream = signed_stream()
        try:
            assert stream.receive(bytes(wire)) == []  # its length speaks of more
        except RemoteProtocolError:
            continue


def test_a_signed_frame_is_neither_repeated_nor_left_out_nor_moved() -> None:
    signer = FrameSigner(KEYS.of_device)
    first, second, third = (signer.sign(PING) for _ in range(3))
    assert len({first, second, third}) == 3
    for wire in (first + first, second, first + third, second + first):
        with pytest.raises(RemoteProtocolError, match="not the next one"):
            signed_stream().receive(wire)
    stream = signed_stream()
    assert stream.receive(first + second + third) == [DevicePing(9)] * 3
    with pytest.raises(RemoteProtocolError, match="not the next one"):
        stream.receive(first)


def test_a_frame_is_not_taken_back_by_the_side_that_signed_it() -> None:
    mine = FrameSigner(KEYS.of_device).sign(PING)
    theirs = FrameSigner(KEYS.of_broker).sign(PING)
    assert mine != theirs
    with pytest.raises(RemoteProtocolError):
        signed_stream().receive(theirs)


@pytest.mark.parametrize(
    "wire",
    [
        PING,
        device.frame(DeviceOpcode.PING | SIGNED, 9, b""),
        device.frame(DeviceOpcode.PING | SIGNED, 9, bytes(7)),
        device.frame(DeviceOpcode.PING | SIGNED, 9, bytes(8)),
        device.frame(DeviceOpcode.PING, 9, bytes(8)),
    ],
)
def test_behind_a_signed_proof_nothing_is_taken_unsigned(wire: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        signed_stream().receive(wire)


def test_nothing_may_follow_a_proof_of_signed_frames_before_its_reply() -> None:
    """Whoever sits on the path would say it before anything is signed."""
    with pytest.raises(RemoteProtocolError, match="before the reply"):
        DeviceStream().receive(device.prove(SIGNING) + PING)
    with pytest.raises(RemoteProtocolError, match="before the reply"):
        DeviceStream().receive(device.prove(SIGNING) + device.publish(1, b"open", 0))
    for later in (PING, device.publish(1, b"open", 0), device.prove(PROOF)):
        stream = DeviceStream()
        assert stream.receive(device.prove(SIGNING)) == [SIGNING]
        with pytest.raises(RemoteProtocolError, match="before the reply"):
            stream.receive(later)
    assert DeviceStream().receive(device.prove(PROOF) + PING) == [PROOF, DevicePing(9)]


def test_a_signed_frame_of_an_unsigned_connection_is_an_unknown_opcode() -> None:
    wire = FrameSigner(KEYS.of_device).sign(PING)
    refused = DeviceRefused(9, DeviceOpcode.PING | SIGNED, UnknownOpcode.code)
    assert DeviceStream().receive(wire) == [refused]


def test_a_mac_takes_nothing_from_the_largest_body() -> None:
    largest = device.frame(DeviceOpcode.PUBLISH, 1, bytes(DEVICE_BODY_BYTES_MAX))
    (request,) = signed_stream().receive(FrameSigner(KEYS.of_device).sign(largest))
    assert isinstance(request, DevicePublishes)
    assert len(request.values[0]) == DEVICE_BODY_BYTES_MAX
    for opcode, more in ((2, 1), (2 | SIGNED, 9)):
        head = device.HEADER.pack(1, DEVICE_BODY_BYTES_MAX + more, opcode, 1)
        with pytest.raises(RemoteProtocolError, match="allowed"):
            DeviceStream().receive(head)


PROVEN = device.encode_proven(3, Proven(99, b"p" * 32))
CONFIRM = device.encode_confirm(1, 0, 0, 5)


def opened(key: bytes, wire: bytes) -> list[bytes]:
    opener, found, at = FrameOpener(key), [], 0
    while at < len(wire):
        behind = at + device.frame_size(wire, at)
        found.append(opener.open(wire[at:behind]))
        at = behind
    return found


@pytest.mark.parametrize("at_once", [True, False])
def test_replies_are_signed_from_behind_the_one_to_the_proof(at_once: bool) -> None:
    signer = ReplySigner(KEYS.of_broker, None)
    if at_once:
        wire = signer.sign(CONFIRM + PROVEN + CONFIRM + CONFIRM)
    else:
        wire = b"".join(map(signer.sign, (CONFIRM, PROVEN, CONFIRM, CONFIRM)))
    assert wire.startswith(CONFIRM + PROVEN)
    assert opened(KEYS.of_broker, wire[len(CONFIRM + PROVEN) :]) == [CONFIRM, CONFIRM]


def test_a_second_proof_changes_the_key_behind_its_reply() -> None:
    first = ReplySigner(KEYS.of_broker, None)
    first.sign(PROVEN)
    signer = ReplySigner(b"2" * 32, first)
    wire = signer.sign(CONFIRM) + signer.sign(PROVEN + CONFIRM) + signer.sign(CONFIRM)
    sizes = [len(CONFIRM) + 8, len(PROVEN) + 8]
    before = wire[: sum(sizes)]
    assert opened(KEYS.of_broker, before) == [CONFIRM, PROVEN]
    assert opened(b"2" * 32, wire[sum(sizes) :]) == [CONFIRM, CONFIRM]


@pytest.mark.parametrize("cut", [1, 8, len(CONFIRM) - 1])
def test_half_a_frame_is_not_signed(cut: int) -> None:
    begun = ReplySigner(KEYS.of_broker, None)
    begun.sign(PROVEN)
    for signer in (FrameSigner(KEYS.of_broker), ReplySigner(KEYS.of_broker, None), begun):
        with pytest.raises(ValueError, match="whole"):
            signer.sign(CONFIRM + CONFIRM[:cut])


def test_a_device_takes_signed_replies_alone() -> None:
    replies = DeviceReplies()
    (reply,) = replies.receive(PROVEN)
    assert reply.content == Proven(99, b"p" * 32)
    replies.expect_signed(KEYS)
    signer = FrameSigner(KEYS.of_broker)
    (reply,) = replies.receive(signer.sign(CONFIRM))
    assert (reply.code, reply.offset) == (0, 5)
    with pytest.raises(RemoteProtocolError):
        replies.receive(CONFIRM)
    replies = DeviceReplies()
    replies.expect_signed(KEYS)
    with pytest.raises(RemoteProtocolError):
        replies.receive(FrameSigner(KEYS.of_device).sign(CONFIRM))


def test_only_devices_sign() -> None:
    connection = Connection()
    with pytest.raises(RemoteProtocolError, match="devices"):
        connection.sign(KEYS)
    connection.receive(PING)
    connection.sign(KEYS)
    assert isinstance(connection.signer, ReplySigner)


def test_a_challenge_is_read_as_it_was_written() -> None:
    asked = Challenge(99, Level.SIGNED, b"n" * 16)
    (reply,) = DeviceReplies().receive(device.encode_challenge(3, asked))
    assert (reply.code, reply.content) == (ProofNeeded.code, asked)
    # A release that knows no proofs would say it without one.
    (reply,) = DeviceReplies().receive(device.encode_welcome(3, ProofNeeded.code, 99))
    assert (reply.code, reply.content) == (ProofNeeded.code, None)
