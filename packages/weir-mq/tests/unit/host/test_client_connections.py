"""What a peer costs and how long it may take; socket and clock do as they are told."""

from __future__ import annotations

from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from rigs.client_connections import Around, Scene
from rigs.drivers import frame_of
from weir.access.devices import FrameKeys
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.runtime.budget import FIRST_BYTES, State
from weir.errors import NotAuthenticated, Revoked, Unauthorized
from weir.host.accept_queue import ConnectionLimits
from weir.host.shard_loop import PART_FRAMES
from weir.model.limits import KIB, MIB
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import CLIENT_HEADER
from weir.protocol.proof import DeviceProof, FrameSigner, Proven

PING = device.frame(device.DeviceOpcode.PING, 1, b"")


def signing(scene: Scene) -> FrameKeys:
    """Let a device have proved itself, as the shard says."""
    keys = FrameKeys(b"d" * 32, b"b" * 32)
    scene.peer.receive(device.prove(DeviceProof(0, 0, 1, 2, b"n" * 16, b"p" * 32)))
    scene.around.connections.actions[ef.SignFrames](ef.SignFrames(scene.peer.session, keys))
    return keys


def test_a_device_that_signs_is_sent_signed_frames(scene: Scene) -> None:
    keys = signing(scene)
    proven = device.encode_proven(0, Proven(99, b"p" * 32))
    confirm = device.encode_confirm(1, 0, 0, 5)
    for buffers in ((proven,), (confirm, memoryview(confirm)), (confirm,)):
        scene.peer.send(buffers, 0)
    scene.peer.answer(confirm)
    signer = FrameSigner(keys.of_broker)
    assert scene.transport.sent == proven + signer.sign(confirm * 4)
    scene.peer.receive(FrameSigner(keys.of_device).sign(PING))
    assert scene.around.frames[-1] == device.DevicePing(1)
    assert scene.around.reasons == []
    scene.peer.receive(PING)
    assert len(scene.around.reasons) == 1


def test_what_is_no_frame_is_not_sent_to_a_device_that_signs(scene: Scene) -> None:
    """Another shard that is broken must not end this one."""
    signing(scene)
    scene.peer.send((device.encode_proven(0, Proven(99, b"p" * 32)),), 0)
    scene.around.budget.take(7)
    scene.peer.send((b"no frame",), 7)
    assert scene.transport.end == "cut"
    scene.peer.close()
    assert scene.around.budget.used == 0


def test_who_is_gone_or_closing_is_not_made_to_sign(scene: Scene) -> None:
    scene.peer.receive(PING)
    sign = scene.around.connections.actions[ef.SignFrames]
    keys = FrameKeys(b"d" * 32, b"b" * 32)
    sign(ef.SignFrames(77, keys))
    scene.peer.hang_up("over")
    sign(ef.SignFrames(scene.peer.session, keys))
    scene.peer.send((PING,), 0)
    assert scene.transport.sent == PING


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_small_replies_that_nobody_reads_are_charged_too(scene: Scene) -> None:
    for _ in range(64):
        scene.peer.send((bytes(KIB),), 0)
    assert scene.around.budget.used == 0, "replies on their way are not worth counting"
    scene.peer.send((b"x",), 0)
    assert scene.around.budget.used == 64 * KIB + 1
    assert scene.around.connections.watched == {scene.peer.session: scene.peer}
    scene.transport.unsent = 100
    assert scene.peer.check_unsent(0.0)
    assert scene.around.budget.used == 100
    scene.transport.unsent = 0
    assert not scene.peer.check_unsent(0.0)
    assert scene.around.budget.used == 0


def test_what_is_charged_comes_back_when_the_peer_goes(scene: Scene) -> None:
    scene.peer.send((bytes(70 * KIB),), 0)
    scene.around.budget.take(5 * KIB)  # by the shard, for messages
    scene.peer.send((bytes(5 * KIB),), 5 * KIB)
    assert scene.around.budget.used == 75 * KIB
    scene.peer.close()
    assert scene.around.budget.used == 0


