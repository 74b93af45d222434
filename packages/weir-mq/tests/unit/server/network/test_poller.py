"""Devices stay with the crowd, all others get a transport of the loop; none is lost on the way."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from rigs.drivers import is_over
from weir.protocol import device as device
from weir.server.network import poller
from weir.server.network.poller import DevicePoller, ListeningSocket
from weir.server.network.socket_transport import PlainTransport

PING = device.frame(device.DeviceOpcode.PING, 1, b"")
CLIENT = b"\x02" + bytes(15)

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


class Listening(asyncio.Protocol):
    """Notes what happens to its connection."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.heard: list[Any] = []
        self.transport: Any = None
        self.data = b""
        self.raises = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.note("made")

    def moved(self, transport: Any) -> None:
        self.transport = transport
        self.note("moved")

    def update(self) -> None:
        self.note("updated")

    def data_received(self, data: bytes) -> None:
        if self.raises:
            raise KeyError("a bug")
        self.data += data
        self.note("data")

    def pause_writing(self) -> None:
        self.note("full")

    def resume_writing(self) -> None:
        self.note("room")

    def connection_lost(self, error: Exception | None) -> None:
        self.note("lost" if error is None else "broken")

    def note(self, what: str) -> None:
        self.heard.append(what)
        self.scene.news.set()


class Scene:
    """A crowd behind a listener, and those who came in."""

    def __init__(self) -> None:
        self.came: list[Listening] = []
        self.dialed: list[socket.socket] = []
        self.turns: list[str] = []
        self.news = asyncio.Event()
        self.poller = DevicePoller(lambda: self.protocol(), self)
        self.listener = ListeningSocket(socket.AF_INET, socket.SOCK_STREAM)
        self.listener.setblocking(False)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.poller.open(self.listener)

    def protocol(self) -> Listening:
        self.came.append(Listening(self))
        return self.came[-1]

    frames = 0

    def gather(self) -> None:
        self.turns.append("gather")

    def release(self) -> None:
        self.turns.append("release")

    def dial(self) -> socket.socket:
        one = socket.create_connection(self.listener.getsockname(), timeout=10)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.dialed.append(one)
        return one

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not done():
                self.news.clear()
                await self.news.wait()

    async def comes(self, first: bytes = b"") -> tuple[socket.socket, Listening]:
        """Let one come in and say something; return both ends."""
        count = len(self.came)
        one = self.dial()
        one.sendall(first)
        await self.until(lambda: len(self.came) > count and bool(self.came[-1].heard))
        peer = self.came[-1]
        if first:
            await self.until(lambda: peer.data == first)
        return one, peer


