"""Streams cut anywhere, garbage, and bodies that are not what they claim; the client dialect's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rigs.requests import BODY, CORRELATION, REPLIES, REQUESTS, TEXT
from weir.errors import BadRequest, RemoteProtocolError, UnknownOpcode
from weir.model.ids import Address
from weir.model.limits import (
    CLIENT_FRAME_BYTES_MAX,
    CONTROL_FRAME_BYTES_MAX,
)
from weir.protocol.client import messages as m
from weir.protocol.client.codec import (
    ClientStream,
    body_bytes_max,
    client_frame_size,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from weir.protocol.client.declaration import Layout, opcode_of
from weir.protocol.connection import Connection
from weir.protocol.frame import (
    CLIENT_HEADER,
    ClientFrame,
    Reassembler,
)


def frame_of(buffers: tuple[Any, ...]) -> ClientFrame:
    (frame,) = ClientStream().receive(b"".join(buffers))
    return frame


def with_joined_batches(reply: Any) -> Any:
    """Batches come back glued together: their own headers tell them apart, not the frame."""
    if not isinstance(reply, m.Fetched | m.FetchedChunks | m.Granted):
        return reply
    glued = b"".join(bytes(batch) for batch in reply.batches)
    return replace(reply, batches=(glued,) if glued else ())


#: How many examples each of some 80 kinds gets: a third of what the profile gives to a test.
EACH = settings().max_examples // 5


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@settings(max_examples=EACH)
@given(data=st.data())
def test_requests_come_back_as_they_went(kind: type[Any], data: st.DataObject) -> None:
    request, correlation = data.draw(REQUESTS[kind]), data.draw(CORRELATION)
    frame = frame_of(encode_request(request, correlation))
    assert (frame.flags, frame.correlation) == (0, correlation)
    assert decode_request(frame) == request


@pytest.mark.parametrize("kind", REPLIES, ids=lambda kind: kind.__name__)
@settings(max_examples=EACH)
@given(data=st.data())
def test_replies_come_back_as_they_went(kind: type[Any], data: st.DataObject) -> None:
    opcode, replies = REPLIES[kind]
    reply, correlation = data.draw(replies), data.draw(CORRELATION)
    frame = frame_of(encode_reply(reply, opcode, correlation))
    assert (frame.opcode, frame.correlation) == (opcode, correlation)
    assert decode_reply(frame) == with_joined_batches(reply)


WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i64": 8}
PACKED = [(kind, kind.declaration.body) for kind in m.REQUESTS if kind.declaration.body]
PACKED += [
    (kind.declaration.answer or kind, kind.declaration.answer_body)
    for kind in m.REQUESTS
    if kind.declaration.answer_body
]


def taken(body: bytes, layout: Layout) -> dict[str, Any]:
    """Take a packed body apart as its layout says, a number at a time."""
    at, found = 0, dict[str, Any]()

    def number(kind: str) -> int:
        nonlocal at
        at += WIDTHS[kind]
        return int.from_bytes(body[at - WIDTHS[kind] : at], "little", signed=kind == "i64")

    for full, kind in layout:
        name = full.removesuffix(", if filtered")
        if name != full and not found["is_filtered"]:
            found[name] = 0
        elif kind in WIDTHS:
            found[name] = number(kind)
        elif kind == "address":
            shard, log, node = number("u16"), number("u16"), number("u32")
            found[name] = Address(shard, log, number("i64"), node)
        elif kind == "runs":
            count = found[f"number of {name}"]
            found[name] = tuple((number("i64"), number("i64")) for _ in range(count))
        elif kind == "batches":
            found[name], at = body[at:], len(body)
        else:
            size = int(kind.removeprefix("pad"))
            assert body[at : at + size] == bytes(size)
            at += size
    assert at == len(body)
    return found


@pytest.mark.parametrize(("kind", "layout"), PACKED, ids=lambda one: getattr(one, "__name__", ""))
@settings(max_examples=EACH)
@given(data=st.data())
def test_data_bodies_are_packed_as_they_are_declared(
    kind: type[Any], layout: Layout, data: st.DataObject
) -> None:
    if kind in REQUESTS:
        value = data.draw(REQUESTS[kind])
        frame = frame_of(encode_request(value, 1))
    else:
        opcode, replies = REPLIES[kind]
        value = data.draw(replies)
        frame = frame_of(encode_reply(value, opcode, 1))
    for name, one in taken(bytes(frame.body), layout).items():
        if name.startswith("number of "):
            assert one == len(getattr(value, name.removeprefix("number of ")))
        elif name in ("batches", "message"):
            assert one == b"".join(getattr(value, name))
        elif name == "lineage":
            assert one == value.lineage + 1  # 0 says nothing
        elif name == "ahead_ms":
            assert one == min(value.ahead_ms, 0xFFFFFFFF)
        elif name:
            assert one == getattr(value, name)


def test_every_opcode_and_every_kind_is_covered() -> None:
    assert set(REQUESTS) == set(m.REQUESTS)
    assert set(REPLIES) == m.REPLIES
    assert len(REQUESTS) == len(set(map(opcode_of, m.REQUESTS)))


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(ends)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)
CLIENT_FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 65_535), CORRELATION, st.binary(max_size=300)),
    max_size=8,
)


@given(CLIENT_FRAMES, CUTS)
def test_client_frames_do_not_depend_on_the_cuts(
    frames: list[tuple[int, int, int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(
        CLIENT_HEADER.pack(2, flags, opcode, len(body), correlation) + body
        for flags, opcode, correlation, body in frames
    )
    connection, found = Connection(), []
    for part in cut(stream, cuts):
        found += connection.receive(part)
        assert connection.pending <= len(stream)
    assert [(f.flags, f.opcode, f.correlation, bytes(f.body)) for f in found] == frames
    assert connection.pending == 0


@given(st.integers(0, 65_535), st.integers(1, 2**32 - 1), st.integers(0, 80))
def test_a_frame_costs_what_has_come_and_not_what_it_claims(
    opcode: int, length: int, come: int
) -> None:
    limit = body_bytes_max(opcode)
    assert limit in (CONTROL_FRAME_BYTES_MAX, CLIENT_FRAME_BYTES_MAX)
    reassembler = Reassembler(CLIENT_HEADER.size, client_frame_size)
    data = CLIENT_HEADER.pack(2, 0, opcode, length, 1) + bytes(come)
    if length > limit:
        with pytest.raises(RemoteProtocolError, match="allows"):
            reassembler.receive(data)
        assert reassembler.pending == 0
    elif length > come:
        assert reassembler.receive(data) == []
        assert reassembler.pending == len(data)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\1", b"\2"]), CUTS)
def test_garbage_is_the_peers_fault_and_nothing_else(
    data: bytes, first: bytes, cuts: list[int]
) -> None:
    connection = Connection()
    try:
        for part in cut(first + data, cuts):
            connection.receive(part)
    except RemoteProtocolError:
        return
    assert connection.pending <= len(first + data)


@given(st.integers(0, 65_535), st.integers(0, 255), st.binary(max_size=60))
def test_any_body_is_a_request_or_a_refusal(opcode: int, flags: int, body: bytes) -> None:
    for op in (opcode, opcode % 22):
        try:
            request = decode_request(ClientFrame(0, op, 1, memoryview(body)))
        except (BadRequest, UnknownOpcode):
            continue
        assert isinstance(request, m.Request)
    with_flags = ClientFrame(flags | 1, opcode, 1, memoryview(body))
    with pytest.raises(BadRequest):
        decode_request(with_flags)


@given(st.integers(0, 22), st.integers(0, 3), st.binary(max_size=80))
def test_any_body_is_a_reply_or_the_peers_fault(opcode: int, flags: int, body: bytes) -> None:
    try:
        reply = decode_reply(ClientFrame(flags, opcode, 1, memoryview(body)))
    except RemoteProtocolError:
        return
    assert isinstance(reply, m.Reply)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | BODY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CONTROL = [kind for kind in REQUESTS if kind is not m.Produce]


@pytest.mark.parametrize("kind", CONTROL, ids=lambda kind: kind.__name__)
@settings(max_examples=EACH)
@given(data=st.data())
def test_fields_of_a_later_release_are_passed_over(kind: type[Any], data: st.DataObject) -> None:
    request, extra = data.draw(REQUESTS[kind]), data.draw(st.lists(JSON, max_size=3))
    frame = frame_of(encode_request(request, 1))
    whole = msgspec.msgpack.decode(msgspec.msgpack.encode(request))  # fields that say nothing, too
    longer = msgspec.msgpack.encode([*whole, *extra])
    assert decode_request(msgspec.structs.replace(frame, body=memoryview(longer))) == request


@pytest.mark.parametrize("kind", CONTROL, ids=lambda kind: kind.__name__)
@settings(max_examples=EACH)
@given(data=st.data())
def test_wrong_types_are_bad_requests(kind: type[Any], data: st.DataObject) -> None:
    request = data.draw(REQUESTS[kind])
    frame = frame_of(encode_request(request, 1))
    fields = msgspec.msgpack.decode(frame.body)
    wrong: Any = {}
    if fields:
        at = data.draw(st.integers(0, len(fields) - 1))
        fields[at] = 1.5
        wrong = fields
    body = memoryview(msgspec.msgpack.encode(wrong))
    with pytest.raises(BadRequest, match="Expected"):
        decode_request(msgspec.structs.replace(frame, body=body))
