"""One accepted connection: bytes between the socket and the dialect (`weir.wire`)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from weir.broker import events as ev
from weir.broker.admission import ANONYMOUS
from weir.broker.reservations import FIRST_BYTES, Incoming, State
from weir.codec.fields import U32, Buffer
from weir.errors import Refused, RemoteProtocolError, Revoked
from weir.model.limits import KIB, MIB, RETRY_AFTER_MS
from weir.server.doors import Doors
from weir.server.driving import Driving
from weir.wire.client import encode_reply
from weir.wire.connection import Connection
from weir.wire.device import DeviceHello, DeviceRequest
from weir.wire.frame import CLIENT_HEADER, CLIENT_VERSION, ClientFrame
from weir.wire.link import LINK_VERSION
from weir.wire.messages import Opcode, Refusal

log = logging.getLogger(__name__)

Frames = Sequence[ClientFrame | DeviceRequest]
_ASK_FOR_MESSAGES = frozenset({Opcode.FETCH, Opcode.FETCH_CHUNKS, Opcode.PULL})

_LINK = bytes([LINK_VERSION])
_INTERNET = (socket.AF_INET, socket.AF_INET6)
#: The first byte of Linux's `struct tcp_info`, of a connection that neither side has ended.
_ESTABLISHED = 1
#: Of a client's read that is longer than this, so many frames are served at once; the others wait
#: in line.
_CROWDED_BYTES = 2 * KIB
PART_FRAMES = 64
#: Where the length of the body stands in the header of a client frame.
_SIZE_AT = 4
#: Above this much unsent, no more requests are taken from the peer: it does not take its replies.
_UNSENT_BYTES_MAX = 16 * MIB
#: Above this much unsent, small replies are charged as well.
_UNCHARGED_BYTES_MAX = 64 * KIB
#: How long a peer that is hung up on may take to read what was sent to it before.
_GRACE_SECONDS = 5.0
#: While the budget is used up, a peer that takes none of its replies for so long is cut.
_STALL_SECONDS = 10.0
#: How long a peer that lost its frame may take to read why.
_LAST_WORD_SECONDS = 1.0


class TakesLinks(Protocol):
    """Who looks after connections of other nodes."""

    def accept(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take a connection over that began with `data`, in the link dialect."""


