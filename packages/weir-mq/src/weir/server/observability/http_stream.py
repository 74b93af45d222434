"""The bytes of one HTTP connection, with TLS or without, as its first byte says."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import Protocol

from weir.errors import RemoteProtocolError
from weir.tls.engine import TlsEngine
from weir.tls.peers import PeerCertificate
from weir.tls.records import HANDSHAKE, RECORD_BYTES

#: A handshake costs about 1 ms of the loop that serves the node's peers: so many begin in a second.
HANDSHAKES_PER_SECOND = 50
_END = b"\r\n\r\n"


class HttpStream(Protocol):
    """A connection that one request comes by."""

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read along."""

    @property
    def peer(self) -> PeerCertificate | None:
        """The certificate that the other side has shown; None without one."""

    async def head(self, most: int) -> bytes:
        """Return the head of a request, with the empty line that ends it.

        Raises `asyncio.LimitOverrunError` for one of more than `most` bytes, and
        `asyncio.IncompleteReadError` if the other side ends before.
        """

    def write(self, data: bytes) -> None:
        """Send bytes."""


class PlainStream:
    """A connection without TLS that began with one byte."""

    is_private = False
    peer: PeerCertificate | None = None

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes
    ) -> None:
        """Go on behind `first`."""
        self.first = first
        self._reader = reader
        self._writer = writer

    async def head(self, most: int) -> bytes:
        """See `HttpStream`; the reader has the limit."""
        return self.first + await self._reader.readuntil(_END)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)


class TlsStream:
    """A connection by TLS."""

    is_private = True

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        """Serve with this certificate."""
        self._reader = reader
        self._writer = writer
        self._engine = TlsEngine(partial(_make, context))

    @property
    def peer(self) -> PeerCertificate | None:
        """See `HttpStream`."""
        return self._engine.peer

    async def shake(self, data: bytes) -> None:
        """Do the handshake that begins with `data`. Raises `ConnectionError` where it fails."""
        try:
            self._engine.feed(data)
            while not self._engine.shake():
                self._writer.write(self._engine.unsent())
                self._engine.feed(await self._more())
        except (ssl.SSLError, RemoteProtocolError) as error:
            self._writer.write(self._engine.unsent())  # the alert that says why
            raise ConnectionAbortedError(str(error)) from None
        self._writer.write(self._engine.unsent())

    async def head(self, most: int) -> bytes:
        """See `HttpStream`."""
        plain: list[bytes] = []
        try:
            while True:
                self._engine.read(plain)
                found, end, _ = b"".join(plain).partition(_END)
                if len(found) > most:
                    raise asyncio.LimitOverrunError("too long", len(found))
                if end:
                    return found + end
                if self._engine.has_ended:
                    raise asyncio.IncompleteReadError(found, None)
                self._engine.feed(await self._more())
        except (ssl.SSLError, RemoteProtocolError) as error:
            raise ConnectionAbortedError(str(error)) from None

    def write(self, data: bytes) -> None:
        """Send bytes, and say that there are no more."""
        for piece in self._engine.encrypt((data,)):
            self._writer.write(piece)
        self._engine.end()
        self._writer.write(self._engine.unsent())

    async def _more(self) -> bytes:
        data = await self._reader.read(RECORD_BYTES)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        return data


class HandshakePace:
    """Lets handshakes begin one after the other, with time between them."""

    def __init__(self) -> None:
        """Let the first one begin at once."""
        self._next = 0.0

    async def wait(self) -> None:
        """Return when the next handshake may begin."""
        now = asyncio.get_running_loop().time()
        due = max(now, self._next)
        self._next = due + 1 / HANDSHAKES_PER_SECOND
        if due > now:
            await asyncio.sleep(due - now)


async def begin_stream(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    context: ssl.SSLContext | None,
    pace: HandshakePace,
) -> HttpStream:
    """Return the stream of a connection that has just come, once it has said something. With a
    `context` it may begin a handshake of TLS.

    Raises `asyncio.IncompleteReadError` and `ConnectionError`.
    """
    first = await reader.readexactly(1)
    if context is None or first[0] != HANDSHAKE:
        return PlainStream(reader, writer, first)
    await pace.wait()
    stream = TlsStream(reader, writer, context)
    await stream.shake(first)
    return stream


def _make(
    context: ssl.SSLContext, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> ssl.SSLObject:
    return context.wrap_bio(incoming, outgoing, server_side=True)
