"""The client dialect: batches pass uncopied, every refusal is told, no frame is too long."""

from __future__ import annotations

import msgspec
import pytest

from weir.errors import BadRequest, RemoteProtocolError, TooLarge, UnknownOpcode
from weir.model.ids import Address
from weir.model.limits import CLIENT_FRAME_BYTES_MAX
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.codec import (
    ClientStream,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import ClientFrame, Flags

ADDRESS = Address(1, 2, 65_536)


def test_a_batch_goes_out_and_comes_in_uncopied() -> None:
    batch = memoryview(bytes(1000))
    buffers = encode_request(m.Produce(ADDRESS, -1, batch), 5)
    assert buffers[-1] is batch
    read = b"".join(buffers)
    (frame,) = ClientStream().receive(read)
    request = decode_request(frame)
    assert isinstance(request, m.Produce)
    assert request.batch.obj is read
    assert (len(read) - 1000) % 8 == 0  # so that Arrow can open it in place


@pytest.mark.parametrize(
    ("reply", "opcode"),
    [
        (m.Fetched(ADDRESS, 0, 2, 2, (b"first", b"second")), opcode_of(m.Fetch)),
        (
            m.Granted(ADDRESS, 1, 2, 0, 2, 1, 7, ((0, 1),), (b"first", b"second"), 9),
            opcode_of(m.Pull),
        ),
    ],
)
def test_batches_of_a_reply_are_not_joined(reply: m.Reply, opcode: int) -> None:
    buffers = encode_reply(reply, opcode, 5)
    assert buffers[2:] == (b"first", b"second")
    assert len(b"".join(buffers[:2])) % 8 == 0


def test_a_refusal_has_its_flag_whatever_was_asked() -> None:
    for opcode in map(opcode_of, m.REQUESTS):
        refused = m.Refusal(9, "send from 41", 41)
        (frame,) = ClientStream().receive(b"".join(encode_reply(refused, opcode, 5)))
        assert frame.flags == Flags.RESPONSE | Flags.ERROR
        assert decode_reply(frame) == refused


def test_an_unknown_opcode_is_refused_by_its_number() -> None:
    for opcode in (0, max(map(opcode_of, m.REQUESTS)) + 1, 65_535):
        with pytest.raises(UnknownOpcode) as caught:
            decode_request(ClientFrame(0, opcode, 1, memoryview(b"\x90")))
        assert caught.value.detail == opcode


@pytest.mark.parametrize("flags", [1, 2, 3, 4, 255])
def test_a_request_with_flags_is_refused(flags: int) -> None:
    with pytest.raises(BadRequest, match="no flags"):
        decode_request(ClientFrame(flags, opcode_of(m.Ping), 1, memoryview(b"\x90")))


@pytest.mark.parametrize("flags", [0, 2, 4, 5, 255])
def test_a_reply_without_its_flags_is_the_peers_fault(flags: int) -> None:
    with pytest.raises(RemoteProtocolError, match="make no reply"):
        decode_reply(ClientFrame(flags, opcode_of(m.Ping), 1, memoryview(b"\x90")))


def test_a_request_that_is_too_long_is_refused_here_and_not_by_the_peer() -> None:
    with pytest.raises(TooLarge):
        encode_request(m.DescribeTopic("x" * 1_048_576), 1)
    with pytest.raises(TooLarge) as caught:
        encode_request(m.Produce(ADDRESS, 0, memoryview(bytes(CLIENT_FRAME_BYTES_MAX))), 1)
    assert caught.value.detail == CLIENT_FRAME_BYTES_MAX


@pytest.mark.parametrize(
    ("reply", "opcode"),
    [
        (m.TopicList([m.TopicInfo(1, "default", "x" * 128, "partition", [])] * 9_000), 4),
        (m.Fetched(ADDRESS, 0, 2, 2, (bytes(CLIENT_FRAME_BYTES_MAX),)), 17),
    ],
)
def test_a_reply_that_is_too_long_becomes_a_refusal(reply: m.Reply, opcode: int) -> None:
    (frame,) = ClientStream().receive(b"".join(encode_reply(reply, opcode, 5)))
    answer = decode_reply(frame)
    assert isinstance(answer, m.Refusal)
    assert answer.code == TooLarge.code
    assert "ask for less" in answer.message


def test_a_list_of_clusters_is_as_short_as_before_where_nothing_is_void() -> None:
    def body(reply: a.ClusterList) -> bytes:
        (frame,) = ClientStream().receive(
            b"".join(encode_reply(reply, opcode_of(a.ListClusters), 5))
        )
        assert decode_reply(frame) == reply
        return bytes(frame.body)

    assert body(a.ClusterList(1, 5, [])) == bytes.fromhex("93010590")
    assert body(a.ClusterList(1, 5, [], ((2, 4),))) == bytes.fromhex("9401059091920204")
    pending = a.ClusterList(1, 5, [], pending=(("c", 3),), is_cut_off=True)
    assert body(pending) == bytes.fromhex("97010590909091" + "92a16303" + "c3")


def test_a_stream_tells_what_it_holds() -> None:
    stream = ClientStream()
    data = b"".join(encode_request(m.Hello("python"), 1))
    assert list(stream.receive(data[:-1])) == []
    assert stream.pending == len(data) - 1
    assert len(stream.receive(data[-1:])) == 1
    assert stream.pending == 0


@pytest.mark.parametrize(
    ("opcode", "body", "words"),
    [
        (opcode_of(m.CreateTopic), ["t", -1], "CreateTopic: partitions: Expected `int` >= 0"),
        (opcode_of(m.DescribeTopic), [None], "DescribeTopic: name: Expected `str`, got `None`"),
        (opcode_of(m.Fetch), [[0, 0, -1], 0, 1], r"Fetch: address\[2\]: Expected `int` >= 0"),
        (opcode_of(m.Fetch), [], "Fetch: Expected `array`"),
        (opcode_of(m.Ping), {}, "Ping: Expected `array`"),
    ],
)
def test_a_wrong_field_is_named(opcode: int, body: object, words: str) -> None:
    frame = ClientFrame(0, opcode, 1, memoryview(msgspec.msgpack.encode(body)))
    with pytest.raises(BadRequest, match=words):
        decode_request(frame)
