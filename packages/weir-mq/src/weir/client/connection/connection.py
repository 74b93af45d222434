"""One TCP connection to a broker, the asyncio shell of a `Session`; and how it is made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol, cast
from weakref import WeakSet

from weir.client.connection.credentials import (
    AnyCredentials,
    Renewal,
    StaleTicket,
    TokenCredentials,
)
from weir.client.core.session import SILENT_AFTER, Liveness, Session
from weir.codec import Buffer
from weir.errors import Disconnected, RemoteProtocolError, WeirError, WrongSystem, refusal
from weir.model.ids import Address, is_loopback
from weir.model.limits import KIB, REQUESTS_PENDING_MAX
from weir.protocol.client import messages as m
from weir.tls.dialling import TlsDialler
from weir.tls.files import ClientFiles
from weir.tls.peers import PeerCertificate, check_broker

#: A request up to here is copied into one buffer.
_SMALL_BYTES = 4 * KIB

#: More requests than one connection ever has, and more connections than there are at a time.
_REQUESTS = 1 << 40
_CONNECTIONS = 1 << 23

#: What a request comes to: its correlation number, and the reply or that there will be none.
OnAnswer = Callable[[int, m.Reply | Disconnected], None]


class Sender(Protocol):
    """Sends frames by itself, and must know when it may."""

    def writable(self) -> None:
        """Requests can be sent, again or for the first time."""

    def end(self, error: WeirError) -> None:
        """Requests can never be sent again."""


class Senders:
    """All senders that use the connections of one client by themselves."""

    __slots__ = ("_senders",)

    def __init__(self) -> None:
        """Begin with none."""
        #: In the order in which they came.
        self._senders: dict[Sender, None] = {}

    def add(self, sender: Sender) -> None:
        """Tell one from now on."""
        self._senders[sender] = None

    def remove(self, sender: Sender) -> None:
        """Tell one no more."""
        self._senders.pop(sender, None)

    def wake(self) -> None:
        """A connection is open or has room again, or requests go another way from now on."""
        for sender in [*self._senders]:
            sender.writable()

    def end(self, error: WeirError) -> None:
        """There will be no connection again."""
        for sender in [*self._senders]:
            sender.end(error)


class Silence:
    """The connections on which answers are due and nothing comes, until somebody takes them."""

    __slots__ = ("_came", "_connections")

    def __init__(self) -> None:
        """Begin with none."""
        self._connections: dict[Connection, None] = {}
        self._came = asyncio.Event()

    def add(self, connection: Connection) -> None:
        """Note a connection: again and again for as long as it is silent."""
        self._connections[connection] = None
        self._came.set()

    async def take(self) -> list[Connection]:
        """Return those that were noted since the last call, once there are any."""
        await self._came.wait()
        self._came.clear()
        connections, self._connections = [*self._connections], {}
        return connections


class Work(Protocol):
    """What a consumer works on, which pings tell."""

    def in_hand(self) -> list[tuple[Address, str, m.Runs]]:
        """Return it by partition and cluster."""


class Connection(asyncio.Protocol):
    """Requests out, replies in. Silence ends it: see `Liveness`."""

    def __init__(
        self,
        senders: Senders,
        silence: Silence | None = None,
        work: Work | None = None,
        number: int = 0,
    ) -> None:
        """Take whom to wake when writing goes on after a pause, and, if it is `prompt`, where to
        note that it is silent. Pings tell of `work`. Connections of other numbers number their
        requests otherwise.
        """
        self._loop = asyncio.get_running_loop()
        self._senders = senders
        self._silence = silence
        self._work = work
        self._session: Session[OnAnswer] = Session(number % _CONNECTIONS * _REQUESTS + 1)
        self._transport: asyncio.Transport | None = None
        self._paused = False
        #: Requests for which a broker waits, which leave together at the end of this turn.
        self._polls: list[Buffer] = []
        #: The node that answers, once it has identified itself.
        self.node = 0
        self._liveness = Liveness(self._loop.time())
        self._beat: asyncio.TimerHandle | None = None
        self._why: Exception | None = None
        self.over = asyncio.Event()
        _HERE.add(self)

    @property
    def peer(self) -> PeerCertificate | None:
        """What the certificate of the broker says; None without TLS."""
        transport = self._transport
        found = None if transport is None else transport.get_extra_info("peer")
        return found if isinstance(found, PeerCertificate) else None

    @property
    def writable(self) -> bool:
        """Whether a request may be sent now: connected, buffers not full, numbers left."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return not self._paused and len(self._session.pending) < REQUESTS_PENDING_MAX

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read along: it is encrypted, or leaves no machine."""
        transport = self._transport
        if transport is None:
            return False
        peer = transport.get_extra_info("peername")
        if transport.get_extra_info("tls_version") is not None or not isinstance(peer, tuple):
            return True
        return is_loopback(str(peer[0]))

    @property
    def is_silent(self) -> bool:
        """Whether nothing came for 0.3 s while answers were due."""
        alive, now = self._liveness, self._loop.time()
        return alive.prompt and any(True for _ in alive.overdue(now, self._session.pending))

    @property
    def owed(self) -> list[m.Request]:
        """The requests whose answers are due for 0.3 s, unless `answer` has answered them."""
        overdue = self._liveness.overdue(self._loop.time(), self._session.pending)
        return [request for request in overdue if request is not None]

    def awaits(self, which: Callable[[m.Request], bool]) -> bool:
        """Return whether one of some requests was sent by it and awaits its answer."""
        pending = self._session.pending.values()
        return any(request is not None and which(request) for *_, request in pending)

    def answer(self, which: Callable[[m.Request], bool], answer: m.Reply | Disconnected) -> None:
        """Give an answer to some of the requests that await one: what comes later is ignored."""
        for on_answer, correlation in self._session.let_go(which, _ignore):
            on_answer(correlation, answer)

    def offer(self, request: m.Request, on_answer: OnAnswer) -> int | None:
        """Write a request as `send` does if that is possible now: see `writable`; else None."""
        transport = self._transport
        if transport is None or self._paused or transport.is_closing():
            return None
        if len(self._session.pending) >= REQUESTS_PENDING_MAX:
            return None
        return self.send(request, on_answer)

    def send(self, request: m.Request, on_answer: OnAnswer) -> int:
        """Write a request; `on_answer` is called once. Raises `Disconnected`, `Overloaded`."""
        if self._transport is None:
            raise Disconnected("the connection to the broker has ended")
        if not self._session.pending:
            self._liveness.owed = max(self._liveness.owed, self._loop.time())
        correlation, buffers = self._session.ask(request, on_answer)
        if getattr(request, "wait_ms", 0):
            # Hundreds of them may be due at once: each packet costs a broker as much as several do.
            if not self._polls:
                self._loop.call_soon(self._write_polls)
            self._polls += buffers
            return correlation
        if self._polls:
            self._write_polls()
        if sum(map(len, buffers)) <= _SMALL_BYTES:  # several cost the transport more than a copy
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)
        return correlation

    def _write_polls(self) -> None:
        polls, self._polls = self._polls, []
        if polls and self._transport is not None:
            self._transport.write(b"".join(polls))

    async def request(self, request: m.Request, timeout: float) -> m.Reply:
        """Return the reply, or raise the refusal, or `Disconnected` without an answer in time."""
        waiter: asyncio.Future[m.Reply] = self._loop.create_future()

        def on_answer(_: int, answer: m.Reply | Disconnected) -> None:
            if waiter.done():  # nobody waits any more
                return
            if isinstance(answer, Disconnected):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)

        self.send(request, on_answer)
        try:
            async with asyncio.timeout(timeout):
                reply = await waiter
        except TimeoutError:
            if isinstance(request, m.Hello):
                raise Disconnected(
                    f"took the connection, and did not answer hello within {timeout:.1f} s: check "
                    "that this is a broker's port, and the load of the broker"
                ) from None
            raise Disconnected(
                f"the broker did not answer within {timeout:.1f} s ({_in_words(request)}); it may "
                "or may not have happened. Look at the load of the broker, or give a longer "
                "request_timeout"
            ) from None
        if isinstance(reply, m.Refusal):
            raise refusal(reply.code, reply.message, reply.detail)
        return reply

    def greeted(self, welcome: m.Welcome, *, prompt: bool = False) -> None:
        """Take who answers here; where there are other nodes beside it, or others can be asked
        because it is `prompt`, answers are due soon.
        """
        self.node, self._liveness.prompt = welcome.node, prompt or bool(welcome.nodes)

    def abort(self, why: Exception | None = None) -> None:
        """End the connection at once; every pending request gets `Disconnected`."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Write what is buffered, end the connection, return when it has ended (at most 5 s)."""
        if self._transport is None:
            return
        self._write_polls()
        self._transport.close()
        try:
            async with asyncio.timeout(5.0):
                await self.over.wait()
        except TimeoutError:
            self.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: no delay for small requests, since batches are cut by us."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listen_in(SILENT_AFTER)

    def data_received(self, data: bytes) -> None:
        """Hand each reply to its caller."""
        self._liveness.heard = self._loop.time()
        was_full = len(self._session.pending) >= REQUESTS_PENDING_MAX
        try:
            answered = self._session.receive(data)
        except RemoteProtocolError as error:
            self.abort(error)
            return
        if self._session.throttle_ms:
            self._liveness.throttled(self._loop.time(), self._session.throttle_ms / 1_000)
            self._session.throttle_ms = 0
        for one in answered:
            one.handle(one.correlation, one.reply)
        if was_full and self.writable:
            self._senders.wake()

    def pause_writing(self) -> None:
        """The transport holds enough: producers wait."""
        self._paused = True

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._paused = False
        self._senders.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting requests."""
        if self._transport is not None:
            _hang_up(self._transport)
        self._transport = None
        if self._beat is not None:
            self._beat.cancel()
        why = self._why or exc
        lost = Disconnected(
            f"the connection to the broker ended{f': {why}' if why else ''}; "
            "requests under way may or may not have taken effect"
        )
        if isinstance(why, RemoteProtocolError):
            lost.__cause__ = why
        for on_answer, correlation in self._session.end():
            on_answer(correlation, lost)
        self.over.set()

    def _listen(self) -> None:
        now = self._loop.time()
        look = self._liveness.look(now, self._session.pending)
        if look.is_dead:
            self.abort(Disconnected(f"nothing heard for {look.silence:.0f} s"))
            return
        if look.is_silent and self._silence is not None:
            self._silence.add(self)
        if look.pings and not self._session.full:
            self._liveness.pinged_at = now
            self.send(m.Ping(() if self._work is None else tuple(self._work.in_hand())), _ignore)
        self._listen_in(look.wait)

    def _listen_in(self, wait: float) -> None:
        self._liveness.looks_at = self._loop.time() + wait
        self._beat = self._loop.call_later(wait, self._listen)


class Dialler:
    """Makes the connections of one client: dials, and says hello."""

    def __init__(
        self,
        name: str,
        senders: Senders,
        silence: Silence,
        work: Work | None = None,
        files: ClientFiles | None = None,
        credentials: AnyCredentials | None = None,
        *,
        prompt: bool = False,
    ) -> None:
        """Take what the client calls itself, what its connections take, and who they log in as;
        with `files` they are made by TLS. Where it is `prompt`, answers are always due soon.
        """
        self.name = name
        self.prompt = prompt
        self._tls = None if files is None else TlsDialler(files)
        self.credentials = credentials
        self._senders = senders
        self._silence = silence
        self._work = work
        #: What renews the tokens of connections; each ends with its connection.
        self._keeping: dict[asyncio.Future[None], None] = {}
        #: A sender over several connections knows an answer by its number alone, so each
        #: has numbers of its own.
        self._made = count()

    def check(self) -> None:
        """Raise `BadCertificate` if its files allow no connection to any server."""
        if self._tls is not None:
            self._tls.context()

    async def dial(
        self, host: str, port: int, timeout: float, system: int
    ) -> tuple[Connection, m.Welcome]:
        """Return a connection and what the broker there said, which is of `system` (0: any).

        Raises `OSError`, `TimeoutError`, `Refused` or `Disconnected`.
        """
        try:
            return await self._dial(host, port, timeout, system)
        except StaleTicket:
            return await self._dial(host, port, timeout, system)

    async def _dial(
        self, host: str, port: int, timeout: float, system: int
    ) -> tuple[Connection, m.Welcome]:
        make = partial(Connection, self._senders, self._silence, self._work, next(self._made))
        if self._tls is not None:
            connection = await self._tls.connect(make, host, port, timeout)
        else:
            async with asyncio.timeout(timeout):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(make, host, port)
        renewal: Renewal | None = None
        try:
            if isinstance(self.credentials, TokenCredentials):
                renewal = await self.credentials.log_in(connection, timeout)
            elif self.credentials is not None:
                await self.credentials.log_in(connection, timeout)
            welcome = await connection.request(m.Hello(self.name, system, notices=True), timeout)
            if not isinstance(welcome, m.Welcome) or welcome.protocol != m.PROTOCOL:
                raise WrongSystem(f"{host}:{port} speaks another protocol: upgrade the older side")
            if system not in (0, welcome.system):
                raise WrongSystem(f"{host}:{port} belongs to another system: check the URL")
            check_broker(connection.peer, welcome.system, welcome.node, f"{host}:{port}")
        except BaseException as error:
            connection.abort(error if isinstance(error, Exception) else None)
            raise
        connection.greeted(welcome, prompt=self.prompt)
        if renewal is not None:
            keeping = asyncio.ensure_future(renewal.keep(connection, connection.over, timeout))
            self._keeping[keeping] = None
            keeping.add_done_callback(self._keeping.pop)
        return connection, welcome


def _in_words(request: m.Request) -> str:
    """Return what was asked, as in "open producer"."""
    return re.sub("(?<!^)(?=[A-Z])", " ", type(request).__name__).lower()


#: What a fork copies and must let go of.
_HERE: WeakSet[Connection] = WeakSet()


def _hang_up(transport: asyncio.Transport) -> None:
    """End the connection itself: closing ends only our hold of it, and a fork may have another."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        # By a handle of our own: what uvloop gives as its socket refuses to be shut down.
        with (
            contextlib.suppress(OSError),  # the other side was first
            socket.socket(fileno=os.dup(sock.fileno())) as own,
        ):
            own.shutdown(socket.SHUT_RDWR)


def _let_go_in_child() -> None:
    """After a fork: a connection is its parent's alone, and ends when that ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for connection in [*_HERE]:
        transport = connection._transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            # The number stays taken: a later close of it does not close another file.
            os.dup2(nothing, sock.fileno(), inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


def _ignore(_: int, __: m.Reply | Disconnected) -> None:
    """A pong matters only by having been heard."""