def test_a_frame_must_be_whole_in_time_counted_from_its_first_byte(scene: Scene) -> None:
    scene.peer.receive(PING)
    assert scene.sweep_after(1_000) == ""
    scene.peer.receive(PING[:3])
    assert scene.sweep_after(59) == ""
    scene.peer.receive(PING[3:] + PING[:3])
    assert scene.sweep_after(59) == "", "this is the next frame"
    scene.peer.receive(PING[3:4])
    assert scene.sweep_after(2) == "cut"


def test_a_frame_has_its_whole_time_however_long_the_peer_was_silent(scene: Scene) -> None:
    scene.peer.receive(PING)
    assert scene.sweep_after(5) == ""
    scene.around.time += 4.9
    scene.peer.receive(PING[:3])
    assert scene.sweep_after(58) == "", "the last sweep was before its first byte"
    assert scene.sweep_after(3) == "cut"


def claim(size: int, brings: int, correlation: int = 1) -> bytes:
    """Return the beginning of a publish of `size` bytes."""
    return CLIENT_HEADER.pack(2, 0, opcode_of(m.Produce), size, correlation) + bytes(brings)


@pytest.mark.parametrize("cuts", [(1,), (15,), (16,), (1, 15, 16, 700)], ids=str)
def test_a_frame_under_way_costs_what_came_however_its_header_came(
    scene: Scene, cuts: tuple[int, ...]
) -> None:
    scene.greet()
    data = claim(8 * MIB, 1_000)
    for first, behind in pairwise((0, *cuts, len(data))):
        scene.peer.receive(data[first:behind])
    left = scene.around.connections.reservations
    assert (left.first_bytes, left.reserved_bytes, scene.around.budget.used) == (len(data), 0, 0)
    scene.peer.receive(bytes(FIRST_BYTES))
    assert (left.first_bytes, left.reserved_bytes) == (0, CLIENT_HEADER.size + 8 * MIB)
    scene.around.queue.held = True
    scene.peer.update()
    assert scene.transport.reading, "a frame with a reservation can always finish"
    scene.peer.receive(bytes(8 * MIB - 1_000 - FIRST_BYTES))
    assert (left.first_bytes, left.reserved_bytes) == (0, 0)
    assert not scene.transport.reading, "the next one has no reservation"
    assert len(scene.around.frames) == 2


def test_a_frame_without_a_reservation_is_not_read_while_the_node_holds(scene: Scene) -> None:
    scene.greet()
    scene.peer.receive(claim(MIB, 0)[:7])
    scene.around.queue.held = True
    scene.peer.update()
    assert not scene.transport.reading
    scene.around.queue.held = False
    scene.peer.update()
    assert scene.transport.reading


def crowd() -> tuple[Around, list[Scene], Scene]:
    """Return who has all reservations, and a client whose frame waits for one."""
    around = Around()
    scenes = [Scene(around) for _ in range(5)]
    for number, scene in enumerate(scenes):
        scene.greet()
        scene.peer.receive(claim(8 * MIB, FIRST_BYTES, correlation=70 + number))
    return around, scenes[:4], scenes[4]


def test_a_frame_that_waits_for_a_reservation_is_not_read_until_it_has_one() -> None:
    around, full, waiting = crowd()
    assert [scene.transport.reading for scene in full] == [True] * 4
    assert not waiting.transport.reading
    assert waiting.sweep_after(1_000) == "", "its time does not run while it is not read"
    full[2].peer.close()
    assert waiting.transport.reading
    waiting.peer.receive(bytes(8 * MIB - FIRST_BYTES))
    assert len(around.frames) == 6


def test_a_revoked_frame_is_refused_with_a_code_and_its_connection_closed() -> None:
    around, full, waiting = crowd()
    for scene in full[1:]:
        scene.peer.receive(bytes(100))
    for _ in range(6):
        around.time += 0.05
        around.connections.check_connections()
    loser = full[0]
    (frame,) = ClientStream().receive(loser.transport.written)
    refusal = decode_reply(frame)
    assert isinstance(refusal, m.Refusal)
    assert (refusal.code, frame.correlation) == (Revoked.code, 70)
    assert loser.transport.is_half_closed
    assert not loser.transport.reading
    assert waiting.transport.reading
    loser.peer.receive(bytes(1_000))
    loser.peer.send((b"a confirm that comes too late",), 5)
    assert around.budget.used == -5, "it is given back, not written"
    around.time += 0.9
    around.connections.check_connections()
    assert not loser.transport.end
    around.time += 0.1
    around.connections.check_connections()
    assert loser.transport.end == "cut"


