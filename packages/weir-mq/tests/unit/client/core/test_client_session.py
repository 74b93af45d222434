"""One connection's requests: numbers, the pending table, what is lost."""

from __future__ import annotations

import pytest

from weir.client.core.session import Session
from weir.errors import Overloaded, RemoteProtocolError
from weir.model.ids import Address
from weir.model.limits import REQUESTS_PENDING_MAX
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_request, encode_reply
from weir.protocol.client.declaration import opcode_of


def reply_bytes(reply: m.Reply, opcode: int, correlation: int) -> bytes:
    return b"".join(encode_reply(reply, opcode, correlation))


def test_replies_find_their_requests_in_any_order() -> None:
    session: Session[str] = Session()
    first, _ = session.ask(m.Ping(), "ping")
    second, _ = session.ask(m.DescribeTopic("t"), "describe")
    info = m.TopicInfo(1, "default", "t", "partition", [Address(0, 0, 65_536)])
    data = reply_bytes(info, opcode_of(m.DescribeTopic), second)
    data += reply_bytes(m.Pong(), opcode_of(m.Ping), first)
    answered = session.receive(data[:20]) + session.receive(data[20:])
    assert [(a.handle, a.correlation, a.reply) for a in answered] == [
        ("describe", second, info),
        ("ping", first, m.Pong()),
    ]
    assert len(session) == 0


def test_a_produce_carries_the_batch_uncopied() -> None:
    session: Session[str] = Session()
    batch = memoryview(b"a batch as it is")
    correlation, buffers = session.ask(m.Produce(Address(1, 2, 65_536), 9, batch), "p")
    assert any(buffer is batch for buffer in buffers)
    (frame,) = ClientStream().receive(b"".join(buffers))
    assert frame.correlation == correlation
    assert decode_request(frame) == m.Produce(Address(1, 2, 65_536), 9, batch)


def test_a_refusal_is_a_reply() -> None:
    session: Session[str] = Session()
    number, _ = session.ask(m.Ping(), "ping")
    refusal = m.Refusal(15, "busy", 3)
    (answered,) = session.receive(reply_bytes(refusal, opcode_of(m.Ping), number))
    assert answered.reply == refusal


def test_the_end_gives_back_what_has_no_answer() -> None:
    session: Session[str] = Session()
    numbers = [session.ask(m.Ping(), name)[0] for name in "abc"]
    session.receive(reply_bytes(m.Pong(), opcode_of(m.Ping), numbers[1]))
    assert session.end() == [("a", numbers[0]), ("c", numbers[2])]
    assert session.end() == []


@pytest.mark.parametrize(
    "data",
    [
        reply_bytes(m.Pong(), opcode_of(m.Ping), 99),  # a number nobody used
        reply_bytes(m.Pong(), opcode_of(m.Hello), 1),  # another opcode than was asked
        b"\x02\x00" + reply_bytes(m.Pong(), opcode_of(m.Ping), 1)[2:],  # no response flag
        b"\x01" + bytes(40),  # another dialect
    ],
)
def test_what_answers_no_request_ends_the_connection(data: bytes) -> None:
    session: Session[str] = Session()
    session.ask(m.Ping(), "ping")
    with pytest.raises(RemoteProtocolError):
        session.receive(data)


def test_the_pending_table_is_bounded() -> None:
    session: Session[int] = Session()
    for i in range(REQUESTS_PENDING_MAX):
        assert not session.full
        session.ask(m.Ping(), i)
    assert session.full
    with pytest.raises(Overloaded):
        session.ask(m.Ping(), -1)
    assert len(session) == REQUESTS_PENDING_MAX
