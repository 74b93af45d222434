"""A connection as asyncio has it, over a socket of the world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.clients.sockets import Socket

#: What is read at most at a time, as asyncio does.
_READ_MAX = 256 * 1024
#: How likely a read brings less than what is there.
_CUT = 0.15
#: From how many bytes on that the socket does not take yet a protocol is asked to pause.
_HIGH = (0, 2_000, 64 * 1024)
#: How likely what came before a connection broke is lost with it.
_RESET = 0.2


class Transport(asyncio.Transport):
    """Reads are cut where chance would have it; what the socket does not take waits here."""

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol, socket: Socket) -> None:
        """Be connected; `connection_made` is called in the next turn of the loop."""
        super().__init__({"peername": socket.peer})
        self._loop = loop
        self._protocol = protocol
        self._socket = socket
        self._dice = socket.dice
        self._unsent = bytearray()
        self._closing = False
        #: Whether the protocol was told, or will be, that the connection is gone.
        self._over = False
        self._reading = True
        self._paused = False
        self._high = self._dice.choice(_HIGH)
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(socket.serve, self)

    # -- readiness -----------------------------------------------------------------------------

    def ready(self) -> None:
        """Write what the socket takes by now, then read what has come."""
        if self._unsent and not self._over:
            self._flush()
        if self._reading and not self._closing:
            self._read()

    def _read(self) -> None:
        socket, dice = self._socket, self._dice
        size = min(len(socket.came), _READ_MAX)
        if size > 1 and dice.random() < _CUT:
            size = dice.randint(1, size - 1)
        if socket.ended and size and dice.random() < _RESET:
            socket.came.clear()
            size = 0
        if size:
            data = bytes(socket.came[:size])
            del socket.came[:size]
            try:
                self._protocol.data_received(data)
            except Exception as error:
                context = {"message": "data_received raised", "exception": error}
                self._loop.call_exception_handler(context)
                self._end(error)
                return
            if socket.came or socket.ended:
                self._loop.notice(self)
        elif socket.ended:
            self._end(ConnectionResetError(104, "Connection reset by peer"))

    def _flush(self) -> None:
        taken = self._socket.send(self._unsent)
        del self._unsent[:taken]
        if self._paused and len(self._unsent) <= self._high // 4:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and not self._unsent and not self._over:
            self._finish()

    # -- what a protocol asks for --------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep them until the socket takes them."""
        if self._closing or not data:
            return
        taken = 0 if self._unsent else self._socket.send(data)
        if taken < len(data):
            self._unsent += memoryview(data)[taken:]
            if len(self._unsent) > self._high and not self._paused:
                self._paused = True
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send several pieces as one."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for the socket."""
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return at how many bytes the protocol may write again, and above how many it may not."""
        return self._high // 4, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ask the protocol to pause above `high` bytes."""
        self._high = 64 * 1024 if high is None else high

    def can_write_eof(self) -> bool:
        """Return that there is no end of what is sent but that of the connection."""
        return False

    def is_closing(self) -> bool:
        """Whether it was closed, or is gone."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether what comes is read."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Let what comes wait in the socket."""
        self._reading = False

    def resume_reading(self) -> None:
        """Read again."""
        self._reading = True
        self._loop.notice(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Serve another protocol from now on."""
        assert isinstance(protocol, asyncio.Protocol)  # there is no other kind here
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return whom it serves."""
        return self._protocol

    def close(self) -> None:
        """Send what waits, then end."""
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._finish()

    def abort(self) -> None:
        """End at once."""
        self._end(None)

    def _finish(self) -> None:
        self._over = True
        self._socket.finish()
        self._loop.call_soon(self._protocol.connection_lost, None)

    def _end(self, error: Exception | None) -> None:
        if not self._over:
            self._closing = self._over = True
            self._unsent.clear()
            self._socket.cut()
            self._loop.call_soon(self._protocol.connection_lost, error)