def test_first_bytes_of_many_end_with_the_connection_that_waited_longest() -> None:
    around, numbers = Around(), count(1)
    quiet = Scene(around)
    quiet.greet()
    quiet.peer.receive(claim(60_000, 50_000))
    while around.connections.reservations.evicted == 0:
        assert next(numbers) < 100
        other = Scene(around)
        other.greet()
        other.peer.receive(claim(60_000, 50_000))
        assert other.transport.end == ""
    (frame,) = ClientStream().receive(quiet.transport.written)
    refusal = decode_reply(frame)
    assert isinstance(refusal, m.Refusal)
    assert refusal.code == Revoked.code


def test_a_device_that_loses_its_memory_is_cut() -> None:
    scene = Scene()
    scene.peer.receive(PING[:3])
    frame = frame_of(scene.peer)
    assert frame is not None
    frame.state = State.EVICTED
    scene.peer.follow_decision(frame)
    assert scene.transport.end == "cut"


def test_nobody_has_more_than_16_kib_before_hello(scene: Scene) -> None:
    scene.peer.receive(claim(16 * KIB - 16, 100))
    assert scene.around.reasons == []
    assert scene.around.connections.reservations.first_bytes == 100 + CLIENT_HEADER.size
    other = Scene()
    other.peer.receive(claim(16 * KIB - 15, 100))
    (reason,) = other.around.reasons
    assert "before hello" in reason


def test_time_does_not_count_against_a_peer_that_is_not_read_from(scene: Scene) -> None:
    scene.peer.receive(PING[:3])
    scene.peer.pause_writing()
    assert not scene.transport.reading
    assert scene.sweep_after(1_000) == ""
    scene.peer.resume_writing()
    scene.around.queue.held = True
    assert scene.sweep_after(1_000) == ""
    scene.around.queue.held = False
    assert scene.sweep_after(59) == ""
    assert scene.sweep_after(2) == "cut"


def test_a_device_that_is_silent_too_long_is_closed_and_a_client_is_not(scene: Scene) -> None:
    scene.peer.receive(PING)
    assert scene.sweep_after(1_800) == ""
    scene.peer.receive(PING)
    assert scene.sweep_after(1_800) == ""
    assert scene.sweep_after(1) == "closed"
    client = Scene()
    client.peer.receive(b"\x02")
    client.peer.receive(b"\0\1\0\0\0\0\0" + bytes(8))
    assert client.sweep_after(100_000) == ""


def test_who_waits_to_be_let_in_is_not_read_from_and_loses_nothing() -> None:
    around = Around()
    around.connections.hold_clients()
    scene = Scene(around)
    assert scene.transport.reading, "it may be another node"
    scene.peer.receive(PING + PING)
    assert not scene.transport.reading
    assert around.queue.events == []
    around.connections.admit_clients()
    around.connections.check_connections()
    assert around.queue.events[0] == ev.Opened(1, address="10.0.0.1")
    assert around.frames == [device.DevicePing(1), device.DevicePing(1)]
    assert scene.transport.reading


def test_who_hung_up_while_it_waited_is_cut_and_never_let_in() -> None:
    around = Around()
    around.connections.hold_clients()
    scene = Scene(around)
    around.network.gone.add(scene.transport)
    around.connections.admit_clients()
    around.connections.check_connections()
    assert scene.transport.end == "cut"
    assert around.queue.events == []


def test_one_connection_too_many_is_closed_and_another_node_is_not() -> None:
    around = Around(ConnectionLimits(connections_max=2))
    around.network.found.add("10.0.0.1")
    scenes = [Scene(around) for _ in range(3)]
    assert [scene.transport.end for scene in scenes] == [""] * 3
    around.network.found.clear()
    late = Scene(around)
    assert late.transport.end == "closed"
    around.time += 4.9
    around.connections.check_connections()
    assert late.transport.end == "closed", "it may read why"
    around.time += 0.2
    around.connections.check_connections()
    assert late.transport.end == "cut"
    late.peer.close()
    assert around.queue.events == [ev.Opened(n, address="10.0.0.1") for n in (1, 2, 3)], (
        "it was never told of"
    )


