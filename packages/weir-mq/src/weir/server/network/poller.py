"""Where connections come in, and where devices stay: thousands of sockets that are one to the loop.

Those are looked at together, by an epoll of their own that the loop watches. One that turns out to
be a client or another node moves to a transport of the loop, which is made for much at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, cast

from weir.model.limits import LISTEN_BACKLOG
from weir.protocol.device import VERSION as DEVICE_VERSION
from weir.server.network.socket_transport import READ_BYTES, READS, PlainTransport
from weir.server.network.tls import TlsAcceptor
from weir.tls.records import HANDSHAKE
from weir.tls.transport import TlsTransport

log = logging.getLogger(__name__)

#: So many sockets are looked at, and so many connections taken, before others have their turn.
_EVENTS_MAX = 64
_ACCEPTS_MAX = 64
#: What is read in a turn from all together, and the least from each.
_TURN_BYTES = 1 << 17
_READ_BYTES_MIN = 1 << 11
#: How many frames a turn takes. Small frames cost by their number: 128 KiB of pings are 9,300, and
#: take most of a second in which nobody else is served.
_TURN_FRAMES = 1_024
_READ_FRAMES_BYTES_MIN = 1 << 7
#: How long nobody is taken while no file descriptor is free.
_PAUSE_SECONDS = 0.5
_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class MovableProtocol(Protocol):
    """A protocol that may be given another transport for its connection."""

    def moved(self, transport: asyncio.Transport) -> None:
        """Go on with `transport`."""

    def update(self) -> None:
        """Read, or not, as it is to be."""


class EventGatherer(Protocol):
    """Receives the bytes of connections."""

    @property
    def frames(self) -> int:
        """How many frames have come from all connections so far."""

    def gather(self) -> None:
        """Keep what connections say, until `release`: it is one to the shard."""

    def release(self) -> None:
        """Hand on what was gathered."""


class ConnectionHost(EventGatherer, Protocol):
    """Serves connections."""

    @property
    def tls(self) -> TlsAcceptor | None:
        """Opens connections that begin with a TLS handshake; None: they are not accepted."""

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""


class ListeningSocket(socket.socket):
    """A listening socket. Connections wait here `accept_delay` seconds for another process, if the
    socket is that one's.
    """

    def __init__(
        self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None,
        accept_delay: float = 0.0,
    ) -> None:  # fmt: skip
        """Make a socket of a family, type and protocol, or of a descriptor."""
        super().__init__(family, type, proto, fileno)
        self.accept_delay = accept_delay

    def accept_plain(self) -> socket.SocketType:
        """Return the next connection; quicker than `accept`, without what `socket.socket` adds in
        Python. Raises `OSError`.
        """
        handle, _ = self._accept()  # type: ignore[attr-defined]  # typeshed leaves it out
        return socket.SocketType(self._kind, socket.SOCK_STREAM, 0, handle)

    @cached_property
    def _kind(self) -> int:
        return int(self.family)


class DevicePoller:
    """The connections that came in through `listeners`, and all of them that are devices'."""

    def __init__(
        self, protocol: Callable[[], asyncio.Protocol], gathering: EventGatherer,
        tls: TlsAcceptor | None = None,
    ) -> None:  # fmt: skip
        """Let each connection have its protocol, which tells `gathering`, until `shut`. What begins
        with a handshake is `tls`'s to open.
        """
        self._protocol = protocol
        self._tls = tls
        self._gathering = gathering
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._listeners: dict[int, ListeningSocket] = {}
        self._members: dict[int, PlainTransport] = {}
        self._ending: list[PlainTransport] = []
        #: Sockets that had something and got no turn yet.
        self._due: list[int] = []
        self._frames_end = 0
        self._is_shut = False
        self._moves: set[asyncio.Task[None]] = set()
        self._loop.add_reader(self._epoll.fileno(), self._turn)

    def open(self, listener: ListeningSocket) -> None:
        """Take connections that come to a listening socket."""
        self._listeners[listener.fileno()] = listener
        self._epoll.register(listener, READS)

    def shut(self) -> None:
        """Accept no more connections; present ones stay."""
        for listener in self._listeners.values():
            # Closed alone it would stay there while another process has it open, too.
            with contextlib.suppress(FileNotFoundError):  # nobody is taken just now
                self._epoll.unregister(listener)
            listener.close()
        self._listeners.clear()
        self._is_shut = True
        self._rest()

    # -- what transports call -----------------------------------------------------------------

    def watch(self, transport: PlainTransport, events: int) -> None:
        """Look at a connection for `events`. None are asked for by leaving it out: else a broken
        one would be told again and again.
        """
        handle = transport.sock.fileno()
        if handle < 0:
            return
        if not transport.events:
            self._epoll.register(handle, events)
        elif events:
            self._epoll.modify(handle, events)
        else:
            self._epoll.unregister(handle)
        transport.events = events

    def sniff(self, transport: PlainTransport, data: bytes) -> bool:
        """Keep a device; move all others, which go on with `data`; let TLS begin."""
        tls = self._tls
        if tls is not None:
            if data[0] == HANDSHAKE:
                self._open_tls(transport, data, tls)
                return False
            tls.check_plaintext(transport, data)
        if data[0] == DEVICE_VERSION:
            return True
        self._move_away(transport, data)
        return False

    def _open_tls(self, transport: PlainTransport, data: bytes, tls: TlsAcceptor) -> None:
        """Let TLS take a connection: it stays here until its first plaintext has come."""

        def begins(_: TlsTransport, data: bytes) -> bool:
            if data[0] == DEVICE_VERSION:
                return True
            self._move_away(transport, b"")
            return False

        layer = tls.accept(transport, transport.protocol, begins)
        if layer is None:
            transport.close()
            return
        transport.protocol = layer
        layer.data_received(data)

    def _move_away(self, transport: PlainTransport, data: bytes) -> None:
        if transport.events:
            self.watch(transport, 0)
        del self._members[transport.sock.fileno()]
        transport.moving = True
        task = self._loop.create_task(self._move(transport, data))
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)
        self._rest()

    def soon(self, transport: PlainTransport) -> None:
        """End a connection behind this turn of the loop."""
        if not self._ending:
            self._loop.call_soon(self._end)
        self._ending.append(transport)

    def ended(self, transport: PlainTransport) -> None:
        """A connection is closed now, which takes it out of the epoll."""
        transport.events = 0
        self._members.pop(transport.sock.fileno(), None)
        self._rest()

    def failed(self, transport: PlainTransport, error: Exception) -> None:
        """Say what a protocol raised."""
        self._loop.call_exception_handler(
            {"message": "a peer's protocol failed", "exception": error, "transport": transport}
        )

    # -- inside -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _gathered(self) -> Iterator[None]:
        self._gathering.gather()
        self._frames_end = self._gathering.frames + _TURN_FRAMES
        try:
            yield
        finally:
            self._gathering.release()

    def _turn(self) -> None:
        with self._gathered():
            found = self._due or [handle for handle, _ in self._epoll.poll(0, _EVENTS_MAX)]
            self._due = []
            for at, handle in enumerate(found):
                if self._is_over:
                    self._due = found[at:]  # they are first in the next turn
                    break
                transport = self._members.get(handle)
                if transport is not None:
                    self._read(transport, len(found))
                elif (listener := self._listeners.get(handle)) is not None:
                    if listener.accept_delay:
                        self._suspend(listener, listener.accept_delay)
                    else:
                        self._accept(listener)

    @property
    def _is_over(self) -> bool:
        """Whether a turn has taken its frames."""
        return self._gathering.frames >= self._frames_end

    def _read(self, transport: PlainTransport, sharing: int) -> None:
        """Read what is one connection's share of a turn, in bytes and in frames."""
        most = READ_BYTES
        if sharing * most > _TURN_BYTES:
            most = max(_READ_BYTES_MIN, _TURN_BYTES // sharing)
        frames = max(1, _TURN_FRAMES // sharing)
        most = min(most, max(_READ_FRAMES_BYTES_MIN, frames * transport.frame_bytes))
        before = self._gathering.frames
        read = transport.turn(most)
        came = self._gathering.frames - before
        if came:
            transport.frame_bytes = max(1, read // came)
        elif read:
            transport.frame_bytes = READ_BYTES  # it is within a large one

    def _end(self) -> None:
        ending, self._ending = self._ending, []
        with self._gathered():
            for transport in ending:
                transport.end()

    def _rest(self) -> None:
        if self._is_shut and not self._members and not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _accept(self, listener: ListeningSocket) -> None:
        for _ in range(_ACCEPTS_MAX):
            if self._is_over:
                return
            try:
                sock = listener.accept_plain()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # it has left already
            except OSError as error:
                if error.errno in _NO_ROOM:
                    log.error("connections wait: %s", error)
                    self._suspend(listener, _PAUSE_SECONDS)
                    return
                log.warning("a connection could not be accepted: %s", error)
                continue
            transport = PlainTransport(self, sock, self._protocol())
            self._members[sock.fileno()] = transport
            transport.open()

    def _suspend(self, listener: ListeningSocket, seconds: float) -> None:
        self._epoll.unregister(listener)
        self._loop.call_later(seconds, self._resume, listener)

    def _resume(self, listener: ListeningSocket) -> None:
        """Accept the connections that still wait."""
        if listener.fileno() in self._listeners:
            self._epoll.register(listener, READS)
            with self._gathered():
                self._accept(listener)

    async def _move(self, transport: PlainTransport, data: bytes) -> None:
        mover = _Mover(self._loop, transport, data)
        plain = transport.sock
        family, handle = plain.family, plain.detach()
        transport.sock = sock = socket.socket(family, socket.SOCK_STREAM, 0, handle)
        try:
            await self._loop.connect_accepted_socket(lambda: mover, sock)
        except (OSError, RuntimeError) as error:  # the loop's, if the peer was cut meanwhile
            mover.give_up(error)


class _Mover(asyncio.Protocol):
    """Has a connection's new transport until it is handed to the protocol."""

    def __init__(self, loop: asyncio.AbstractEventLoop, old: PlainTransport, data: bytes) -> None:
        self._loop = loop
        self._old = old
        self._data = data
        self._moved = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._moved = True
        new, old = cast(asyncio.Transport, transport), self._old
        protocol = old.protocol
        guided = cast(MovableProtocol, protocol)
        new.set_protocol(protocol)
        guided.moved(new)
        if unsent := old.taken():
            new.write(unsent)
        if old.is_closing():
            new.close()
            return
        protocol.data_received(self._data)
        self._loop.call_soon(guided.update)  # loops begin to read behind connection_made

    def give_up(self, error: Exception) -> None:
        """There is no new transport."""
        if not self._moved:
            self._old.sock.close()
            self._old.protocol.connection_lost(error)


@contextlib.asynccontextmanager
async def listening(
    driver: ConnectionHost, host: str, port: int, shared: Sequence[ListeningSocket] | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Accept connections while it lasts; yields where. A shard of several shares bound sockets with
    the others, and the port is kept for it by the supervisor.

    Raises `OSError` if it cannot listen there.
    """
    listeners = [*await _listeners(host, port, is_kept=shared is not None), *(shared or ())]
    poller = DevicePoller(driver.protocol, driver, driver.tls)
    try:
        for listener in listeners:
            _listen(listener)
            poller.open(listener)
        host, port = listeners[0].getsockname()[:2]
        fields = {"host": host, "port": port}
        log.info("listening on %s:%d", host, port, extra={"fields": fields})
        yield host, port
    finally:
        poller.shut()
        for listener in listeners:
            listener.close()  # also one that could not listen


async def _listeners(host: str, port: int, is_kept: bool) -> list[ListeningSocket]:
    """Return a bound socket for each address of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[ListeningSocket] = []
    try:
        for family, _, protocol, _, address in dict.fromkeys(found):
            listeners.append(ListeningSocket(family, socket.SOCK_STREAM, protocol))
            _bind(listeners[-1], address, is_kept)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(listener: ListeningSocket, address: tuple[Any, ...], is_kept: bool) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_kept:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    with _in_words(address):
        listener.bind(address)


def _listen(listener: ListeningSocket) -> None:
    # Connections inherit these: a call less for each that comes.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The one that connects speaks first: it is worth a look once it has, or a second later.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
    listener.setblocking(False)
    # All devices that lost this node come back within a second; the kernel takes somaxconn of them.
    with _in_words(listener.getsockname()):
        listener.listen(LISTEN_BACKLOG)


@contextlib.contextmanager
def _in_words(address: tuple[Any, ...]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, f"cannot listen on {address[0]}:{address[1]}: {error.strerror}"
        ) from None
