"""Greetings and frames of the link dialect: read as they were written, refused before they cost."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from weir.errors import RemoteProtocolError
from weir.model.limits import LINK_FRAME_BYTES_MAX, LINK_HELLO_BYTES_MAX
from weir.protocol.link import (
    PING,
    Greeting,
    Lane,
    LinkAnswer,
    LinkHello,
    LinkStream,
    Verdict,
    decode_answer,
    decode_hello,
    encode,
    encode_greeting,
)

HELLO = LinkHello(1, 7, 0, 2, 1, 2, 4, 1, 99, Lane.BULK, 3, 0, "a.example", 6800, 5)
ANSWER = LinkAnswer(Verdict.ELSEWHERE, "this is shard 1", 3, 1, 2, 1, 98, (7001, 7002), 5)


def test_greetings_come_back_as_they_went_however_they_are_cut() -> None:
    for said, read in ((HELLO, decode_hello), (ANSWER, decode_answer)):
        data = encode_greeting(said)
        for at in range(len(data)):
            stream = Greeting()
            assert at == 0 or stream.receive(data[:at]) is None
            body = stream.receive(data[at:])
            assert body is not None
            assert read(body) == said


def test_a_greeting_of_a_later_release_may_say_more() -> None:
    more = msgspec.msgpack.encode([*msgspec.structs.astuple(HELLO), "new", 5])
    assert decode_hello(more) == HELLO


def test_greetings_of_earlier_releases_say_less() -> None:
    fields = msgspec.structs.astuple(ANSWER)
    assert decode_answer(msgspec.msgpack.encode(fields[:-2])) == ANSWER
    less = msgspec.msgpack.encode(fields[:-3])
    assert decode_answer(less) == msgspec.structs.replace(ANSWER, birth=0)
    assert decode_hello(msgspec.msgpack.encode(msgspec.structs.astuple(HELLO)[:-1])) == HELLO


def test_an_answer_says_a_lineage_only_where_there_is_one() -> None:
    fields = msgspec.structs.astuple(ANSWER)
    assert encode_greeting(ANSWER)[4:] == msgspec.msgpack.encode(fields[:-1])
    last = msgspec.structs.replace(ANSWER, lineage=3)
    assert decode_answer(encode_greeting(last)[4:]) == last


def test_nothing_may_come_behind_a_greeting() -> None:
    data = encode_greeting(HELLO)
    with pytest.raises(RemoteProtocolError, match="before anything else"):
        Greeting().receive(data + b"\1")
    with pytest.raises(RemoteProtocolError, match="before anything else"):
        Greeting().receive(data + data)


def test_a_greeting_is_refused_by_its_length_alone() -> None:
    assert Greeting().receive(struct.pack("<BxH", 3, LINK_HELLO_BYTES_MAX)) is None
    with pytest.raises(RemoteProtocolError, match="4,096 allowed"):
        Greeting().receive(struct.pack("<BxH", 3, LINK_HELLO_BYTES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="begins with 3"):
        Greeting().receive(b"\2\0\0\0")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("system", -1), ("node", 0), ("node", 1 << 31), ("shard", 256), ("shards", 0),
        ("logs", 257), ("lane", 4), ("run", 1 << 63), ("host", "x" * 256), ("port", 65_536),
        ("birth", -1),
    ],
)  # fmt: skip
def test_a_hello_that_makes_no_sense_is_the_peers_fault(field: str, wrong: Any) -> None:
    said = msgspec.structs.asdict(HELLO) | {field: wrong}
    with pytest.raises(RemoteProtocolError, match="makes no sense"):
        decode_hello(msgspec.msgpack.encode([*said.values()]))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 4_000 + b"\xc0", b"\x90", b"\xa1\xff"])
def test_any_body_is_a_greeting_or_the_peers_fault(body: bytes) -> None:
    for read in (decode_hello, decode_answer):
        with pytest.raises(RemoteProtocolError, match="makes no sense"):
            read(body)


def test_frames_come_back_as_they_went_however_they_are_cut() -> None:
    sent = [(1, 65_537, b"entries"), (PING, 0, b""), (255, (1 << 64) - 1, bytes(300))]
    data = b"".join(b"".join(encode(*one)) for one in sent)
    for step in (1, 7, 16, len(data)):
        stream = LinkStream()
        parts = [data[at : at + step] for at in range(0, len(data), step)]
        found = [frame for part in parts for frame in stream.receive(part)]
        assert [(one.kind, one.group, bytes(one.body)) for one in found] == sent
        assert stream.pending == 0


def test_a_body_goes_out_uncopied() -> None:
    body = memoryview(bytes(100))
    assert encode(1, 2, b"head", body)[2] is body


def test_a_frame_costs_what_has_come_and_not_what_it_claims() -> None:
    stream = LinkStream()
    header = struct.pack("<B3xIQ", 1, LINK_FRAME_BYTES_MAX, 5)
    assert stream.receive(header + bytes(10)) == []
    assert stream.pending == 26
    with pytest.raises(RemoteProtocolError, match="allowed"):
        LinkStream().receive(struct.pack("<B3xIQ", 1, LINK_FRAME_BYTES_MAX + 1, 5))
