"""The lanes of links: connections that carry frames one way, from shard to shard of two nodes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

from weir.broker import events as ev
from weir.broker.peers.silence import Silence
from weir.codec.fields import Buffer, total
from weir.errors import RemoteProtocolError
from weir.model.limits import (
    KIB,
    LINK_HELLO_SECONDS,
    LINK_SILENT_MS,
    LINK_STALLED_MS,
    LINK_UNSENT_BYTES_MAX,
)
from weir.server.driving import Driving
from weir.server.outlet import Outlet
from weir.wire.link import PING, Greeting, LinkStream, encode

# Ticks are counted, not seconds: a process that was stopped and goes on has missed none of them,
# and blames nobody for the time that it was not there.
_STALLED_TICKS = LINK_STALLED_MS // ev.TICK_MS
#: A quick lane is a heartbeat: it is asked whether anybody is there as often as leaders say so.
_PING_TICKS = 100 // ev.TICK_MS
#: Who serves waits longer than who dialled: only one of them is to say why a link ended.
_UNHEARD_TICKS = LINK_SILENT_MS // ev.TICK_MS * 3 // 2

#: A shard that reads no answers to its pings gets no more than so many bytes of them.
_ANSWERS_UNREAD_MAX = 4 * KIB

#: Told once, with the reason, when a lane is over.
Over = Callable[[str], None]


def tune(sock: socket.socket) -> None:
    """Set what a lane needs: frames go at once, and the system looks for a peer that is gone."""
    with contextlib.suppress(OSError):  # a test's connection may be no internet one
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


class Greeted(asyncio.Protocol):
    """A connection until the other side's greeting is whole; then somebody else takes it over."""

    def __init__(self) -> None:
        """Wait; `greeting` is its body, or what went wrong."""
        self.greeting: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._stream = Greeting()

    def data_received(self, data: bytes) -> None:
        """Take the greeting."""
        try:
            if self.greeting.done():
                raise RemoteProtocolError("the other side of a link goes on without an answer")
            body = self._stream.receive(data)
        except RemoteProtocolError as error:
            self._failed(error)
        else:
            if body is not None:
                self.greeting.set_result(body)

    def connection_lost(self, error: Exception | None) -> None:
        """It was refused without a word, or the other side is gone."""
        self._failed(error or ConnectionResetError("hung up before it said who it is"))

    async def heard(self) -> memoryview:
        """Return the greeting. Raises `RemoteProtocolError`, `OSError` or `TimeoutError`."""
        async with asyncio.timeout(LINK_HELLO_SECONDS):
            return await self.greeting

    def _failed(self, error: Exception) -> None:
        if not self.greeting.done():
            self.greeting.set_exception(error)
            self.greeting.exception()  # whoever waited may be gone


class OutLane(Outlet):
    """The sending side: it dialled. A shard that takes or says nothing any more is cut."""

    def __init__(self, driver: Driving, quick: bool, over: Over) -> None:
        """Be a lane that is over when `over` is told. A quick one asks whether anybody is there."""
        super().__init__(driver)
        self._quick = quick
        self._over = over
        self._stream = LinkStream()
        self._written = 0
        self._sent = 0
        self._stalled = 0  # ticks without a byte taken, of those that wait
        self._silent = 0  # ticks without a word
        self._ticks = 0
        self._silence = Silence()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over."""
        super().connection_made(transport)
        if self._quick:
            self._ping()

    def data_received(self, data: bytes) -> None:
        """Hear that the other side is there; nothing else is said on this way."""
        self._silent = 0
        if self._quick:
            self._silence.heard(int(self._loop.time() * 1_000))
        try:
            if any(frame.kind != PING for frame in self._stream.receive(data)):
                raise RemoteProtocolError("frames came back on a lane that goes one way")
        except RemoteProtocolError as error:
            self.end(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        """The other side is gone, or this one cut it."""
        super().connection_lost(error)
        self._over(str(error) if error else "it hung up")

    def give_back(self, size: int) -> None:
        """These bytes have left this process, or never will."""
        if size:
            self._driver.release(size)

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write whole frames; one that lets too much pile up is cut."""
        super().write(buffers, charged)
        self._written += total(buffers)
        if self._transport is not None and self._unwritten() > LINK_UNSENT_BYTES_MAX:
            self.end(f"{LINK_UNSENT_BYTES_MAX:,} bytes wait to be sent to it")

    def tick(self) -> None:
        """Look whether what was sent is taken, and whether anybody is there."""
        if self._transport is None:
            return
        self.settle()
        sent = self._written - self._unwritten()
        waits = sent < self._written and sent == self._sent
        self._stalled = self._stalled + 1 if waits else 0
        self._sent = sent
        if self._stalled > _STALLED_TICKS:
            self.end(f"it took nothing for {LINK_STALLED_MS // 1000} s")
        elif self._quick:
            self._silent += 1
            self._ticks += 1
            limit_ms = self._silence.limit_ms
            if self._silent * ev.TICK_MS > limit_ms:
                self.end(f"it said nothing for {limit_ms / 1000:g} s")
            elif self._ticks % _PING_TICKS == 0:
                self._ping()

    def end(self, why: str) -> None:
        """Cut the connection, and say why."""
        self._over(why)
        self.cut()

    def _ping(self) -> None:
        self.write(encode(PING, 0))

    def _unwritten(self) -> int:
        transport = cast(asyncio.Transport, self._transport)
        return transport.get_write_buffer_size()


class InLane(asyncio.Protocol):
    """The receiving side. It is always read: what its frames mean may be what frees memory here,
    and two nodes that both hold would wait for each other for ever. What has come of a frame is
    bounded for all lanes together (see `Driving.lane_brought`).
    """

    def __init__(self, driver: Driving, place: int, over: Over) -> None:
        """Hand on what the shard at `place` sends; `over` is told when that ends."""
        self._driver = driver
        self._place = place
        self._over = over
        self._stream = LinkStream()
        self._transport: asyncio.Transport | None = None
        self._pending = 0  # bytes told of the frame under way
        self._unheard = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Cut frames, send pings back, hand the rest on."""
        self._unheard = 0
        try:
            found = self._stream.receive(data)
        except RemoteProtocolError as error:
            self._over(str(error))
            self.cut()
            return
        frames = [frame for frame in found if frame.kind != PING]
        if len(frames) < len(found):
            self._answer()
        if frames:
            self._driver.handle(ev.PeerSent(self._place, frames))
        self._count(self._stream.pending)

    def connection_lost(self, error: Exception | None) -> None:
        """The other side is gone; what it was about to say is not kept."""
        self._transport = None
        self._count(0)
        self._over(str(error) if error else "it hung up")

    def tick(self) -> None:
        """Cut one that pings no more."""
        self._unheard += 1
        if self._unheard > _UNHEARD_TICKS:
            self.cut()

    def cut(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _answer(self) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() > _ANSWERS_UNREAD_MAX:
            self.cut()
        else:
            self._transport.writelines(encode(PING, 0))

    def _count(self, pending: int) -> None:
        if pending or self._pending:
            self._pending = pending
            self._driver.lane_brought(self, pending)
