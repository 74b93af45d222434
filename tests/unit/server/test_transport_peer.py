"""What a peer costs and how long it may take; socket and clock do as they are told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any, cast

import pytest

from weir.broker.reservations import FIRST_BYTES, Incoming, Reservations, State
from weir.errors import Revoked
from weir.model.limits import KIB, MIB
from weir.server.doors import Doors
from weir.server.transport import Peer
from weir.wire import device
from weir.wire import messages as m
from weir.wire.client import ClientStream, decode_reply, encode_request
from weir.wire.frame import CLIENT_HEADER
from weir.wire.messages import Opcode

PING = device.frame(device.DeviceOpcode.PING, 1, b"")


class FakeTransport:
    """Keeps what is written until `taken` takes it."""

    def __init__(self) -> None:
        self.unsent = 0
        self.reading = True
        self.end = ""
        self.written = b""
        self.is_half_closed = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_half_closed = True

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.unsent += sum(map(len, buffers))
        self.written += b"".join(buffers)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return bool(self.end)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "cut"


class FakeDriver:
    """Counts the budget, and keeps the frames."""

    held = False

    def __init__(self) -> None:
        self.time = 0.0
        self.used = 0
        self.frames: list[Any] = []
        self.watched: set[Peer] = set()
        self.reservations = Reservations(0, 0.0)
        self.peers: dict[int, Peer] = {}
        self.events: list[Any] = []
        self.alarms: list[tuple[float, Any]] = []

    def arrived_of(self, frame: Incoming, came: int, size: int) -> None:
        self.reservations.arrived(frame, came, size)
        self.settle_frames()

    def ended_of(self, frame: Incoming) -> None:
        self.reservations.ended(frame)
        self.settle_frames()

    def settle_frames(self) -> None:
        for frame in self.reservations.advance(self.time):
            self.peers[frame.connection].settle_frame(frame)

    def handle(self, event: Any) -> None:
        self.events.append(event)

    def now(self) -> float:
        return self.time

    def opened(self, peer: Peer) -> None:
        pass

    def received(self, session: int, frames: Sequence[Any]) -> None:
        self.frames += frames

    def closed(self, peer: Peer) -> None:
        pass

    def take(self, size: int) -> None:
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size

    def watch(self, peer: Peer) -> None:
        self.watched.add(peer)

    def later(self, seconds: float, act: Any) -> None:
        self.alarms.append((seconds, act))


class Scene:
    """One peer and what is around it."""

    def __init__(self, driver: FakeDriver | None = None) -> None:
        self.driver = driver or FakeDriver()
        self.transport = FakeTransport()
        self.peer = Peer(cast(Any, self.driver), len(self.driver.peers) + 1)
        self.driver.peers[self.peer.session] = self.peer
        self.peer.connection_made(cast(Any, self.transport))

    def greet(self) -> None:
        """Say hello, as a client does."""
        self.peer.data_received(b"".join(encode_request(m.Hello("client"), 1)))

    def sweep_after(self, seconds: float) -> str:
        """Let time pass and sweep; return how the connection ended, or nothing."""
        self.driver.time += seconds
        self.peer.sweep(Doors(frame_seconds=60, idle_seconds=1_800))
        return self.transport.end


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.peer.enter()
    return scene


def test_small_replies_that_nobody_reads_are_charged_too(scene: Scene) -> None:
    for _ in range(64):
        scene.peer.send((bytes(KIB),), 0)
    assert scene.driver.used == 0, "replies on their way are not worth counting"
    scene.peer.send((b"x",), 0)
    assert scene.driver.used == 64 * KIB + 1
    assert scene.driver.watched == {scene.peer}
    scene.transport.unsent = 100
    assert scene.peer.tick()
    assert scene.driver.used == 100
    scene.transport.unsent = 0
    assert not scene.peer.tick()
    assert scene.driver.used == 0


def test_what_is_charged_comes_back_when_the_peer_goes(scene: Scene) -> None:
    scene.peer.send((bytes(70 * KIB),), 0)
    scene.driver.take(5 * KIB)  # by the shard, for messages
    scene.peer.send((bytes(5 * KIB),), 5 * KIB)
    assert scene.driver.used == 75 * KIB
    scene.peer.connection_lost(None)
    assert scene.driver.used == 0


def test_a_frame_must_be_whole_in_time_counted_from_its_first_byte(scene: Scene) -> None:
    scene.peer.data_received(PING)
    assert scene.sweep_after(1_000) == ""
    scene.peer.data_received(PING[:3])
    assert scene.sweep_after(59) == ""
    scene.peer.data_received(PING[3:] + PING[:3])
    assert scene.sweep_after(59) == "", "this is the next frame"
    scene.peer.data_received(PING[3:4])
    assert scene.sweep_after(2) == "cut"


def test_a_frame_has_its_whole_time_however_long_the_peer_was_silent(scene: Scene) -> None:
    scene.peer.data_received(PING)
    assert scene.sweep_after(5) == ""
    scene.driver.time += 4.9
    scene.peer.data_received(PING[:3])
    assert scene.sweep_after(58) == "", "the last sweep was before its first byte"
    assert scene.sweep_after(3) == "cut"


def claim(size: int, brings: int, correlation: int = 1) -> bytes:
    """Return the beginning of a publish of `size` bytes."""
    return CLIENT_HEADER.pack(2, 0, Opcode.PRODUCE, size, correlation) + bytes(brings)


@pytest.mark.parametrize("cuts", [(1,), (15,), (16,), (1, 15, 16, 700)], ids=str)
def test_a_frame_under_way_costs_what_came_however_its_header_came(
    scene: Scene, cuts: tuple[int, ...]
) -> None:
    scene.greet()
    data = claim(8 * MIB, 1_000)
    for first, behind in pairwise((0, *cuts, len(data))):
        scene.peer.data_received(data[first:behind])
    left = scene.driver.reservations
    assert (left.first_bytes, left.reserved_bytes, scene.driver.used) == (len(data), 0, 0)
    scene.peer.data_received(bytes(FIRST_BYTES))
    assert (left.first_bytes, left.reserved_bytes) == (0, CLIENT_HEADER.size + 8 * MIB)
    scene.driver.held = True
    scene.peer.update()
    assert scene.transport.reading, "a frame with a reservation can always finish"
    scene.peer.data_received(bytes(8 * MIB - 1_000 - FIRST_BYTES))
    assert (left.first_bytes, left.reserved_bytes) == (0, 0)
    assert not scene.transport.reading, "the next one has no reservation"
    assert len(scene.driver.frames) == 2


def test_a_frame_without_a_reservation_is_not_read_while_the_node_holds(scene: Scene) -> None:
    scene.greet()
    scene.peer.data_received(claim(MIB, 0)[:7])
    scene.driver.held = True
    scene.peer.update()
    assert not scene.transport.reading
    scene.driver.held = False
    scene.peer.update()
    assert scene.transport.reading


def crowd() -> tuple[FakeDriver, list[Scene], Scene]:
    """Return who has all reservations, and a client whose frame waits for one."""
    driver = FakeDriver()
    scenes = [Scene(driver) for _ in range(5)]
    for number, scene in enumerate(scenes):
        scene.peer.enter()
        scene.greet()
        scene.peer.data_received(claim(8 * MIB, FIRST_BYTES, correlation=70 + number))
    return driver, scenes[:4], scenes[4]


def test_a_frame_that_waits_for_a_reservation_is_not_read_until_it_has_one() -> None:
    driver, full, waiting = crowd()
    assert [scene.transport.reading for scene in full] == [True] * 4
    assert not waiting.transport.reading
    assert waiting.sweep_after(1_000) == "", "its time does not run while it is not read"
    full[2].peer.connection_lost(None)
    assert waiting.transport.reading
    waiting.peer.data_received(bytes(8 * MIB - FIRST_BYTES))
    assert len(driver.frames) == 6


def test_a_revoked_frame_is_refused_with_a_code_and_its_connection_closed() -> None:
    driver, full, waiting = crowd()
    for scene in full[1:]:
        scene.peer.data_received(bytes(100))
    for _ in range(6):
        driver.time += 0.05
        driver.settle_frames()
    loser = full[0]
    (frame,) = ClientStream().receive(loser.transport.written)
    refusal = decode_reply(frame)
    assert isinstance(refusal, m.Refusal)
    assert (refusal.code, frame.correlation) == (Revoked.code, 70)
    assert loser.transport.is_half_closed
    assert not loser.transport.reading
    assert waiting.transport.reading
    loser.peer.data_received(bytes(1_000))
    loser.peer.send((b"a confirm that comes too late",), 5)
    assert driver.used == -5, "it is given back, not written"
    ((_, act),) = driver.alarms
    act()
    assert loser.transport.end == "cut"


def test_first_bytes_of_many_end_with_the_connection_that_waited_longest() -> None:
    driver, numbers = FakeDriver(), count(1)
    quiet = Scene(driver)
    quiet.peer.enter()
    quiet.greet()
    quiet.peer.data_received(claim(60_000, 50_000))
    while driver.reservations.evicted == 0:
        assert next(numbers) < 100
        other = Scene(driver)
        other.peer.enter()
        other.greet()
        other.peer.data_received(claim(60_000, 50_000))
        assert other.transport.end == ""
    (frame,) = ClientStream().receive(quiet.transport.written)
    refusal = decode_reply(frame)
    assert isinstance(refusal, m.Refusal)
    assert refusal.code == Revoked.code


def test_a_device_that_loses_its_memory_is_cut() -> None:
    driver = FakeDriver()
    scene = Scene(driver)
    scene.peer.enter()
    scene.peer.data_received(PING[:3])
    frame = scene.peer._frame
    assert frame is not None
    frame.state = State.EVICTED
    scene.peer.settle_frame(frame)
    assert scene.transport.end == "cut"


def test_nobody_has_more_than_64_kib_before_hello(scene: Scene) -> None:
    scene.peer.data_received(claim(64 * KIB + 1_008, 100))
    assert scene.driver.events == []
    assert scene.driver.reservations.first_bytes == 100 + CLIENT_HEADER.size
    other = Scene()
    other.peer.enter()
    other.peer.data_received(claim(64 * KIB + 1_009, 100))
    (event,) = other.driver.events
    assert "before hello" in event.reason


def test_time_does_not_count_against_a_peer_that_is_not_read_from(scene: Scene) -> None:
    scene.peer.data_received(PING[:3])
    scene.peer.pause_writing()
    assert not scene.transport.reading
    assert scene.sweep_after(1_000) == ""
    scene.peer.resume_writing()
    scene.driver.held = True
    assert scene.sweep_after(1_000) == ""
    scene.driver.held = False
    assert scene.sweep_after(59) == ""
    assert scene.sweep_after(2) == "cut"


def test_a_device_that_is_silent_too_long_is_closed_and_a_client_is_not(scene: Scene) -> None:
    scene.peer.data_received(PING)
    assert scene.sweep_after(1_800) == ""
    scene.peer.data_received(PING)
    assert scene.sweep_after(1_800) == ""
    assert scene.sweep_after(1) == "closed"
    client = Scene()
    client.peer.enter()
    client.peer.data_received(b"\x02")
    client.peer.data_received(b"\0\1\0\0\0\0\0" + bytes(8))
    assert client.sweep_after(100_000) == ""


def test_who_waits_in_the_lobby_is_not_read_from_and_loses_nothing() -> None:
    scene = Scene()
    scene.peer.update()
    assert not scene.transport.reading
    scene.peer.data_received(PING + PING)  # what was read before reading stopped
    assert scene.driver.frames == []
    scene.peer.enter()
    scene.peer.update()
    assert scene.driver.frames == [device.DevicePing(1), device.DevicePing(1)]
    assert scene.transport.reading
