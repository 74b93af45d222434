"""The side of a worker in each peer's protocol: what is given to it, how it acks, and how it learns
that the peer knows all acks.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_lab.bench.sides.peers import nats, sets
from weir_lab.bench.sides.peers.dialect import PeerRefused, Sharing
from weir_lab.bench.sides.peers.peers import peer
from weir_lab.bench.sides.peers.rabbitmq import RabbitMq

SIZE = 16
GRANT = 1_000
VALUES = [b"%016d" % n for n in range(250)]


def worker(label: str, number: int = 3) -> Sharing:
    (one,) = peer(label)
    return one.working("q", SIZE, number, GRANT)


def fed(dialect: Sharing, stream: bytes, cuts: list[int]) -> tuple[list[bytes], bytes]:
    """Return the values in a stream that comes in pieces, and all that was answered."""
    values, answers = list[bytes](), b""
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for first, behind in pairwise(edges):
        some, answer = dialect.receive(stream[first:behind])
        values += some
        answers += answer
    return values, answers


def amqp(numbers: tuple[int, int], arguments: bytes, channel: int = 1) -> bytes:
    body = struct.pack(">HH", *numbers) + arguments
    return struct.pack(">BHI", 1, channel, len(body)) + body + b"\xce"


def amqp_delivery(number: int, value: bytes) -> bytes:
    deliver = b"\x01t" + struct.pack(">Q", number) + b"\0" + b"\0" + b"\x01q"
    properties = struct.pack(">HHQHB", 60, 0, len(value), 0x1000, 2)
    frames = ((2, properties), (3, value))
    return amqp((60, 60), deliver) + b"".join(
        struct.pack(">BHI", kind, 1, len(body)) + body + b"\xce" for kind, body in frames
    )


AMQP_LOGIN = (
    amqp((10, 10), b"\0\x09" + bytes(8), 0) + amqp((10, 30), bytes(8), 0)
    + amqp((10, 41), b"\0", 0) + amqp((20, 11), bytes(4)) + amqp((60, 11), b"")
)  # fmt: skip


def resp_reply(values: list[bytes]) -> bytes:
    reply = b"*1\r\n*2\r\n$1\r\nq\r\n*%d\r\n" % len(values)
    for number, value in enumerate(values):
        reply += b"*2\r\n$5\r\n%03d-0\r\n*2\r\n$1\r\nd\r\n$16\r\n%b\r\n" % (number, value)
    return reply


#: What comes before messages, messages, and what comes once all acks are known.
PEERS: dict[str, tuple[bytes, bytes, Callable[[bytes], bytes]]] = {
    "redis:always": (b"", resp_reply(VALUES), lambda _: b":100\r\n:100\r\n:50\r\n"),
    "nats:always": (
        b"INFO {}\r\nPONG\r\n",
        b"".join(b"MSG q 1 $JS.ACK.%d 16\r\n%b\r\n" % pair for pair in enumerate(VALUES)),
        lambda asked: b"MSG %b 2 0\r\n\r\n" % asked.split()[2],
    ),
    "rabbitmq:quorum": (
        AMQP_LOGIN,
        amqp((60, 21), b"\x01t") + b"".join(map(amqp_delivery, range(1, 251), VALUES)),
        lambda _: amqp((50, 31), bytes(4)),
    ),
    "activemq:nio": (
        b"CONNECTED\nversion:1.1\n\n\0\n",
        b"".join(
            b"MESSAGE\nmessage-id:%d\ncontent-length:16\n\n%b\0\n" % pair
            for pair in enumerate(VALUES)
        ),
        lambda _: b"RECEIPT\nreceipt-id:u\n\n\0\n",
    ),
}


@pytest.mark.parametrize("label", PEERS)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=6))
def test_a_worker_is_settled_once_the_peer_has_said_so(label: str, cuts: list[int]) -> None:
    before, messages, known = PEERS[label]
    one = worker(label)
    opening = one.opening()
    fed(one, before, cuts)
    assert one.ready
    asked = one.begin()
    assert asked not in opening
    values, _ = fed(one, messages, cuts)
    assert values == VALUES
    assert not one.settled
    reply = known(one.end())
    assert not one.settled
    assert fed(one, reply[:-1], cuts)[0] == []
    one.receive(reply[-1:])
    assert one.settled


@pytest.mark.parametrize(
    ("label", "what"),
    [
        ("redis:always", b"COUNT\r\n$4\r\n1000\r\n"),
        ("rabbitmq:classic", struct.pack(">HHIHB", 60, 10, 0, GRANT, 0)),
        ("activemq:nio", b"activemq.prefetchSize:1000\n"),
    ],
)
def test_a_worker_is_given_no_more_than_a_grant(label: str, what: bytes) -> None:
    one = worker(label)
    said = one.opening() + fed(one, PEERS.get(label, (AMQP_LOGIN,))[0], [])[1] + one.begin()
    assert said.count(what) == 1


def test_pulls_of_nats_are_of_half_a_grant_and_asked_for_again_in_time() -> None:
    one = worker("nats:always")
    one.opening()
    assert [*map(int, re.findall(rb'"batch":(\d+)', one.begin()))] == [500, 500]
    message = b"MSG q 1 $JS.ACK.1 16\r\n%b\r\n" % VALUES[0]
    assert b"batch" not in one.receive(message * 499)[1]
    assert one.receive(message)[1].count(b'"batch":500') == 1


def test_redis_is_acked_by_the_hundred_under_the_name_of_each_worker() -> None:
    one = worker("redis:always", 7)
    assert b"$2\r\nc7\r\n" in one.begin()
    _, answer = one.receive(resp_reply(VALUES))
    assert [*map(int, re.findall(rb"\*(\d+)\r\n\$4\r\nXACK", answer))] == [103, 103, 53]
    assert len(set(re.findall(rb"\r\n(\d{3}-0)", answer))) == 250
    one.receive(b":100\r\n:99\r\n:50\r\n")
    assert not one.settled


def test_nats_is_acked_message_by_message_and_the_last_ack_is_sent_again() -> None:
    one, other = worker("nats:always"), worker("nats:always", 4)
    assert one.opening().split()[-6] != other.opening().split()[-6]
    _, answer = one.receive(PEERS["nats:always"][1])
    acked = re.findall(rb"PUB \$JS\.ACK\.(\d+) 4\r\n\+ACK\r\n", answer)
    assert [*map(int, acked)] == [*range(250)]
    assert one.end().startswith(b"PUB $JS.ACK.249 _INBOX.")
    assert other.end() == b""
    assert other.settled


def test_the_consumer_of_workers_has_explicit_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[str] = []

    def ask(port: int, request: bytes, *_: object) -> bytes:
        if b"CONSUMER.DURABLE" in request:
            policies.append(json.loads(request.split(b"\r\n")[-2])["config"]["ack_policy"])
        return b'"leader":"n1"'

    for label, module in (
        ("nats:always", nats),
        ("nats-py:always", nats),
        ("nats-set:always", sets),
    ):
        monkeypatch.setattr(module, "ask", ask)
        (one,) = peer(label)
        monkeypatch.setattr(one, "_servers", {"n1": 1}, raising=False)
        one.prepare("q")
        one.share("q")
    assert policies == ["all", "explicit"] * 3


@pytest.mark.parametrize("variant", RabbitMq.variants)
def test_only_a_stream_cannot_be_shared(variant: str) -> None:
    one = RabbitMq(variant)
    assert bool(one.no_workers) == (variant == "stream")
    if one.no_workers:
        with pytest.raises(PeerRefused, match="a stream is no work queue"):
            one.working("q", SIZE, 0, GRANT)