def test_a_connection_in_the_link_dialect_is_handed_over() -> None:
    scene = Scene()
    assert not scene.peer.receive(b"\x03hello")
    assert scene.around.queue.events == [ev.Opened(1, address="10.0.0.1"), ev.Closed(1)]
    scene.peer.receive(b"more")
    scene.peer.close()
    assert scene.transport.end == ""


def fetch(correlation: int) -> bytes:
    return b"".join(encode_request(m.Fetch(5, 0, KIB, 0), correlation))


def test_frames_that_ask_for_messages_come_one_at_a_time_and_none_to_a_full_peer() -> None:
    scene = Scene()
    around, backlog = scene.around, scene.around.connections.backlog
    scene.greet()
    around.queue.events.clear()
    scene.peer.receive(fetch(2) + fetch(3) + b"".join(encode_request(m.Ping(), 4)))
    assert [frame.correlation for frame in around.frames] == [2]
    scene.peer.receive(fetch(5))
    assert [frame.correlation for frame in around.frames] == [2], "it is behind the others"
    backlog.serve_next()
    assert [frame.correlation for frame in around.frames] == [2, 3]
    scene.peer.pause_writing()
    assert not scene.transport.reading
    backlog.serve_next()
    assert [frame.correlation for frame in around.frames] == [2, 3], "it takes no replies"
    assert not backlog.unserved
    scene.peer.resume_writing()
    assert scene.transport.reading
    assert [frame.correlation for frame in around.frames] == [2, 3, 4, 5]
    assert not backlog.unserved


def test_what_cannot_be_a_frame_ends_the_session() -> None:
    scene = Scene()
    scene.peer.receive(b"GET / HTTP/1.1")
    assert len(scene.around.reasons) == 1


def test_effects_reach_connections_and_guests_and_charges_of_who_is_gone_come_back() -> None:
    scene = Scene()
    around, actions = scene.around, scene.around.connections.actions
    heard: list[Any] = []
    around.remote_peers[8] = SimpleNamespace(
        send=lambda *given: heard.append(given),
        answer=lambda reply: heard.append(reply),
        hang_up=lambda reason: heard.append(reason),
    )
    around.budget.take(30)
    for effect in (
        ef.Send(1, (b"ab",), 10), ef.Send(8, (b"cd",), 10), ef.Send(9, (b"ef",), 10),
        ef.Answers({1: b"one", 8: b"two", 9: b"gone"}), ef.Hangup(8, "why"), ef.Hangup(9, "-"),
    ):  # fmt: skip
        actions[type(effect)](effect)
    assert heard == [((b"cd",), 10), b"two", "why"]
    assert scene.transport.unsent == 5
    assert around.budget.used == 20
    actions[ef.HoldReads](ef.HoldReads(True))
    assert around.queue.held
    assert not scene.transport.reading
    actions[ef.HoldReads](ef.HoldReads(False))
    assert scene.transport.reading
    actions[ef.Hangup](ef.Hangup(1, "why"))
    assert scene.transport.end == "closed"


def test_a_stalled_peer_is_cut_while_others_wait_for_its_memory() -> None:
    scene = Scene()
    scene.around.budget.take(10)
    scene.peer.send((b"0123456789",), 10)
    scene.around.connections.check_connections()
    scene.around.time += 11
    scene.around.connections.check_connections()
    assert scene.transport.end == ""
    scene.around.queue.held = True
    scene.around.connections.check_connections()
    assert scene.transport.end == "cut"


def test_a_peer_that_waited_long_for_its_reply_has_time_to_take_it() -> None:
    scene = Scene()
    scene.around.queue.held = True
    scene.around.time += 60
    scene.around.budget.take(10)
    scene.peer.send((b"0123456789",), 10)
    scene.around.connections.check_connections()
    assert scene.transport.end == ""
    scene.around.time += 9
    scene.transport.unsent = 5
    scene.around.connections.check_connections()
    scene.around.time += 9
    scene.around.connections.check_connections()
    assert scene.transport.end == "", "it took some"
    scene.around.time += 2
    scene.around.connections.check_connections()
    assert scene.transport.end == "cut"


