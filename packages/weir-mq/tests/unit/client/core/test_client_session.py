"""One connection's requests: numbers, the pending table, what is lost, and who is silent."""

from __future__ import annotations

import pytest

from weir.client.core.session import Liveness, Pending, Session
from weir.errors import Overloaded, RemoteProtocolError
from weir.model.ids import Address
from weir.model.limits import REQUESTS_PENDING_MAX
from weir.protocol.client import messages as m
from weir.protocol.client.codec import (
    ClientStream,
    decode_request,
    encode_reply,
    encode_request,
)
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.quotas import Throttled


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


def pending(*requests: m.Request | None) -> Pending:
    return {n: (0, None, request) for n, request in enumerate(requests, 1)}


def test_silence_is_pinged_after_10_s_and_ends_after_30_s() -> None:
    alive = Liveness(100.0)
    found = []
    now = 100.0
    for _ in range(9):
        look = alive.look(now, pending())
        if look.is_dead:
            break
        if look.pings:
            found.append(now)
            alive.pinged_at = now
        now += look.wait
        alive.looks_at = now
    assert (now, look.is_dead) == (130.0, True)
    assert found[0] == 110.0


def test_where_others_can_take_over_who_owes_an_answer_is_silent_soon() -> None:
    alive, asked = Liveness(100.0), pending(m.Ping())
    assert not alive.look(100.4, asked).is_silent
    alive.prompt, alive.looks_at = True, 100.4
    look = alive.look(100.4, asked)
    assert (look.is_silent, look.pings, look.is_dead) == (True, True, False)
    alive.pinged_at = alive.looks_at = 100.4
    assert not alive.look(100.5, asked).pings  # one is under way
    alive.looks_at = 102.0
    assert alive.look(102.0, asked).is_dead
    assert not alive.look(102.0, pending()).is_silent  # nothing is due
    alive.heard = 102.0
    assert not alive.look(102.0, asked).is_silent


def test_what_the_broker_may_keep_is_due_after_that_or_after_a_ping_without_answer() -> None:
    alive = Liveness(100.0)
    alive.prompt = True
    asked = pending(m.Fetch(Address(0, 0, 65_536), 0, 1, wait_ms=5_000), m.Ping())
    assert [*alive.overdue(100.5, asked)] == [m.Ping()]
    alive.pinged_at = 100.6
    assert len([*alive.overdue(100.8, asked)]) == 1
    assert len([*alive.overdue(100.9, asked)]) == 2


def test_a_loop_that_was_busy_did_not_listen() -> None:
    alive = Liveness(100.0)
    alive.prompt, alive.looks_at = True, 100.3
    look = alive.look(105.0, pending(m.Ping()))
    assert (look.is_dead, look.is_silent) == (False, False)


def test_a_notice_has_these_bytes_and_answers_nothing() -> None:
    notice = bytes.fromhex("02015f0004000000000000000000000091cd05dc")
    assert b"".join(encode_reply(Throttled(1_500), Throttled.opcode, 0)) == notice
    session: Session[str] = Session()
    number, _ = session.ask(m.Ping(), "ping")
    pong = b"".join(encode_reply(m.Pong(5), 2, number))
    assert [one.reply for one in session.receive(notice + pong)] == [m.Pong(5)]
    assert session.throttle_ms == 1_500
    with pytest.raises(RemoteProtocolError, match="a notice makes no sense"):
        session.receive(notice[:16] + bytes.fromhex("91a26161"))


def test_who_is_throttled_waits_for_longer() -> None:
    alive = Liveness(0.0)
    alive.prompt = True
    session: Session[str] = Session()
    session.ask(m.Ping(), "ping")
    alive.throttled(1.0, 5.0)
    alive.looks_at = 1.0
    assert not alive.look(2.5, session.pending).is_dead, "a loop that was busy changes nothing"
    alive.looks_at = 5.9
    look = alive.look(5.9, session.pending)
    assert (look.is_dead, look.is_silent, look.pings) == (False, False, False)
    alive.looks_at = 8.1
    assert alive.look(8.1, session.pending).is_dead


def test_hello_says_that_it_takes_notices_at_its_end() -> None:
    plain = b"".join(encode_request(m.Hello("a", 77), 1))
    notices = b"".join(encode_request(m.Hello("a", 77, notices=True), 1))
    assert plain[16:] == bytes.fromhex("93a1614d01")
    assert notices[16:] == bytes.fromhex("94a1614d01c3")
