"""The device dialect on streams cut anywhere, and frames that were changed on the way."""

from __future__ import annotations

import struct
from functools import reduce
from itertools import pairwise
from operator import xor as xor_of_two
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import RemoteProtocolError
from weir.model.limits import DEVICE_BODY_BYTES_MAX
from weir.protocol import device as device
from weir.protocol.connection import Connection
from weir.protocol.device import (
    Delivery,
    DeviceAck,
    DeviceExtend,
    DeviceNack,
    DevicePull,
    DeviceSubscribe,
    xor,
)

NATURAL = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=20)
BODY = st.binary(max_size=60)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(ends)]


SN, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
DEVICE_FRAME = st.one_of(
    st.builds(device.subscribe, SN, st.text(max_size=40), TEXT, U16, U32),
    st.builds(device.pull, SN, U16, U32),
    st.builds(device.ack, SN, U16, U64, U64, U64),
    st.builds(DeviceNack, SN, U16, U64, U64, U64, U32).map(device.encode_change),
    st.builds(DeviceExtend, SN, U16, U64, U32).map(device.encode_change),
    st.builds(device.hello, NATURAL, st.integers(0, 2**32 - 1), TEXT, st.integers(0, 65_535)),
    st.builds(device.publish, st.integers(0, 255), st.binary(max_size=40)),
    st.builds(device.publish, st.integers(0, 255), BODY, st.integers(0, 2**32 - 2)),
    st.builds(device.frame, st.integers(0, 65_535), st.integers(0, 255), BODY),
)


def one_by_one(requests: list[Any]) -> list[Any]:
    """Publishes of one read come as columns; how many share a read depends on the cuts."""
    found: list[Any] = []
    for request in requests:
        if isinstance(request, device.DevicePublishes):
            columns = (request.sns, request.sequences, request.values, request.codes)
            found += zip(*columns, strict=True)
        else:
            found.append(request)
    return found


@given(st.lists(DEVICE_FRAME, max_size=8), CUTS)
def test_device_frames_do_not_depend_on_the_cuts(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    expected = [request for frame in frames for request in device.DeviceStream().receive(frame)]
    connection, found = Connection(), []
    for part in cut(stream, cuts):
        found += connection.receive(part)
        assert connection.pending <= len(stream)
    assert one_by_one(found) == one_by_one(expected)
    assert len(one_by_one(found)) == len(frames)
    assert connection.pending == 0


DELIVERY = st.builds(
    lambda rows, *place: Delivery(*place, [o for o, _ in rows], [v for _, v in rows]),
    st.lists(st.tuples(U64, BODY), max_size=4), U16, U64, U16,
)  # fmt: skip
TOO_LARGE = st.builds(
    lambda p, f, a, o, size: Delivery(p, f, a, [o], [b""], size),
    U16, U64, U16, U64, st.integers(1, 2**32 - 1),
)  # fmt: skip
ACKED = st.builds(DeviceAck, SN, U16, U64, U64, U64)
NACKED = st.builds(DeviceNack, SN, U16, U64, U64, U64, U32)
EXTENDED = st.builds(DeviceExtend, SN, U16, U64, U32)
REPLY = st.one_of(
    st.builds(device.encode_delivery, SN, st.one_of(DELIVERY, TOO_LARGE)),
    st.builds(device.encode_change_reply, U16, st.one_of(ACKED, NACKED, EXTENDED)),
    st.builds(device.encode_welcome, st.integers(0, 255), st.integers(0, 99), NATURAL),
    st.builds(device.encode_code, st.just(4), st.integers(0, 255), st.integers(0, 99)),
    st.builds(
        lambda *row: device.encode_confirms(*[[item] for item in row]),
        st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 99), NATURAL,
    ),
)  # fmt: skip


@given(st.lists(REPLY, max_size=8), CUTS)
def test_device_replies_do_not_depend_on_the_cuts(replies: list[bytes], cuts: list[int]) -> None:
    expected = [reply for frame in replies for reply in device.DeviceReplies().receive(frame)]
    stream, found = device.DeviceReplies(), []
    for part in cut(b"".join(replies), cuts):
        found += stream.receive(part)
    assert found == expected
    assert len(found) == len(replies)


@given(st.integers(DEVICE_BODY_BYTES_MAX + 1, 2**32 - 1))
def test_a_device_frame_over_its_limit_is_refused_at_its_header(length: int) -> None:
    stream = device.DeviceStream()
    with pytest.raises(RemoteProtocolError, match="allowed"):
        stream.receive(struct.pack(">BIHB", 1, length, 2, 0))
    assert stream.pending == 0


@given(st.binary(max_size=300))
def test_xor_is_the_fold_of_all_bytes(data: bytes) -> None:
    assert xor(data) == reduce(xor_of_two, data, 0)
    assert xor(memoryview(data)) == reduce(xor_of_two, data, 0)


@given(DEVICE_FRAME, st.data())
def test_a_flipped_bit_behind_the_length_is_found(frame: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(40, len(frame) * 8 - 1))
    flipped = bytearray(frame)
    flipped[bit >> 3] ^= 1 << (bit & 7)
    (request,) = device.DeviceStream().receive(bytes(flipped))
    if isinstance(request, device.DevicePublishes):
        assert request.codes == [8]
        assert request.values == [b""]
    else:
        assert isinstance(request, device.DeviceRefused)
        assert request.code == 8


@given(st.one_of(DELIVERY, TOO_LARGE))
def test_a_delivery_reads_back_as_it_was_written(delivery: Delivery) -> None:
    (reply,) = device.DeviceReplies().receive(device.encode_delivery(9, delivery))
    assert reply.content == delivery
    assert (reply.code == 0) == (not delivery.too_large)


@given(SN, st.text(max_size=40), TEXT, U16, U32, U64)
def test_requests_to_receive_read_back_as_they_were_written(
    sn: int, cluster: str, topic: str, small: int, middle: int, large: int
) -> None:
    frames = (
        device.subscribe(sn, cluster, topic, small, middle),
        device.pull(sn, small, middle),
        device.ack(sn, small, large, large // 2, large // 3),
    )
    assert device.DeviceStream().receive(b"".join(frames)) == [
        DeviceSubscribe(sn, small, middle, cluster, topic),
        DevicePull(sn, small, middle),
        DeviceAck(sn, small, large, large // 2, large // 3),
    ]
