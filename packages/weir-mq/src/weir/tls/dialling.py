"""The side that dials: hosts that are reached by TLS, on asyncio and over blocking sockets.

    weirs://broker1:6800,broker2?ca=ca.pem                        the broker is verified
    weirs://broker1?ca=ca.pem&certificate=me.pem&key=me.key       and so is this client
    weirs://10.0.0.1?ca=ca.pem&server_name=broker1                by another name than is dialled

What a URL leaves out comes from the environment: WEIR_CA, WEIR_CERTIFICATE, WEIR_KEY and
WEIR_SERVER_NAME. Files are read again when they change, at the next connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from weir.errors import Disconnected
from weir.tls.files import ALPN, ClientFiles, client_context
from weir.tls.identity import Role
from weir.tls.peers import PeerCertificate, certificate_of
from weir.tls.transport import TlsTransport
from weir.tls.words import in_words

#: How long a broker may take for its part of a handshake: thousands may be before this one.
HANDSHAKE_SECONDS = 30.0
_VARIABLES = {name: f"WEIR_{name.upper()}" for name in ClientFiles._fields}

P = TypeVar("P", bound=asyncio.Protocol)


class SecureHost(str):
    """A host that is reached by TLS, with these files. It equals none that is reached without."""

    __slots__ = ("files",)

    files: ClientFiles

    def __new__(cls, host: str, files: ClientFiles) -> SecureHost:
        """Be the name or address `host`."""
        made = super().__new__(cls, host)
        made.files = files
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecureHost) and str.__eq__(self, other) and (
            self.files == other.files
        )  # fmt: skip

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str(self), self.files))

    def __reduce__(self) -> tuple[Any, ...]:
        return SecureHost, (str(self), self.files)

    def __str__(self) -> str:
        return str.__str__(self)


def like(host: str, other: str) -> str:
    """Return `host`, to be reached as `other` is."""
    return SecureHost(host, other.files) if isinstance(other, SecureHost) else host


def by_its_name(host: str, other: str) -> str:
    """Return `host`, to be reached with the files that `other` is reached with, and by its own
    name: the other name that `other` has in its certificate is of `other` alone.
    """
    if isinstance(other, SecureHost):
        return SecureHost(host, other.files._replace(server_name=""))
    return host


def files_of(hosts: list[tuple[str, int]]) -> ClientFiles | None:
    """Return with which files hosts are reached; None if that is without TLS."""
    return next((host.files for host, _ in hosts if isinstance(host, SecureHost)), None)


def client_files(query: str, environment: Mapping[str, str] = os.environ) -> ClientFiles:
    """Read what stands behind the `?` of a URL. Raises `ValueError`."""
    found: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, equals, text = pair.partition("=")
        value = unquote(text)  # a file's name may have a plus sign
        if not equals:
            raise ValueError(f"{pair!r}: write ca=FILE&certificate=FILE&key=FILE")
        if name not in _VARIABLES:
            raise ValueError(f"{name!r} is unknown: give {', '.join(_VARIABLES)}")
        if name in found or not value:
            raise ValueError(f"{name} needs a value, once")
        found[name] = value
    for name, variable in _VARIABLES.items():
        if name not in found and environment.get(variable):
            found[name] = environment[variable]
    files = ClientFiles(**found)
    if bool(files.certificate) != bool(files.key):
        raise ValueError("certificate and key belong together: give both")
    return files


class TlsDialler:
    """Connects by TLS with the files of a client."""

    def __init__(self, files: ClientFiles) -> None:
        """Read nothing yet."""
        self._files = files
        self._context: ssl.SSLContext | None = None
        self._stamps: tuple[object, ...] = ()

    async def connect(self, make: Callable[[], P], host: str, port: int, timeout: float) -> P:
        """Return a protocol that `make` makes, connected within `timeout` seconds, and the longer
        time of a handshake. Raises `OSError`, `TimeoutError`, `BadCertificate` or `Disconnected`.
        """
        loop = asyncio.get_running_loop()
        name = self._files.server_name or str(host)
        handshake = Handshake(self.context(), make(), name, _check_broker)
        async with asyncio.timeout(timeout):
            await loop.create_connection(handshake.layer, str(host), port)
        await handshake.done(HANDSHAKE_SECONDS)
        return handshake.upper

    def connect_blocking(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        """Return a connected socket with TLS on it, which keeps its timeout. Raises `OSError` in
        words, `BadCertificate` or `Disconnected`.
        """
        context, name = self.context(), self._files.server_name or str(host)
        seconds = sock.gettimeout()
        sock.settimeout(HANDSHAKE_SECONDS)
        try:
            made = context.wrap_socket(sock, server_hostname=name)
        except ssl.SSLError as error:
            raise ConnectionAbortedError(in_words(error)) from error
        try:
            check_role(_certificate(made.getpeercert()), made.selected_alpn_protocol())
        except BaseException:
            made.close()
            raise
        made.settimeout(seconds)
        return made

    def context(self) -> ssl.SSLContext:
        """Return what to connect with. Raises `BadCertificate`."""
        files = self._files
        stamps = tuple(_stamp(name) for name in (files.ca, files.certificate, files.key) if name)
        if self._context is None or stamps != self._stamps:
            self._context = client_context(files)
            self._context.sslsocket_class = _WordedSocket
            self._stamps = stamps
        return self._context


@lru_cache(maxsize=64)
def dialler_of(files: ClientFiles) -> TlsDialler:
    """Return what connects with these files, which reads them once for many connections."""
    return TlsDialler(files)


class _WordedSocket(ssl.SSLSocket):
    """Says in words why TLS ended: a broker refuses a certificate only behind its handshake."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except ssl.SSLError as error:
            raise _late(error) from error

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        try:
            return super().recv_into(buffer, nbytes, flags)
        except ssl.SSLError as error:
            raise _late(error) from error

    def sendall(self, data: Any, flags: int = 0) -> None:
        try:
            super().sendall(data, flags)
        except ssl.SSLError as error:
            raise _late(error) from error


