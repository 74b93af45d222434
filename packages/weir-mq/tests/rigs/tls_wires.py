"""Both ends of a TLS connection in memory: a test carries what they write."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import Any

from weir.tls.files import ServerTls
from weir.tls.transport import TlsTransport


class Wire(asyncio.Transport):
    """The transport below: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.reading = True
        self.end = ""
        self.unsent = 0

    def write(self, data: Any) -> None:
        if not self.end:
            self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return bool(self.end)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.end = "eof"

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"


class Heard(asyncio.Protocol):
    """The protocol above."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces = 0
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        assert data
        self.data += data
        self.pieces += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Watching:
    """The host: lets all go on, unless it is told otherwise."""

    def __init__(self) -> None:
        self.bytes = 0
        self.steps = 0
        self.allows = True
        self.waiting: list[TlsTransport] = []
        self.shook: list[TlsTransport] = []
        self.errors: list[Exception] = []
        self.over = 0

    def may_step(self, one: TlsTransport) -> bool:
        if not self.allows:
            self.waiting.append(one)
        return self.allows

    def stepped(self, one: TlsTransport, came: int, seconds: float) -> None:
        assert seconds >= 0
        self.steps += 1

    def kept(self, change: int) -> None:
        self.bytes += change
        assert self.bytes >= 0

    def shaken(self, one: TlsTransport) -> None:
        self.shook.append(one)

    def broke(self, one: TlsTransport, why: Exception) -> None:
        self.errors.append(why)

    def ended(self, one: TlsTransport) -> None:
        self.over += 1

    def in_words(self, error: ssl.SSLError) -> Exception:
        return ConnectionAbortedError(str(error))


class End:
    """One end."""

    def __init__(
        self, context: ssl.SSLContext, is_server: bool, begins: Any = None, make: Any = None
    ) -> None:
        self.wire, self.heard, self.host = Wire(), Heard(), Watching()
        name = None if is_server else "localhost"
        make = make or partial(context.wrap_bio, server_side=is_server, server_hostname=name)
        lower = self.wire if is_server else None
        self.tls = TlsTransport(self.host, make, self.heard, lower, begins)
        if not is_server:
            self.tls.connection_made(self.wire)

    @property
    def is_over(self) -> bool:
        return bool(self.wire.end)


def ends(serving: ServerTls, client: ssl.SSLContext, begins: Any = None) -> tuple[End, End]:
    """Return a server's end and a client's, which has said hello."""
    return End(serving.context, True, begins), End(client, False)


def shake(server: End, client: End) -> None:
    """Carry all bytes until there are none."""
    while (up := client.wire.take()) or server.wire.written:
        if up:
            server.tls.data_received(up)
        if down := server.wire.take():
            client.tls.data_received(down)