class Admitting(Driving, Protocol):
    """A driver, as its peers use it: it also tells time, and looks at who has something unsent."""

    @property
    def links(self) -> TakesLinks:
        """Where connections belong that are no client's."""

    def now(self) -> float:
        """Seconds since whenever; never falls."""

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after a while."""

    def opened(self, peer: Peer) -> None:
        """A peer connected."""

    def closed(self, peer: Peer) -> None:
        """A peer is gone."""

    def in_line(self, peer: Peer) -> None:
        """A peer brought more frames than it may be served at once: serve them by parts."""

    def watch(self, peer: Peer) -> None:
        """Look at a peer at every tick until all that was charged for it is sent."""

    def take(self, size: int) -> None:
        """Take bytes of the budget while effects are done; the next event sees to the rest."""

    def arrived_of(self, frame: Incoming, came: int, size: int) -> None:
        """Of a frame of `size` bytes, which is not whole, there are `came` now."""

    def ended_of(self, frame: Incoming) -> None:
        """A frame is whole, or its connection is over."""


class Peer(asyncio.Protocol):
    """Reads frames and hands them to the driver in order; writes what the driver sends.

    A frame that is not whole is told to the driver's reservations, which decide whether it is read.
    Messages are charged to the shard's budget until they are out of this process.
    """

    def __init__(self, driver: Admitting, session: int) -> None:
        """Belong to a driver, which knows this peer by `session`."""
        self.session = session
        self._driver = driver
        self._connection = Connection()
        #: It may be another node: it is read until that is known, whatever clients wait for.
        self.may_link = False
        self._transport: asyncio.Transport | None = None
        self._waiting: Frames = ()  # taken from the socket, not served: the peer is full
        self._rest = b""  # many small frames behind those that were served: they wait in line
        self._full = False
        self._leaving = self._has_said_last = False
        self._inside = False
        self._frame: Incoming | None = None  # the one that is not whole
        self._greeted = False
        self._unsent = 0  # bytes charged for what the transport holds
        self._moved = self._heard = self._began = driver.now()

    # -- asyncio calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the driver, or hang up if it has enough connections."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        self._driver.opened(self)

    def moved(self, transport: asyncio.Transport) -> None:
        """Go on over another transport: the connection is the same."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Cut frames; a peer that breaks its dialect is dropped."""
        if self._leaving:
            return
        if self._rest:
            self._rest += data
            return
        self._heard = self._driver.now()
        if self._connection.stream is None and data[:1] == _LINK:
            self._link(data)
            return
        self._take(data)

    def serve_part(self) -> None:
        """Serve what is in line, as much of it as a part has."""
        data, self._rest = self._rest, b""
        if self._transport is not None and not self._leaving and data:
            self._take(data)
            self.update()

    def pause_writing(self) -> None:
        """The peer does not take its replies: take no more requests from it."""
        self._full = True
        self.update()

    def resume_writing(self) -> None:
        """The peer took its replies."""
        self._full = False
        self._serve_waiting()
        self.update()

    def connection_lost(self, error: Exception | None) -> None:
        """Give everything back, and tell the driver."""
        self._transport = None
        self._rest = b""
        if self._frame is not None:
            self._end_frame()
        self._driver.release(self._unsent)
        self._unsent = 0
        self._driver.closed(self)

    # -- the driver calls ---------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether a peer that is not let in yet has hung up: it is not read from, so only the
        system knows.
        """
        if self._inside or self._transport is None:
            return self._transport is None
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.family not in _INTERNET:
            return False
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state[0] != _ESTABLISHED

    @property
    def host(self) -> str:
        """The address of the peer; empty if it has none."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return str(name[0]) if isinstance(name, tuple) else ""

    def enter(self) -> None:
        """Be served from now on."""
        self._inside = True
        if self._waiting:
            self._serve_waiting()

    def send(self, buffers: tuple[Buffer, ...], charged: int) -> None:
        """Write buffers as they are, in order; `charged` bytes are given back once they are out."""
        if self._transport is None or self._has_said_last:
            self._driver.release(charged)
            return
        if charged:
            self._settle(self._transport)
            self._unsent += charged
            self._driver.watch(self)
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        backlog = self._transport.get_write_buffer_size() - self._unsent
        if backlog > _UNCHARGED_BYTES_MAX:  # many small replies that nobody reads are memory too
            self._unsent += backlog
            self._driver.take(backlog)
            self._driver.watch(self)

    def tick(self) -> bool:
        """Give back what was sent; return whether some of it is still here.

        While the budget is used up, a peer that takes none of its replies is cut: others wait for
        the memory that it holds.
        """
        if self._transport is None:
            return False
        self._settle(self._transport)
        stalled = self._driver.now() - self._moved > _STALL_SECONDS
        if stalled and self._driver.held and self._unsent:
            log.warning("session %d holds memory that others wait for: cut", self.session)
            self.cut()
        return self._unsent > 0

    def sweep(self, doors: Doors) -> None:
        """Let a peer go that dribbles a frame, or a device that says nothing any more."""
        now = self._driver.now()
        if self.gone:
            self.cut()
        elif self._full or self._driver.held or not self._inside or not self._is_admitted:
            self._began = now  # it is not read from: what is missing may be in the socket
        elif not self._connection.pending or self._rest:
            if self._connection.is_device and now - self._heard > doors.idle_seconds:
                self.hang_up(f"no frame for {doors.idle_seconds:g} s: ping to stay")
        elif now - self._began > doors.frame_seconds:
            log.warning("session %d: a frame took too long: cut", self.session)
            self.cut()

    def update(self) -> None:
        """Read from the socket, or not: never while the peer is full or waits to be let in, nor
        while its frame waits for a reservation. While the budget is used up, only frames that have
        a reservation are read.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        has_reservation = self._frame is not None and self._frame.state is State.RESERVED
        hold = (self._driver.held and not has_reservation) or not self._is_admitted
        is_held = (self._full or hold or not self._inside) and not self.may_link
        if self._rest and not is_held:
            self._driver.in_line(self)
        if self._rest or is_held:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def settle_frame(self, frame: Incoming) -> None:
        """Do what was decided about a frame: read it or not, or close the connection."""
        if frame is not self._frame:
            return
        if frame.state is State.EVICTED:
            reason = "this frame waited longest for its next bytes, and others need its memory"
        elif frame.state is State.REVOKED:
            reason = "this frame was the slowest of those that have memory, and others wait for it"
        else:
            self.update()
            return
        self._lose(Revoked(f"{reason}: send it again", RETRY_AFTER_MS))

    def _lose(self, error: Refused) -> None:
        """Forget the frame under way, tell the peer why, and close.

        To close at once what holds unread bytes is to reset it, and the peer would hear of nothing.
        So only this direction is closed, and the other one once the peer has had time to read.
        """
        transport, unfinished = self._transport, self._connection.unfinished
        self._end_frame()
        self._connection, self._waiting, self._rest = Connection(), (), b""
        if transport is None or transport.is_closing() or self._leaving:
            return
        self._leaving = True
        log.info("session %d closed: %s", self.session, error)
        transport.pause_reading()
        if unfinished is None or not transport.can_write_eof():
            self.cut()
            return
        reply = Refusal(error.code, str(error), error.detail)
        transport.writelines(encode_reply(reply, *unfinished))
        transport.write_eof()
        self._has_said_last = True
        self._driver.later(_LAST_WORD_SECONDS, self.cut)

    def hang_up(self, reason: str) -> None:
        """Close once everything sent is out, or the time for that is up."""
        if self._has_said_last:
            self.cut()
        if self._transport is None or self._leaving:
            return
        self._leaving = True
        log.info("session %d closed: %s", self.session, reason)
        self._transport.close()
        self._driver.later(_GRACE_SECONDS, self.cut)

    def cut(self) -> None:
        """Close at once, whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def _link(self, data: bytes) -> None:
        """Leave the connection to who looks after links: it is no client's."""
        transport, self._transport = self._transport, None
        self._driver.closed(self)
        if transport is not None:
            self._driver.links.accept(transport, data)

    # -- inside -------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        connection, now = self._connection, self._driver.now()
        begins = not connection.pending
        if len(data) > _CROWDED_BYTES and not connection.is_device:
            data = self._first_of(data)
        try:
            frames = connection.receive(data)
        except RemoteProtocolError as error:
            self._driver.handle(ev.LetGo(self.session, str(error)))
            return
        if frames or begins:
            self._began = now
        if frames:
            self._moved = now
            self._greeted = self._greeted or _is_hello(frames[0])
            if self._frame is not None:
                self._end_frame()
        if not self._account(connection):
            return
        if frames:
            self._serve(frames)
        if self._rest:
            self.update()

    def _account(self, connection: Connection) -> bool:
        """Tell what has come and is not served; False if the peer is let go for it."""
        if connection.pending or self._rest:
            if not self._greeted and connection.claimed > FIRST_BYTES:
                reason = f"a frame of {connection.claimed:,} bytes before hello"
                self._driver.handle(ev.LetGo(self.session, reason))
                return False
            self._count(connection)
        elif self._driver.held:
            self.update()
        if self.may_link:
            self.may_link = False
            self.update()
        return True

    def _serve(self, frames: Frames) -> None:
        """Hand frames on, one that asks for messages at a time: its reply may fill the peer."""
        start = 0
        if not self._inside:
            self._waiting = (*self._waiting, *frames)
            return
        if self._connection.is_device and not self._full:
            self._driver.received(self.session, frames)
            return
        for at, frame in enumerate(frames, 1):
            if isinstance(frame, ClientFrame) and frame.opcode in _ASK_FOR_MESSAGES:
                self._driver.received(self.session, frames[start:at])
                start = at
                if self._full:
                    break
        if self._full:
            self._waiting = (*self._waiting, *frames[start:])
        elif start < len(frames):
            self._driver.received(self.session, frames[start:])

    def _serve_waiting(self) -> None:
        waiting, self._waiting = self._waiting, ()
        if waiting:
            self._serve(waiting)

    def _first_of(self, data: bytes) -> bytes:
        """Return what holds at most as many frames as a part has; the rest is to stay in line."""
        connection, at = self._connection, 0
        if connection.stream is None and data[0] != CLIENT_VERSION:
            return data
        if connection.pending:
            claimed = connection.claimed or CLIENT_HEADER.size
            at = max(claimed - connection.pending, 0)
        for _ in range(PART_FRAMES):
            if at + CLIENT_HEADER.size > len(data):
                return data
            (size,) = U32.unpack_from(data, at + _SIZE_AT)
            at += CLIENT_HEADER.size + size
        if at < len(data):
            self._rest, data = data[at:], data[:at]
        return data

    @property
    def _is_admitted(self) -> bool:
        """Whether the frame under way may be read, if there is one."""
        return not self._leaving and (self._frame is None or self._frame.is_read)

    def _count(self, connection: Connection) -> None:
        """Tell how much there is of the frame under way."""
        frame, claimed = self._frame, connection.claimed
        if frame is None:
            frame = self._frame = Incoming(self.session, ANONYMOUS, "")
        if claimed > FIRST_BYTES and not frame.address:
            frame.address = self.host
        self._driver.arrived_of(frame, connection.pending + len(self._rest), claimed)
        if self._driver.held:
            self.update()

    def _end_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            self._driver.ended_of(frame)

    def _settle(self, transport: asyncio.Transport) -> None:
        """Give back what has left this process since the last time."""
        sent = self._unsent - min(self._unsent, transport.get_write_buffer_size())
        if sent:
            self._unsent -= sent
            self._driver.release(sent)
            self._moved = self._driver.now()


def _is_hello(frame: ClientFrame | DeviceRequest) -> bool:
    if isinstance(frame, ClientFrame):
        return frame.opcode == Opcode.HELLO
    return isinstance(frame, DeviceHello)