def test_a_device_that_was_not_read_has_time_to_say_something() -> None:
    scene = Scene()
    scene.peer.receive(PING)
    scene.around.queue.held = True
    assert scene.sweep_after(1_801) == ""
    scene.around.queue.held = False
    assert scene.sweep_after(20) == "", "its ping may be in the socket"
    assert scene.sweep_after(1_801) == "closed"


def test_nobody_is_let_in_by_a_shard_that_has_ended() -> None:
    around = Around()
    around.queue.close()
    scene = Scene(around)
    assert scene.transport.end == "cut"
    assert not around.connections.open_now


def test_many_small_frames_wait_in_line_and_are_served_by_parts_in_order() -> None:
    scene = Scene()
    around, backlog = scene.around, scene.around.connections.backlog
    scene.greet()
    pings = b"".join(b"".join(encode_request(m.Ping(), n)) for n in range(2, 2_002))
    scene.peer.receive(pings)
    assert len(around.frames) == 1 + PART_FRAMES
    assert not scene.transport.reading
    assert list(backlog.parts) == [scene.peer]
    scene.peer.receive(b"".join(encode_request(m.Ping(), 2_002)))
    scene.peer.pause_writing()
    backlog.serve_parts()
    assert len(around.frames) == 1 + PART_FRAMES, "it takes no replies"
    assert not backlog.parts
    scene.peer.resume_writing()
    parts = 0
    while backlog.parts:
        backlog.serve_parts()
        parts += 1
    assert 25 < parts < 32
    assert [frame.correlation for frame in around.frames] == [*range(1, 2_003)]
    assert scene.transport.reading


def test_a_turn_of_those_in_line_takes_a_bounded_number_of_frames() -> None:
    around = Around()
    scenes = [Scene(around) for _ in range(20)]
    pings = b"".join(b"".join(encode_request(m.Ping(), n)) for n in range(300))
    for scene in scenes:
        scene.greet()
        scene.peer.receive(pings)
    assert len(around.connections.backlog.parts) == 20
    before = around.queue.frames
    around.connections.backlog.serve_parts()
    assert around.queue.frames == before + 1_024
    assert list(around.connections.backlog.parts)[:4] == [scene.peer for scene in scenes[16:]]


def opened(around: Around) -> list[type]:
    return [type(one) for one in around.queue.events if isinstance(one, ev.Opened | ev.Closed)]


def test_who_shakes_hands_is_nobody_to_the_shard_until_that_is_done(scene: Scene) -> None:
    """Its 10 s to say hello must not pass while thousands of handshakes are before it."""
    around = scene.around
    assert opened(around) == [ev.Opened]
    scene.around.connections.handshakes.begin(scene.peer)
    assert opened(around) == []
    assert scene.around.connections.handshakes.stepped(scene.peer, 500, scene.around.time)
    scene.around.connections.handshakes.await_turn(scene.peer)
    around.time += 100.0
    around.connections.check_connections()
    assert scene.transport.end == "", "it waits, and not by its own fault"
    assert scene.around.connections.handshakes.stepped(scene.peer, 500, scene.around.time)
    scene.around.connections.handshakes.done(scene.peer, "")
    assert opened(around) == [ev.Opened]
    assert around.connections.accept_queue.strangers.used == 0


def test_a_shard_that_has_heard_of_one_hears_that_it_is_gone_for_now(scene: Scene) -> None:
    around = scene.around
    around.queue.events.clear()  # it has taken them
    scene.around.connections.handshakes.begin(scene.peer)
    assert opened(around) == [ev.Closed]
    scene.around.connections.handshakes.done(scene.peer, "")
    assert opened(around) == [ev.Closed, ev.Opened]


def test_a_handshake_has_10_s_from_its_first_step(scene: Scene) -> None:
    scene.around.connections.handshakes.begin(scene.peer)
    scene.around.connections.handshakes.stepped(scene.peer, 500, scene.around.time)
    scene.around.time += 10.1
    scene.around.connections.check_connections()
    assert scene.transport.end == "cut"


