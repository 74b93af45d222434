"""Connections of clients to a relay: bytes to requests, and answers back, within limits."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress

from weir.errors import NoHello, RemoteProtocolError, TooLarge, WeirError
from weir.model.ids import is_loopback
from weir.model.limits import CONTROL_FRAME_BYTES_MAX, HELLO_WITHIN_MS, KIB, MIB
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login
from weir.protocol.client.codec import ClientStream, decode_request, encode_reply
from weir.protocol.frame import ClientFrame
from weir.relay_node.gate import RelayGate
from weir.relay_node.requests import AnswerRoom, Places, refusal_of
from weir.tls.files import ServerTls

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 1_000
#: Of one connection, so many requests are under way, beside those that wait for what may come much
#: later; it is not read from meanwhile.
PENDING_MAX = 32
#: So many bytes of answers are in memory for all connections together.
ANSWERS_BYTES = 128 * MIB
#: What an answer may take while it is made.
_ANSWER_BYTES = 4 * MIB
#: A client that takes nothing for so many seconds is cut off: others wait for the room.
_STALLED = 30.0
_READ = 256 * KIB
#: After so many seconds without a byte the system asks whether a client is there at all.
SILENT_SECONDS = 60
#: Of one connection, so many large answers are made or sent at once.
_LARGE_MAX = 2
#: What ends a connection.
_ENDED = (OSError, RemoteProtocolError)


class RelayTls:
    """Gives each handshake the newest certificate: an `Acceptor` of `CertificateFiles`."""

    def __init__(self) -> None:
        """Have no certificate yet."""
        self.serving: ServerTls | None = None
        #: Why newer files are not served.
        self.problem = ""
        self._listening: ssl.SSLContext | None = None

    def serve(self, serving: ServerTls) -> None:
        """Serve new handshakes with this from now on."""
        self.serving = serving

    def end_sessions(self) -> None:
        """Hang up on nobody: the sessions here are by login, and their core ends them."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """What to listen with, for good; None without a certificate."""
        if self._listening is None and self.serving is not None:
            self._listening = self.serving.context
            # OpenSSL calls it in each handshake, before a certificate is chosen, also where the
            # client names no host.
            self._listening.sni_callback = self._choose
        return self._listening

    def _choose(self, one: ssl.SSLObject, name: str, listening: ssl.SSLContext) -> None:
        if self.serving is not None:
            one.context = self.serving.context


class Listener:
    """Serves clients on one port."""

    def __init__(self, gate: RelayGate, tls: RelayTls | None = None) -> None:
        """Answer what `gate` lets through; by TLS alone, if `tls` has a certificate."""
        self._gate = gate
        self._tls = tls
        self._room = asyncio.Semaphore(ANSWERS_BYTES // _ANSWER_BYTES)
        self._connections: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError`."""
        context = None if self._tls is None else self._tls.context
        within = None if context is None else HELLO_WITHIN_MS / 1_000
        self._server = await asyncio.start_server(
            self._accept, host, port, ssl=context, ssl_handshake_timeout=within
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        sock = writer.get_extra_info("socket")
        if sock is not None:
            look_for(sock)
        try:
            await _Connection(self._gate, self._room, reader, writer).run()
            await _close(writer)
        except _ENDED as error:
            log.debug("a connection ended: %r", error)
            with suppress(asyncio.CancelledError):
                await _close(writer)
        except asyncio.CancelledError:
            log.debug("a connection is closed: the relay stops")
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()  # what is written is sent by now, or nobody takes it


def look_for(sock: socket.socket) -> None:
    """Let the system end a connection whose client is gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection once its client has taken what is written, or has taken too long."""
    writer.close()
    with suppress(OSError):
        await asyncio.wait_for(writer.wait_closed(), _STALLED)


class _Channel:
    """What a session knows of the connection that its client came by."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        self.is_encrypted = writer.get_extra_info("ssl_object") is not None
        self.is_loopback = isinstance(peer, tuple) and is_loopback(str(peer[0]))


class _Connection:
    """One client."""

    def __init__(
        self, gate: RelayGate, room: asyncio.Semaphore, reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self._gate = gate
        self._session = gate.session(_Channel(writer))
        self._room = room
        self._reader = reader
        self._writer = writer
        self._stream = ClientStream()
        self._slots = Places(PENDING_MAX)
        self._large = asyncio.Semaphore(_LARGE_MAX)
        self._sending = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._greeted = False

    async def run(self) -> None:
        """Serve until it ends. Raises what ended it."""
        try:
            while True:
                reading = self._reader.read(_READ)
                if self._greeted:
                    data = await reading
                else:
                    data = await asyncio.wait_for(reading, HELLO_WITHIN_MS / 1_000)
                if not data:
                    return
                for frame in self._stream.receive(data):
                    await self._begin(frame)
                if self._stream.claimed > CONTROL_FRAME_BYTES_MAX:
                    await self._refuse_large()
                    return
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._session.close()

    async def _watch(self) -> None:
        """Cut the client off once its session has ended."""
        await self._session.ended()
        whose = self._session.user or "a consumer"
        log.info("a connection of %s ends: so has its session in the core", whose)
        self._writer.transport.abort()

    async def _begin(self, frame: ClientFrame) -> None:
        await self._slots.acquire()
        task = asyncio.get_running_loop().create_task(self._serve(frame))
        self._tasks[task] = None
        task.add_done_callback(self._done)
        if not self._greeted:
            await asyncio.wait((task,))  # nothing is answered before the hello

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            log.debug("a connection ends: %r", task.exception())
            self._writer.transport.abort()  # closing would wait for a peer that reads nothing

    async def _serve(self, frame: ClientFrame) -> None:
        opcode, correlation = frame.opcode, frame.correlation
        async with AnswerRoom(self._slots, self._large, self._room) as room:
            reply: m.Reply
            try:
                request = decode_request(frame)
                del frame  # it may be much longer than what it says, and others wait with theirs
                reply = await self._answer(request, room)
            except WeirError as error:
                reply = refusal_of(error)
            # Not all answers take room, and a peer that reads no answers is not read from.
            await room.step_back()
            await self._send(reply, opcode, correlation)

    async def _answer(self, request: m.Request, room: AnswerRoom) -> m.Reply:
        if not self._greeted and not isinstance(request, m.Hello | Login):
            raise NoHello("say hello first")
        reply = await self._gate.answer(request, room, self._session)
        if isinstance(request, m.Hello) and not self._greeted:
            self._greeted = True
            self._tasks[asyncio.get_running_loop().create_task(self._watch())] = None
        return reply

    async def _send(self, reply: m.Reply, opcode: int, correlation: int) -> None:
        async with self._sending:
            self._writer.writelines(encode_reply(reply, opcode, correlation))
            if self._writer.transport.get_write_buffer_size():
                await asyncio.wait_for(self._writer.drain(), _STALLED)

    async def _refuse_large(self) -> None:
        """No client of a relay has much to say: what is sent is a publish."""
        unfinished = self._stream.unfinished
        if unfinished is not None:
            error = TooLarge("a relay takes no messages: publish to the core", 0)
            await self._send(refusal_of(error), *unfinished)