def play(
    body: Callable[[Scene], Coroutine[Any, Any, None]], run: Callable[..., Any] = asyncio.run
) -> None:
    async def whole() -> None:
        scene = Scene()
        await body(scene)
        scene.poller.shut()
        for one in scene.came:
            one.transport.abort()
        for end in scene.dialed:
            end.close()
        await asyncio.sleep(0.01)
        assert is_over(scene.poller), "nobody is left"
        assert scene.turns == ["gather", "release"] * (len(scene.turns) // 2)

    run(whole())


@LOOPS
def test_a_device_stays_and_is_answered(run: Callable[..., Any]) -> None:
    async def body(scene: Scene) -> None:
        lock, peer = await scene.comes(PING)
        assert isinstance(peer.transport, PlainTransport)
        assert peer.transport.get_extra_info("peername") == lock.getsockname()
        assert peer.transport.get_extra_info("socket").family == socket.AF_INET
        assert peer.transport.get_extra_info("cipher", 5) == 5
        peer.transport.writelines([b"re", b"ply"])
        assert lock.recv(100) == b"reply"
        lock.sendall(PING)
        await scene.until(lambda: peer.data == 2 * PING)
        lock.close()
        await scene.until(lambda: "lost" in peer.heard)
        assert peer.heard == ["made", "data", "data", "lost"]
        assert peer.transport.get_extra_info("peername") is None

    play(body, run)


@LOOPS
def test_others_move_and_nothing_that_they_say_is_lost(run: Callable[..., Any]) -> None:
    async def body(scene: Scene) -> None:
        client = scene.dial()
        said = CLIENT + bytes(100_000)
        client.sendall(said)
        await scene.until(lambda: bool(scene.came) and scene.came[0].data == said)
        peer = scene.came[0]
        assert peer.heard[:3] == ["made", "moved", "data"]
        await scene.until(lambda: "updated" in peer.heard)
        assert not isinstance(peer.transport, PlainTransport)
        peer.transport.write(b"reply")
        await asyncio.sleep(0)
        assert client.recv(100) == b"reply"
        client.close()
        await scene.until(lambda: "lost" in peer.heard)
        assert peer.heard.count("made") == peer.heard.count("moved") == 1

    play(body, run)


@LOOPS
def test_who_is_cut_while_it_moves_is_lost_once_and_hears_nothing(run: Callable[..., Any]) -> None:
    async def body(scene: Scene) -> None:
        client, peer = await scene.comes(PING[:0])
        first: Any = peer.transport
        client.sendall(CLIENT)
        while not first.moving:
            await asyncio.sleep(0)
        first.write(b"never sent")
        first.abort()
        await scene.until(lambda: "lost" in peer.heard)
        assert client.recv(100) == b""
        await asyncio.sleep(0.01)
        assert peer.heard == ["made", "moved", "lost"]

    play(body, run)


@LOOPS
def test_what_was_written_before_a_move_is_sent_behind_it(run: Callable[..., Any]) -> None:
    async def body(scene: Scene) -> None:
        client, peer = await scene.comes()
        first: Any = peer.transport
        client.sendall(CLIENT)
        while not first.moving:
            await asyncio.sleep(0)
        first.write(b"early")
        await scene.until(lambda: "updated" in peer.heard)
        assert client.recv(100) == b"early"

    play(body, run)


def test_one_that_cannot_move_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(scene: Scene) -> None:
        async def fails(*given: Any) -> None:
            raise OSError(errno.ENOMEM, "no memory")

        monkeypatch.setattr(asyncio.get_running_loop(), "connect_accepted_socket", fails)
        client, peer = await scene.comes()
        client.sendall(CLIENT)
        await scene.until(lambda: "broken" in peer.heard)
        assert peer.heard == ["made", "broken"]
        assert client.recv(100) == b""

    play(body)


def test_who_does_not_read_its_replies_is_told_of_and_gets_all_of_them() -> None:
    async def body(scene: Scene) -> None:
        lock, peer = await scene.comes(PING)
        transport = peer.transport
        transport.set_write_buffer_limits(high=1 << 20)
        count = 0
        while not transport.get_write_buffer_size():
            transport.write(bytes(1 << 16))
            count += 1
        while "full" not in peer.heard:
            transport.write(bytes(1 << 16))
            count += 1
        assert transport.get_write_buffer_size() > 1 << 20
        transport.close()
        transport.write(b"after the end")
        assert transport.is_closing()
        loop = asyncio.get_running_loop()

        def read() -> int:
            with lock.makefile("rb") as file:
                return len(file.read())

        assert await loop.run_in_executor(None, read) == count << 16
        await scene.until(lambda: "lost" in peer.heard)
        assert peer.heard[2:] == ["full", "room", "lost"]

    play(body)


def test_what_nobody_reads_is_dropped_by_an_abort() -> None:
    async def body(scene: Scene) -> None:
        _lock, peer = await scene.comes(PING)
        while not peer.transport.get_write_buffer_size():
            peer.transport.write(bytes(1 << 16))
        peer.transport.abort()
        assert peer.transport.get_write_buffer_size() == 0
        await scene.until(lambda: "lost" in peer.heard)

    play(body)


def test_a_reset_is_told_of_to_who_writes_and_who_reads() -> None:
    async def body(scene: Scene) -> None:
        for act in ("write", "read"):
            lock, peer = await scene.comes(PING)
            if act == "write":
                peer.transport.pause_reading()
            lock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            lock.close()
            if act == "write":
                await asyncio.sleep(0.01)
                assert "broken" not in peer.heard, "nobody looks"
                peer.transport.write(b"reply")
            await scene.until(lambda peer=peer: "broken" in peer.heard)  # type: ignore[misc]

    play(body)


def test_nothing_is_read_of_who_is_paused() -> None:
    async def body(scene: Scene) -> None:
        lock, peer = await scene.comes(PING)
        peer.transport.pause_reading()
        lock.sendall(PING)
        await asyncio.sleep(0.02)
        assert peer.data == PING
        peer.transport.resume_reading()
        await scene.until(lambda: peer.data == 2 * PING)

    play(body)


def test_a_bug_met_by_one_peer_costs_it_alone() -> None:
    async def body(scene: Scene) -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        lock, peer = await scene.comes(PING)
        other, healthy = await scene.comes(PING)
        peer.raises = True
        lock.sendall(PING)
        other.sendall(PING)
        await scene.until(lambda: "lost" in peer.heard and healthy.data == 2 * PING)
        assert isinstance(told[0]["exception"], KeyError)

    play(body)


def test_who_waits_unread_as_the_doors_shut_is_read_in_its_turn() -> None:
    """One that nobody had looked at yet was no member, and met an epoll that was shut."""

    async def body(scene: Scene) -> None:
        paused: list[Any] = []

        def protocol() -> Listening:
            peer = Scene.protocol(scene)
            made = peer.connection_made

            def connection_made(transport: Any) -> None:
                made(transport)
                transport.pause_reading()
                paused.append(transport)

            peer.connection_made = connection_made  # type: ignore[method-assign]
            return peer

        scene.protocol = protocol  # type: ignore[method-assign]
        lock, peer = await scene.comes()
        scene.poller.shut()
        lock.sendall(PING)
        await asyncio.sleep(0.01)
        assert peer.data == b""
        paused[0].resume_reading()
        await scene.until(lambda: peer.data == PING)

    play(body)


def test_a_door_that_another_process_holds_open_is_left_as_the_doors_shut() -> None:
    """The epoll went on telling of it, with nobody to let in who came there."""

    async def body(scene: Scene) -> None:
        with scene.listener.dup() as held:
            await scene.comes(PING)
            scene.poller.shut()
            with socket.create_connection(held.getsockname(), timeout=10) as late:
                late.sendall(PING)
                scene.turns.clear()
                await asyncio.sleep(0.05)
                assert scene.turns == []

    play(body)


def test_many_that_speak_at_once_are_one_to_who_gathers() -> None:
    async def body(scene: Scene) -> None:
        locks = [await scene.comes(PING) for _ in range(10)]
        scene.turns.clear()
        for lock, _ in locks:
            lock.sendall(PING)
        await scene.until(lambda: all(peer.data == 2 * PING for _, peer in locks))
        assert scene.turns == ["gather", "release"]

    play(body)


def test_connections_wait_while_no_descriptor_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(scene: Scene) -> None:
        monkeypatch.setattr(poller, "_PAUSE_SECONDS", 0.01)
        errors = [errno.EMFILE, errno.ECONNABORTED, errno.EPROTO, errno.EMFILE]
        take = scene.listener.accept_plain

        def taking() -> socket.socket:
            if errors:
                raise OSError(errors.pop(0), "no")
            return take()

        monkeypatch.setattr(scene.listener, "accept_plain", taking)
        _, peer = await scene.comes(PING)
        assert peer.heard == ["made", "data"]
        assert not errors

    play(body)


@LOOPS
def test_who_comes_is_left_to_whose_door_it_is_for_a_while(run: Callable[..., Any]) -> None:
    async def body(scene: Scene) -> None:
        scene.listener.accept_delay = 0.05
        with socket.fromfd(scene.listener.fileno(), socket.AF_INET, socket.SOCK_STREAM) as own:
            scene.dial()
            own.accept()[0].close()
            await asyncio.sleep(0.1)
        assert not scene.came
        for _ in range(2):
            began = asyncio.get_running_loop().time()
            await scene.comes(PING)
            assert asyncio.get_running_loop().time() - began >= 0.04

    play(body, run)
