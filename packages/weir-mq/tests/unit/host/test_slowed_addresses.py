"""Logins that fail slow down their address, and never the port."""

from __future__ import annotations

import pytest

from rigs.client_connections import Around, Scene
from weir.access.failures import FREE_FAILURES
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.errors import Overloaded
from weir.model.limits import MIB, STRANGER_BYTES_MAX, STRANGER_SECONDS
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login
from weir.protocol.client.codec import ClientStream, decode_reply, decode_request, encode_request

HELLO_OF_DEVICE = device.hello(7, 1, "events")


def fail_at(around: Around, address: str, times: int) -> None:
    """Let so many logins from an address fail, as the shard says."""
    around.network.peer = address
    for _ in range(times):
        scene = Scene(around)
        around.connections.actions[ef.Hangup](ef.Hangup(scene.peer.session, "wrong", failed=True))
        assert scene.transport.end == "closed"


def opened_sessions(around: Around) -> set[int]:
    return {event.session for event in around.queue.events if isinstance(event, ev.Opened)}


@pytest.mark.parametrize(
    ("bad", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1"),
        ("2001:db8::1", "2001:db8:0:1::1", "2001:db8::ffff"),
    ],
)
def test_failures_slow_their_address_and_never_the_port(bad: str, other: str, same: str) -> None:
    around = Around()
    fail_at(around, bad, FREE_FAILURES + 1)
    around.network.peer = same
    slow = Scene(around)
    slow.greet()
    assert not slow.transport.reading
    assert slow.peer.session not in opened_sessions(around), (
        "it is not served, so its time has not begun"
    )
    around.network.peer = other
    honest = Scene(around)
    assert honest.transport.reading
    assert honest.peer.session in opened_sessions(around)
    around.connections.check_connections()
    assert slow.peer.session not in opened_sessions(around)
    around.time += 0.2
    around.connections.check_connections()
    assert slow.transport.reading
    assert slow.peer.session in opened_sessions(around)
    assert [type(decode_request(one)) for one in around.frames] == [m.Hello], "nothing is lost"


def test_a_line_that_is_too_long_takes_nobody() -> None:
    around = Around()
    for _ in range(30):
        around.connections.accept_queue.failures.failed("10.0.0.1", around.time)
    around.connections.accept_queue.strangers.limit = MIB
    scenes = [Scene(around) for _ in range(8)]
    for one in scenes:
        one.greet()
    assert [one.transport.end for one in scenes] == [""] * 5 + ["closed"] * 3
    (frame,) = ClientStream().receive(scenes[-1].transport.sent)
    refusal = decode_reply(frame)
    assert isinstance(refusal, m.Refusal)
    assert refusal.code == Overloaded.code
    assert around.connections.accept_queue.slowed == 5
    around.time += 100.0
    around.connections.check_connections()
    assert around.connections.accept_queue.slowed == 0


def test_who_only_hangs_up_has_not_failed() -> None:
    around = Around()
    for _ in range(20):
        scene = Scene(around)
        around.connections.actions[ef.Hangup](ef.Hangup(scene.peer.session, "revoked"))
    assert Scene(around).transport.reading


# -- tickets of logins ---------------------------------------------------------------------------


def slowed(seconds: float = 2.0) -> Around:
    """Return what is around connections from 10.0.0.1, which wait for so long."""
    around = Around()
    around.network.peer = "10.0.0.1"
    around.connections.accept_queue.strangers.limit = MIB
    while around.connections.accept_queue.failures.wait("10.0.0.1", 0.0) < seconds:
        around.connections.accept_queue.failures.failed("10.0.0.1", 0.0)
    return around


def private(around: Around) -> Scene:
    """Return a connection that has come by TLS, as far as its handshakes say."""
    scene = Scene(around)
    around.connections.handshakes.begin(scene.peer)
    around.connections.handshakes.done(scene.peer, "")
    return scene


def first_login(ticket: bytes) -> bytes:
    return b"".join(encode_request(Login("SCRAM-SHA-256", b"n,,n=ann,r=x", ticket), 1))


def test_who_shows_a_ticket_does_not_wait() -> None:
    around = slowed()
    for _ in range(9):
        Scene(around).greet()  # the line of the address is full
    scene = private(around)
    scene.peer.receive(first_login(b"ticket"))
    assert scene.peer.session in opened_sessions(around)
    kinds = [type(one) for one in around.queue.events if one.session == scene.peer.session]
    assert kinds == [ev.Opened, ev.Secured, ev.Received]
    (frame,) = around.frames
    assert decode_request(frame).ticket == b"ticket"  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [b"", b"login", b"login in clear", b"hello", b"device"])
def test_all_others_wait(first: bytes) -> None:
    around = slowed()
    scene = Scene(around) if first == b"login in clear" else private(around)
    match first:
        case b"login":
            scene.peer.receive(first_login(b""))
        case b"login in clear":
            scene.peer.receive(first_login(b"ticket"))
        case b"hello":
            scene.greet()
        case b"device":
            scene.peer.receive(HELLO_OF_DEVICE)
    assert scene.peer.session not in opened_sessions(around)
    assert scene.transport.reading is (first == b"")
    around.time += 2.1
    around.connections.check_connections()
    assert (scene.peer.session in opened_sessions(around)) is (first != b"")
    assert len(around.frames) == (first != b"")


def test_a_frame_that_comes_in_pieces_says_so_when_it_is_whole() -> None:
    around, data = slowed(), first_login(b"ticket")
    scene = private(around)
    scene.peer.receive(data[:9])
    assert scene.peer.session not in opened_sessions(around)
    scene.peer.receive(data[9:])
    assert scene.peer.session in opened_sessions(around)


def test_who_has_a_certificate_does_not_wait() -> None:
    around = slowed()
    scene = Scene(around)
    around.connections.handshakes.begin(scene.peer)
    around.connections.handshakes.done(scene.peer, "", user="default/ann")
    scene.greet()
    assert scene.peer.session in opened_sessions(around)


def test_who_has_waited_is_not_asked_again() -> None:
    around = slowed()
    scene = Scene(around)
    scene.greet()
    around.time += 2.1
    for _ in range(9):
        around.connections.accept_queue.failures.failed("10.0.0.1", around.time)
    around.connections.check_connections()
    assert scene.peer.session in opened_sessions(around)


def test_a_silent_one_is_cut_in_time() -> None:
    """Its time begins when it is read, or when its handshake is done."""
    around = slowed()
    plain, encrypted = Scene(around), Scene(around)
    around.connections.handshakes.begin(encrypted.peer)
    around.time += STRANGER_SECONDS - 1
    around.connections.handshakes.done(encrypted.peer, "")
    around.time += 1.5
    around.connections.check_connections()
    assert (plain.transport.end, encrypted.transport.end) == ("cut", "")
    around.time += STRANGER_SECONDS
    around.connections.check_connections()
    assert encrypted.transport.end == "cut"


def test_who_waits_may_not_bring_much_before() -> None:
    around = slowed()
    scene = Scene(around)
    hello = b"".join(encode_request(m.Hello("client"), 1))
    ping = b"".join(encode_request(m.Ping(), 2))
    scene.peer.receive(hello + ping * (STRANGER_BYTES_MAX // len(ping)))
    assert any("before hello" in reason for reason in around.reasons)
    assert not around.frames