def test_who_waits_to_be_let_in_is_opened_once_though_it_shakes_hands() -> None:
    around = Around(ConnectionLimits(accepts_per_second=1, accept_burst=1))
    Scene(around)
    second = Scene(around)
    assert opened(around) == [ev.Opened]
    second.around.connections.handshakes.begin(second.peer)
    second.around.connections.handshakes.done(second.peer, "")
    assert opened(around) == [ev.Opened], "it is not in yet"
    around.time += 2.0
    around.connections.check_connections()
    assert opened(around) == [ev.Opened, ev.Opened]


def told(around: Around) -> list[str]:
    """Return what a shard hears of peers, with the users of certificates."""
    events = around.queue.events
    return [type(one).__name__ + getattr(one, "user", "") for one in events]


def test_a_shard_hears_of_the_certificate_of_a_device(scene: Scene) -> None:
    """It comes before what the device says first, which is not taken with that of others then."""
    scene.around.connections.handshakes.begin(scene.peer)
    scene.around.connections.handshakes.done(scene.peer, "", device=(7, 3))
    scene.peer.receive(device.hello(7, 1, "doors", 0) + device.publish(0, b"open", 0))
    *_, opened_, certified, received = scene.around.queue.events
    assert isinstance(opened_, ev.Opened)
    assert certified == ev.Certified(scene.peer.session, "", (7, 3))
    assert isinstance(received, ev.Received)


def test_a_device_is_told_by_a_code_that_its_certificate_is_refused(scene: Scene) -> None:
    scene.around.connections.handshakes.begin(scene.peer)
    scene.around.connections.handshakes.done(
        scene.peer, "it is revoked", code=NotAuthenticated.code
    )
    scene.peer.receive(device.hello(7, 1, "doors", 0))
    assert scene.transport.written == device.encode_welcome(0, NotAuthenticated.code, 0)


def test_a_shard_hears_of_a_certificate_before_it_is_asked(scene: Scene) -> None:
    scene.around.connections.handshakes.begin(scene.peer)
    scene.around.connections.handshakes.done(scene.peer, "", "default/ann")
    scene.greet()
    assert told(scene.around)[-3:] == ["Opened", "Certifieddefault/ann", "Received"]
    assert told(scene.around).count("Certifieddefault/ann") == 1


def test_a_shard_hears_of_a_certificate_of_a_peer_that_waited_to_be_let_in() -> None:
    around = Around(ConnectionLimits(accepts_per_second=1, accept_burst=1))
    Scene(around)
    second = Scene(around)
    second.around.connections.handshakes.begin(second.peer)
    second.around.connections.handshakes.done(second.peer, "", "default/ann")
    second.greet()
    around.time += 2.0
    around.connections.check_connections()
    after = told(around)[told(around).index("Opened", 1) :]
    assert after == ["Opened", "Certifieddefault/ann", "Received"]


def test_a_refusal_is_told_once_in_the_peers_own_dialect() -> None:
    client, hub = Scene(), Scene()
    for one in (client, hub):
        one.around.connections.handshakes.begin(one.peer)
        one.around.connections.handshakes.done(one.peer, "the certificate is revoked")
    client.greet()
    client.greet()
    (frame,) = ClientStream().receive(client.transport.written)
    refusal = decode_reply(frame)
    assert isinstance(refusal, m.Refusal)
    assert (refusal.code, refusal.message) == (Unauthorized.code, "the certificate is revoked")
    hub.peer.receive(device.hello(7, 1, "doors", 0))
    (reply,) = device.DeviceReplies().receive(hub.transport.written)
    assert (reply.opcode, reply.code) == (device.DeviceOpcode.HELLO, Unauthorized.code)
    for one in (client, hub):
        assert one.transport.end == "closed"
        assert one.around.frames == [], "the shard hears of nothing"


def test_who_begins_to_log_in_before_it_is_let_in_may_do_so() -> None:
    """The shard forgot that nobody reads along, for it did not know the session yet."""
    around = Around()
    around.network.address = lambda _: "127.0.0.1"  # type: ignore[method-assign]
    around.connections.hold_clients()
    scene = Scene(around)
    login = Login("SCRAM-SHA-256", b"n,,n=ann,r=nonce")
    scene.peer.receive(b"".join(encode_request(login, 1)))
    around.connections.admit_clients()
    around.connections.check_connections()
    events = around.queue.events
    assert ev.Secured(1, "127.0.0.1") in events[events.index(ev.Opened(1, address="127.0.0.1")) :]