def _late(error: ssl.SSLError) -> OSError:
    if isinstance(error, ssl.SSLEOFError):
        return ConnectionResetError("the broker hung up")
    return ConnectionAbortedError(in_words(error))


class Handshake(Generic[P]):
    """The handshake of one connection that this side dials: nobody else shares its turn."""

    def __init__(
        self, context: ssl.SSLContext, upper: P, name: str | None,
        check: Callable[[TlsTransport], None],
    ) -> None:  # fmt: skip
        """Connect `upper` once it is done, and `check` has not raised `Disconnected`. `name` is
        looked for in the certificate of the other side, if `context` does that.
        """
        self.upper = upper
        self._check = check
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody is told of a connection that never is.
        self._layer = TlsTransport(self, partial(_wrap, context, name), asyncio.Protocol())

    def layer(self) -> TlsTransport:
        """Return the protocol of the connection below."""
        return self._layer

    async def done(self, seconds: float) -> None:
        """Return when `upper` is connected. Raises `OSError`, `TimeoutError` or `Disconnected`."""
        try:
            async with asyncio.timeout(seconds):
                await self._done
        except BaseException:
            self._layer.abort()
            raise

    # -- its transport calls ------------------------------------------------------------------

    def may_step(self, one: TlsTransport) -> bool:
        """Return that it may go on."""
        return True

    def stepped(self, one: TlsTransport, came: int, seconds: float) -> None:
        """Nothing waits for it."""

    def kept(self, change: int) -> None:
        """A client has no budget."""

    def shaken(self, one: TlsTransport) -> None:
        """Connect the protocol above."""
        if self._done.done():  # nobody waits any more
            one.abort()
            return
        try:
            self._check(one)
        except Disconnected as error:
            self._done.set_exception(error)
            one.abort()
            return
        one.set_protocol(self.upper)
        self.upper.connection_made(one)
        self._done.set_result(None)

    def broke(self, one: TlsTransport, why: Exception) -> None:
        """Fail the waiting handshake."""
        if not self._done.done():
            self._done.set_exception(why)

    def ended(self, one: TlsTransport) -> None:
        """Fail the waiting handshake."""
        if not self._done.done():
            self._done.set_exception(ConnectionResetError("hung up in the TLS handshake"))

    def in_words(self, error: ssl.SSLError) -> Exception:
        """Return what went wrong."""
        return ConnectionAbortedError(in_words(error))


def _check_broker(one: TlsTransport) -> None:
    check_role(one.peer, one.get_extra_info("alpn"))


def check_role(peer: PeerCertificate | None, alpn: str | None) -> None:
    """Raise `Disconnected` if the server is no broker."""
    if peer is not None and peer.identity is not None and peer.identity.role is not Role.NODE:
        raise Disconnected(f"the server is no broker: its certificate is of {peer.identity}")
    if alpn != ALPN:
        raise Disconnected("the server speaks TLS, and is no broker")


def _certificate(found: Any) -> PeerCertificate | None:
    return certificate_of(dict(found)) if found else None


def peer_of_socket(sock: Any) -> PeerCertificate | None:
    """Return the certificate of the server at a blocking socket; None without TLS."""
    return _certificate(sock.getpeercert()) if isinstance(sock, ssl.SSLSocket) else None


def _wrap(
    context: ssl.SSLContext, name: str | None, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> ssl.SSLObject:
    return context.wrap_bio(incoming, outgoing, server_hostname=name)


def _stamp(name: str) -> tuple[int, ...]:
    try:
        found = Path(name).stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
