"""TLS as a state machine: encrypted bytes in, plaintext out, and back. No sockets and no loop here.

OpenSSL is given, and gives, pieces of one record in memory, so that an idle connection holds none.
It is asked for nothing before the handshake begins, for it costs some 20 KiB a connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from weir.tls.peers import PeerCertificate, peer_of
from weir.tls.records import RECORD_BYTES, Records

Buffer = bytes | bytearray | memoryview
#: Makes what encrypts, between what comes and what goes out.
Maker = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]

_NO_BIO = ssl.MemoryBIO()
#: More records than any read has.
_MANY = 1 << 16


class TlsEngine:
    """One end of a connection. All of it may raise `ssl.SSLError`."""

    __slots__ = ("_incoming", "_inner", "_make", "_outgoing", "_records", "_tls", "has_ended",
                 "peer")  # fmt: skip

    def __init__(self, make: Maker) -> None:
        """Make what `make` does with the first bytes, or the first step."""
        #: What the other side's certificate says; None without one, or before.
        self.peer: PeerCertificate | None = None
        #: Whether the other side has said that it ends.
        self.has_ended = False
        self._make = make
        self._tls: ssl.SSLObject | None = None
        #: What `ssl.SSLObject` passes each call on to: a frame of Python less a record.
        self._inner: Any = None
        self._incoming = self._outgoing = _NO_BIO
        self._records = Records()

    @property
    def kept(self) -> int:
        """Encrypted bytes that came and are not whole yet, or not looked at."""
        return max(self._records.partial, self._incoming.pending)

    @property
    def version(self) -> str | None:
        """The version of TLS, once it is agreed on."""
        return None if self._tls is None else self._tls.version()

    @property
    def alpn(self) -> str | None:
        """The protocol inside, once it is agreed on."""
        return None if self._tls is None else self._tls.selected_alpn_protocol()

    def feed(self, data: Buffer) -> int:
        """Take a piece of at most a record's size; return how many records are whole by it.

        Raises `RemoteProtocolError` for what is no TLS.
        """
        whole = self._records.take(data)
        self._begin()
        self._incoming.write(data)
        return whole

    def read_alone(self, data: bytes) -> bytes | None:
        """Return what is in bytes that are one whole record of data, as most reads are. None: they
        are not, and nothing is taken. Empty: it was for TLS alone, which `read` looks at.

        It takes few steps and little memory, because a process that waits for messages has cold
        caches.
        """
        records = self._records
        if not records.are_alone(data):
            return None
        self._incoming.write(data)
        try:
            plain: bytes = self._inner.read(len(data))
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            plain = b""
        records.silent = 0 if plain else records.silent + len(data)
        return plain

    def shake(self) -> bool:
        """Go on with the handshake; return whether it is done."""
        tls = self._begin()
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._records.check_flood()
            return False
        self._records.silent = 0
        self.peer = peer_of(tls)
        return True

    def read(self, plain: list[bytes], most: int = _MANY) -> None:
        """Add what records hold, of which at most so many are whole.

        Raises `RemoteProtocolError` if too much came that was for TLS alone.
        """
        tls, before = self._begin(), len(plain)
        try:
            for _ in range(most):
                if not (data := tls.read(RECORD_BYTES)):
                    self.has_ended = True
                    break
                plain.append(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        if len(plain) > before:
            self._records.silent = 0
        else:
            self._records.check_flood()

    def encrypt_one(self, data: Buffer) -> bytes:
        """Return a buffer of at most a record's size, and not empty, as a record."""
        self._inner.write(data)
        return self._outgoing.read()

    def encrypt(self, buffers: Iterable[Buffer]) -> list[bytes]:
        """Return buffers as records, in order."""
        tls, out = self._begin(), self._outgoing
        pieces: list[bytes] = []
        for buffer in buffers:
            size = len(buffer)
            if 0 < size <= RECORD_BYTES:
                tls.write(buffer)
                pieces.append(out.read())
                continue
            view, at = memoryview(buffer), 0
            while at < size:
                at += tls.write(view[at : at + RECORD_BYTES])
                pieces.append(out.read())
        return pieces

    def end(self) -> None:
        """Say that this side ends; `unsent` has it."""
        # It waits for the other side to say so too, which we do not.
        with suppress(ssl.SSLError):
            if self._tls is not None:
                self._tls.unwrap()

    def unsent(self) -> bytes:
        """Return what TLS itself has to say."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def _begin(self) -> ssl.SSLObject:
        tls = self._tls
        if tls is None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = self._tls = self._make(self._incoming, self._outgoing)
            self._inner = getattr(tls, "_sslobj", tls)
        return tls
