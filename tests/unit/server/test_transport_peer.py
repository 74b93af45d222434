"""What a peer costs and how long it may take; socket and clock do as they are told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from weir.model.limits import KIB, MIB
from weir.server.doors import Doors
from weir.server.transport import Peer
from weir.wire import device
from weir.wire.frame import CLIENT_HEADER
from weir.wire.messages import Opcode

PING = device.frame(device.DeviceOpcode.PING, 1, b"")


class FakeTransport:
    """Keeps what is written until `taken` takes it."""

    def __init__(self) -> None:
        self.unsent = 0
        self.reading = True
        self.end = ""

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.unsent += sum(map(len, buffers))

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

    def now(self) -> float:
        return self.time

    def opened(self, peer: Peer) -> None:
        pass

    def received(self, session: int, frames: Sequence[Any]) -> None:
        self.frames += frames

    def closed(self, peer: Peer) -> None:
        pass

    def charge(self, size: int) -> None:
        self.used += size

    take = charge

    def release(self, size: int) -> None:
        self.used -= size

    def watch(self, peer: Peer) -> None:
        self.watched.add(peer)

    def later(self, seconds: float, act: Any) -> None:
        pass


class Scene:
    """One peer and what is around it."""

    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.transport = FakeTransport()
        self.peer = Peer(cast(Any, self.driver), 1)
        self.peer.connection_made(cast(Any, self.transport))

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


@pytest.mark.parametrize("cuts", [(1,), (15,), (16,), (1, 15, 16, 700)], ids=str)
def test_a_frame_under_way_is_charged_whole_however_its_header_came(
    scene: Scene, cuts: tuple[int, ...]
) -> None:
    data = CLIENT_HEADER.pack(2, 0, Opcode.PRODUCE, MIB, 1) + bytes(1_000)
    for first, behind in pairwise((0, *cuts, len(data))):
        scene.peer.data_received(data[first:behind])
    assert scene.driver.used == CLIENT_HEADER.size + MIB
    scene.driver.held = True
    scene.peer.update()
    assert scene.transport.reading, "what is charged is finished"
    scene.peer.data_received(bytes(MIB - 1_000))
    assert scene.driver.used == 0
    assert len(scene.driver.frames) == 1


def test_who_has_sent_but_a_part_of_a_header_is_not_read_while_the_node_holds(scene: Scene) -> None:
    scene.peer.data_received(CLIENT_HEADER.pack(2, 0, Opcode.PRODUCE, MIB, 1)[:7])
    scene.driver.held = True
    scene.peer.update()
    assert not scene.transport.reading
    scene.driver.held = False
    scene.peer.update()
    assert (scene.transport.reading, scene.driver.used) == (True, 0)


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
