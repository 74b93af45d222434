"""The peers' protocols: what is counted and cut out must not depend on how the stream is cut."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_lab.bench.sides.peers import amqp, nats, rabbitstream, redis, stomp
from weir_lab.bench.sides.peers.dialect import (
    Consuming,
    Marker,
    PeerRefused,
    Publishing,
    Records,
)
from weir_lab.bench.sides.peers.peers import PEERS, peer
from weir_lab.bench.sides.peers.rabbitmq import RabbitMq

SIZE = 16
#: Values that look like every protocol's own words.
VALUES = [
    b"$16\r\n*2\r\n\xce\0\x01abcd",
    b"MSG a 1 b 16\r\n\r\n",
    b"MESSAGE\n\n\0RECEIP",
    b"\0" * 16,
]


def method(channel: int, numbers: tuple[int, int], arguments: bytes = b"") -> bytes:
    body = struct.pack(">HH", *numbers) + arguments
    return struct.pack(">BHI", 1, channel, len(body)) + body + b"\xce"


AMQP_LOGIN = [
    method(0, (10, 10), b"\0\x09" + bytes(8)),
    method(0, (10, 30), bytes(8)),
    method(0, (10, 41), b"\0"),
    method(1, (20, 11), bytes(4)),
]


def amqp_delivery(number: int, value: bytes) -> bytes:
    deliver = b"\x01t" + struct.pack(">Q", number) + b"\0" + b"\0" + b"\x01q"
    properties = struct.pack(">HHQHB", 60, 0, len(value), 0x1000, 2)
    return (
        method(1, (60, 60), deliver)
        + struct.pack(">BHI", 2, 1, len(properties)) + properties + b"\xce"
        + struct.pack(">BHI", 3, 1, len(value)) + value + b"\xce"
    )  # fmt: skip


def resp_reply(values: list[bytes]) -> bytes:
    reply = b"*1\r\n*2\r\n$1\r\nq\r\n*%d\r\n" % len(values)
    for number, value in enumerate(values):
        reply += b"*2\r\n$3\r\n%d-0\r\n*2\r\n$1\r\nd\r\n$16\r\n%b\r\n" % (number, value)
    return reply


def stream_frame(key: int, fields: bytes) -> bytes:
    return struct.pack(">IHH", len(fields) + 4, key, 1) + fields


def granted(key: int) -> bytes:
    return stream_frame(0x8000 | key, struct.pack(">IH", key, 1))


STREAM_LOGIN = b"".join(
    (granted(0x11), granted(0x12), granted(0x13), stream_frame(0x14, bytes(8)), granted(0x15))
)


def chunk(values: list[bytes]) -> bytes:
    entries = b"".join(struct.pack(">I", len(value)) + value for value in values)
    return stream_frame(8, b"\1" + b"\x50\0" + struct.pack(">H", len(values)) + bytes(44) + entries)


def delivered(
    make: Callable[[], Consuming], stream: bytes, cuts: list[int]
) -> tuple[list[bytes], bytes, Consuming]:
    consumer = make()
    values: list[bytes] = []
    answers = consumer.opening()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for first, behind in pairwise(edges):
        some, answer = consumer.receive(stream[first:behind])
        values += some
        answers += answer
    return values, answers, consumer


CONSUMERS: dict[str, tuple[Callable[[], Consuming], bytes, bytes]] = {
    "redis": (
        lambda: redis.Reading("q", SIZE),
        resp_reply(VALUES[:3]) + b":3\r\n*-1\r\n" + resp_reply(VALUES[3:]),
        b"XACK",
    ),
    "nats": (
        lambda: nats.Pulling("q", SIZE),
        b'INFO {"max_payload":1}\r\nPONG\r\n'
        + b"".join(b"MSG q 1 $JS.ACK.%d 16\r\n%b\r\n" % pair for pair in enumerate(VALUES)),
        b"PUB $JS.ACK.3 4\r\n+ACK\r\n",
    ),
    "activemq": (
        lambda: stomp.Subscribing("q", SIZE),
        b"CONNECTED\nversion:1.1\n\n\0\nRECEIPT\nreceipt-id:s\n\n\0\n"
        + b"".join(
            b"MESSAGE\nmessage-id:%d\ncontent-length:16\n\n%b\0\n" % pair
            for pair in enumerate(VALUES)
        ),
        b"message-id:3\n",
    ),
    "rabbitmq": (
        lambda: amqp.Consuming("q", SIZE),
        b"".join(AMQP_LOGIN) + method(1, (60, 11)) + method(1, (60, 21), b"\x01t")
        + b"".join(amqp_delivery(n, value) for n, value in enumerate(VALUES)),
        method(1, (60, 80), struct.pack(">Q", 3) + b"\1"),
    ),
    "rabbitmq streams": (
        lambda: rabbitstream.Subscribing("q", SIZE),
        STREAM_LOGIN + granted(7) + chunk(VALUES[:3]) + stream_frame(0x17, b"") + chunk(VALUES[3:]),
        stream_frame(9, b"\1\0\1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSUMERS)
@given(cuts=st.lists(st.integers(0, 2_000), max_size=6))
def test_values_come_out_whole_wherever_the_stream_is_cut(name: str, cuts: list[int]) -> None:
    make, stream, ack = CONSUMERS[name]
    values, answers, consumer = delivered(make, stream, cuts)
    assert values == VALUES
    assert ack in answers
    assert consumer.ready


PUBLISHERS: dict[str, tuple[Callable[[], Publishing], bytes]] = {
    "redis": (lambda: redis.Adding("q", SIZE), b"$3\r\n1-0\r\n$3\r\n2-0\r\n$4\r\n10-0\r\n"),
    "nats": (
        lambda: nats.Publishing("q", SIZE),
        b"INFO {}\r\n"
        + b"".join(b'MSG _INBOX.p 1 24\r\n{"stream":"q","seq":%d}\r\n' % n for n in range(3)),
    ),
    "activemq": (
        lambda: stomp.Sending("q", SIZE),
        b"CONNECTED\n\n\0\n" + b"RECEIPT\nreceipt-id:r\n\n\0\n" * 3,
    ),
    "rabbitmq": (
        lambda: amqp.Publishing("q", SIZE),
        b"".join(AMQP_LOGIN) + method(1, (85, 11))
        + method(1, (60, 80), struct.pack(">Q", 2) + b"\0")
        + method(1, (60, 80), struct.pack(">Q", 3) + b"\1"),
    ),
    "rabbitmq streams": (
        lambda: rabbitstream.Publishing("q", SIZE),
        STREAM_LOGIN + granted(1) + stream_frame(3, struct.pack(">BIQQ", 1, 2, 0, 0))
        + stream_frame(3, struct.pack(">BIQ", 1, 1, 0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHERS)
@given(cuts=st.lists(st.integers(0, 500), max_size=6))
def test_confirms_are_counted_wherever_the_stream_is_cut(name: str, cuts: list[int]) -> None:
    make, stream = PUBLISHERS[name]
    publisher = make()
    publisher.opening()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for first, behind in pairwise(edges):
        publisher.receive(stream[first:behind])
    assert publisher.ready
    assert publisher.confirmed == 3


def test_confirms_of_single_messages_and_of_many_are_not_counted_twice() -> None:
    publisher = amqp.Publishing("q", SIZE)
    publisher.receive(b"".join(AMQP_LOGIN) + method(1, (85, 11)))
    counts = []
    for tag, multiple in ((3, 0), (1, 0), (4, 1), (2, 1), (6, 0), (5, 0)):
        publisher.receive(method(1, (60, 80), struct.pack(">QB", tag, multiple)))
        counts.append(publisher.confirmed)
    assert counts == [1, 2, 4, 4, 5, 6]


@pytest.mark.parametrize(
    ("publisher", "answer"),
    [
        (redis.Adding("q", SIZE), b"$3\r\n1-0\r\n-OOM no memory\r\n"),
        (nats.Publishing("q", SIZE), b'MSG a 1 9\r\n{"error":{"code":503}}\r\n'),
        (stomp.Sending("q", SIZE), b"ERROR\nmessage:no\n\n\0"),
        (amqp.Publishing("q", SIZE), method(1, (20, 40), b"\x01\x94\x02no\0\0\0\0")),
        (rabbitstream.Publishing("q", SIZE), stream_frame(4, bytes(15))),
        (rabbitstream.Publishing("q", SIZE), stream_frame(0x8013, b"\0\0\0\x13\0\x08")),
    ],
)
def test_an_error_is_raised_and_tells_what_was_said(publisher: Publishing, answer: bytes) -> None:
    with pytest.raises(PeerRefused, match="refused: "):
        publisher.receive(answer)


def test_a_queue_is_declared_and_the_server_asked_nothing_else() -> None:
    declaring = amqp.Declaring("q", "quorum")
    assert declaring.opening() == b"AMQP\0\0\x09\x01"
    answers = [declaring.receive(said) for said in AMQP_LOGIN]
    assert b"x-queue-type" in answers[-1]
    assert not declaring.done
    declaring.receive(method(1, (50, 11), b"\x01q" + bytes(8)))
    assert declaring.done


def test_a_stream_takes_many_messages_in_a_frame() -> None:
    publishing = rabbitstream.Publishing("q", SIZE)
    rows = b"".join(publishing.head + value + publishing.tail for value in VALUES)
    frame = publishing.before(len(VALUES)) + rows
    assert struct.unpack_from(">IHHBI", frame) == (len(frame) - 4, 2, 1, 1, len(VALUES))


def test_no_two_producers_of_nats_share_where_their_acks_go() -> None:
    one, other = nats.Publishing("q", SIZE), nats.Publishing("q", SIZE)
    assert one.head != other.head
    assert one.opening().split()[-2] in one.head
    assert one.opening().split()[-2] not in other.head


def test_a_marker_at_the_seam_counts_once() -> None:
    marker = Marker(b"abc")
    assert [marker.count(part) for part in (b"xab", b"cab", b"c", b"abcabc")] == [0, 1, 1, 2]


def test_records_keep_what_is_not_whole() -> None:
    records = Records(rb"<(.)>")
    assert records.take(b"<a><b") == [(b"a",)]
    assert records.rest == b"<b"
    assert records.take(b">") == [(b"b",)]


def test_a_name_alone_means_every_setting_of_a_peer() -> None:
    assert [one.label for one in peer("redis")] == ["redis:always", "redis:everysec"]
    assert [one.label for one in peer("nats:default")] == ["nats:default"]
    assert {name for name, kind in PEERS.items() if kind(kind.variants[0]).synced} == {*PEERS}
    with pytest.raises(ValueError, match="no peer 'kafka'"):
        peer("kafka")
    with pytest.raises(ValueError, match="redis has the variants always, everysec"):
        peer("redis:never")


@pytest.mark.parametrize("variant", RabbitMq.variants)
def test_every_door_of_rabbitmq_lets_a_burst_wait(variant: str) -> None:
    told = RabbitMq(variant).configuration()
    assert told.count("listeners.tcp") == told.count("backlog = 4096")
    assert ("stream.listeners" in told) == (variant == "stream")
