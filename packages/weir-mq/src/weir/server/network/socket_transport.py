"""A connection without a transport of the loop: a socket, and what is not sent yet.

A device says a few bytes and waits for a few. What a loop's own transport does for it costs more
than all that the broker does.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from socket import MSG_DONTWAIT, SocketType
from typing import Any, Protocol

#: The system says of each connection that it was reset, whatever it was asked for.
READS, WRITES = select.EPOLLIN, select.EPOLLOUT
READ_BYTES = 1 << 14
#: What is read of a connection as it is taken: a hello and what it has to say first.
_FIRST_READ_BYTES = 1 << 11
#: What frames are taken to be before any has come: the shortest there are.
_FRAME_BYTES = 9
_HIGH_DEFAULT = 1 << 16


class TransportWatcher(Protocol):
    """Watches many sockets at once."""

    def watch(self, transport: PlainTransport, events: int) -> None:
        """Call `turn` when one of `events` comes, and no more when another did; 0: at none."""

    def sniff(self, transport: PlainTransport, data: bytes) -> bool:
        """Take the first bytes of a connection; return whether its protocol is to have them now."""

    def soon(self, transport: PlainTransport) -> None:
        """Call `end` behind this turn of the loop."""

    def ended(self, transport: PlainTransport) -> None:
        """A connection is closed now."""

    def failed(self, transport: PlainTransport, error: Exception) -> None:
        """A protocol raised what it should not have."""


class PlainTransport(asyncio.Transport):
    """What an asyncio protocol uses of a transport, on a socket that somebody else looks at."""

    __slots__ = ("_closing", "_error", "_full", "_high", "_new", "_reading", "_unsent",
                 "_watching", "events", "frame_bytes", "moving", "protocol", "sock")  # fmt: skip

    def __init__(
        self, watching: TransportWatcher, sock: SocketType, protocol: asyncio.Protocol
    ) -> None:
        """Serve `protocol` on a connection; `open` begins."""
        # Its base would have a dictionary of its own for `get_extra_info`: for each of thousands.
        self.sock = sock
        self.protocol = protocol
        #: What it is watched for.
        self.events = 0
        #: Whether it becomes one of the loop's own: then nothing is read or written here any more.
        self.moving = False
        #: How long its frames were the last time it was read.
        self.frame_bytes = _FRAME_BYTES
        self._watching = watching
        self._new = self._reading = True
        self._closing = self._full = False
        #: One buffer, for a reply is a dozen bytes: an object for each would be thirty times that.
        self._unsent: bytearray | None = None
        self._high = _HIGH_DEFAULT
        self._error: Exception | None = None

    def open(self) -> None:
        """Tell the protocol, and read: who connects has mostly said something by then."""
        try:
            self.protocol.connection_made(self)
            if self._reading and not self._closing:
                self._receive(_FIRST_READ_BYTES)
        except Exception as error:
            self._watching.failed(self, error)
            self.abort()
        self._watch()

    def turn(self, most: int = READ_BYTES) -> int:
        """The socket has something, of which `most` bytes are read, or takes something, or is
        broken. Return how many bytes were read.
        """
        read = 0
        if self._closing and not self._unsent:
            return read
        try:
            if self._unsent:
                self._flush()
            if self._reading and not self._closing:
                read = self._receive(most)
        except Exception as error:
            self._watching.failed(self, error)
            self.abort()
        return read

    # -- what a protocol calls ----------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Tell the protocol to pause above `high` unsent bytes; a quarter of that is low."""
        self._high = _HIGH_DEFAULT if high is None else high

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are not sent."""
        return len(self._unsent or b"")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the `socket`, or the `peername`."""
        if name == "socket":
            return self.sock
        if name == "peername":
            try:
                return self.sock.getpeername()
            except OSError:  # it is gone
                return default
        return default

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing

    def pause_reading(self) -> None:
        """Hand on no more bytes."""
        self._reading = False
        self._watch()

    def resume_reading(self) -> None:
        """Hand bytes on again."""
        self._reading = True
        self._watch()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep what the socket does not take."""
        if self._closing:
            return
        sent = 0
        if not self._unsent and not self.moving:
            try:
                sent = self.sock.send(data, MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._break(error)
                return
            if sent == len(data):
                return
        if self._unsent is None:
            self._unsent = bytearray()
        self._unsent += memoryview(data)[sent:]
        self._watch()
        if len(self._unsent) > self._high and not self._full:
            self._full = True
            self.protocol.pause_writing()

    def writelines(self, buffers: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send buffers as one."""
        self.write(b"".join(buffers))

    def close(self) -> None:
        """Close once all is sent."""
        if self._closing:
            return
        self._closing = True
        if self._unsent:
            self._watch()
        else:
            self._watching.soon(self)

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._unsent = None
        self._watching.soon(self)

    # -- inside -------------------------------------------------------------------------------

    def taken(self) -> bytes:
        """Return what is not sent: another transport sends it."""
        unsent, self._unsent = self._unsent, None
        return bytes(unsent or b"")

    def end(self) -> None:
        """Close the socket, and tell the protocol; twice is once."""
        if self.sock.fileno() < 0 or self.moving:
            return
        self._watching.ended(self)
        self.sock.close()
        self.protocol.connection_lost(self._error)

    def _receive(self, most: int) -> int:
        try:
            data = self.sock.recv(most, MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._break(error)
            return 0
        if not data:
            self.close()
            return 0
        if self._new:
            self._new = False
            if not self._watching.sniff(self, data):
                return len(data)
        self.protocol.data_received(data)
        return len(data)

    def _flush(self) -> None:
        unsent = self._unsent
        assert unsent is not None
        try:
            del unsent[: self.sock.send(unsent, MSG_DONTWAIT)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._break(error)
            return
        if not unsent:
            self._unsent = None  # most devices are never slow again
        if self._full and len(unsent) <= self._high // 4:
            self._full = False
            self.protocol.resume_writing()
        if self._closing and not self._unsent:
            self._watching.soon(self)
        else:
            self._watch()

    def _break(self, error: OSError) -> None:
        self._error = error
        self.abort()

    def _watch(self) -> None:
        reads = READS if self._reading and not self._closing else 0
        events = reads | (WRITES if self._unsent else 0)
        if events != self.events and not self.moving:
            self._watching.watch(self, events)
