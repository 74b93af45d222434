"""The connections of clients and devices, between the bytes that come and the events of a shard.

What they do before their hello is in `weir.host.strangers`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Generic

from weir.access.devices import FrameKeys
from weir.access.failures import origin_of
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.runtime.budget import FIRST_BYTES, Budget, Incoming, Reservations, State
from weir.broker.runtime.session import ANONYMOUS
from weir.codec import Buffer
from weir.errors import Refused, RemoteProtocolError, Revoked
from weir.host.accept_queue import AcceptQueue, ConnectionLimits
from weir.host.ports import Log, Network, Receiver, T
from weir.host.shard_loop import Backlog, EventQueue, first_part, until_effects
from weir.host.strangers import BUDGET_PART, Frames, Handshakes, Strangers, is_link
from weir.host.unsent_bytes import UnsentBytes
from weir.model.limits import KIB, MIB, RETRY_AFTER_MS
from weir.protocol.client.codec import encode_reply
from weir.protocol.client.messages import Refusal
from weir.protocol.connection import Connection
from weir.protocol.device import DeviceRequest
from weir.protocol.frame import ClientFrame

#: Above this much unsent a transport is full: it calls `pause_writing`.
UNSENT_BYTES_MAX = 16 * MIB
#: Above this much unsent, small replies are charged as well.
_UNCHARGED_BYTES_MAX = 64 * KIB
#: How long a peer that is hung up on may take to read what was sent to it before.
_GRACE_SECONDS = 5.0
#: How long a peer that lost its frame may take to read why.
_LAST_WORD_SECONDS = 1.0
#: How often all connections are looked at.
SWEEP_SECONDS = 5.0

#: How far a connection has come: it waits to be let in, is served, is closed once everything sent
#: is out, or has this side closed while the peer may still read. These are no `Enum`: to look up a
#: member takes a quarter of a microsecond, and each frame does.
_QUEUED, _OPEN, _CLOSING, _SHUT = range(4)


class ClientConnection(Generic[T]):
    """One connection: frames are cut and become events in order; what is sent is written.

    A frame that is not whole is told to the shard's reservations, which decide whether it is read.
    Messages are charged to the shard's budget until they are out of this process.
    """

    __slots__ = (
        "_connections", "_frame", "_full", "_greeted", "_phase", "_replies", "_rest", "_since",
        "_transport", "_waiting", "is_throttled", "may_link", "queued", "session", "stream",
    )  # fmt: skip

    def __init__(self, connections: Connections[T], session: int) -> None:
        """Be known to the shard by `session`."""
        self.session = session
        self.stream = Connection()
        #: It may be another node: it is read until that is known, whatever clients wait for.
        self.may_link = False
        #: Whether it is among those `unserved`.
        self.queued = False
        #: Whether it is not read from because of a quota.
        self.is_throttled = False
        self._connections = connections
        self._transport: T | None = None
        self._phase = _QUEUED
        self._waiting: Frames = ()  # taken from the socket, not served
        self._rest = b""  # many small frames behind those that were served: they wait in line
        self._full = False
        self._frame: Incoming | None = None  # the one that is not whole
        self._greeted = False
        #: Since when nothing has come, or the frame under way has.
        self._since = connections.time()
        self._replies = UnsentBytes()

    # -- its host calls -----------------------------------------------------------------------

    def open(self, transport: T) -> bool:
        """Begin; return whether it is read from."""
        self._transport = transport
        return self._connections.open(self)

    def move(self, transport: T) -> None:
        """Go on over another transport: the connection is the same."""
        self._transport = transport

    def receive(self, data: bytes) -> bool:
        """Cut frames; a peer that breaks its dialect is dropped. False for one that is another
        node, as its first bytes say: from now on the connection is a link's.
        """
        if self._phase >= _CLOSING:
            return True
        if self._rest:
            self._rest += data
            return True
        if self.stream.stream is None and is_link(data):
            self._transport = None
            self._connections.forget(self)
            return False
        connections = self._connections
        if connections.backlog.is_shared and connections.budget.is_short and self._greeted:
            self._rest = data  # its namespace has its turn
            self._count(self.stream)
            self.update()
            return True
        self._take(data, self._connections.time())
        return True

    def pause_writing(self) -> None:
        """The peer does not take its replies: take no more requests from it."""
        self._full = True
        self.update()

    def resume_writing(self) -> None:
        """The peer took its replies."""
        self._full = False
        self.serve()
        self.update()

    def close(self) -> None:
        """The transport is gone: give everything back."""
        self._transport = None
        if self._frame is not None:
            self._end_frame()
        self._connections.budget.release(self._replies.drop())
        self._waiting, self._rest = (), b""
        self._connections.forget(self)

    def update(self) -> None:
        """Read from the transport, or not: never while the peer is full or waits to be let in, nor
        while its frame waits for a reservation or its frames in line. While the budget is used up,
        only frames that have a reservation are read.
        """
        transport, connections = self._transport, self._connections
        if transport is None or transport.is_closing():
            return
        has_reservation = self._frame is not None and self._frame.state is State.RESERVED
        hold = (connections.queue.held and not has_reservation) or not self._is_admitted
        hold = hold or self._full or self._phase == _QUEUED or self.is_throttled
        is_held = hold and not self.may_link
        if self._rest and not is_held:
            connections.backlog.add_parts(self)
        if self._rest or is_held:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def cut(self) -> None:
        """Close at once, whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    # -- the connections call -----------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether a peer that waits to be let in, and is not read from, has hung up."""
        if self._phase != _QUEUED or self._transport is None:
            return self._transport is None
        return self._connections.network.is_gone(self._transport)

    @property
    def is_open(self) -> bool:
        """Whether it was let in, and is not being closed."""
        return self._phase == _OPEN

    @property
    def is_known(self) -> bool:
        """Whether it is among the open connections of its shard."""
        return self.session in self._connections.open_now

    @property
    def address(self) -> str:
        """The address of the peer; empty if it has none."""
        transport = self._transport
        return "" if transport is None else self._connections.network.address(transport)

    @property
    def has_waited(self) -> bool:
        """Whether frames of it wait: then it has waited for the failures of its address."""
        return bool(self._waiting)

    def wait(self) -> None:
        """Wait to be let in again."""
        self._phase = _QUEUED

    def enter(self) -> None:
        """Be served from now on."""
        if self._phase == _QUEUED:
            self._phase = _OPEN
        # Again: its session was not open before.
        if self._waiting and self._meets(self._waiting, 0):
            self.serve()

    def serve(self) -> None:
        """Hand on the frames that wait, up to one whose effects must be done before the next: it
        may fill the peer, or show that a quota is overdrawn.
        """
        frames, backlog = self._waiting, self._connections.backlog
        if not frames or self._full or self.queued or self._phase == _QUEUED or self.is_throttled:
            return
        is_fast = self.stream.is_device and not backlog.is_shared
        end = len(frames) if is_fast else until_effects(frames)
        self._waiting, frames = frames[end:], frames[:end]
        if self._waiting:
            self.queued = True
            backlog.unserved.append(self)
        self._connections.queue.receive(self.session, frames)

    def send(self, buffers: tuple[Buffer, ...], charged: int) -> None:
        """Write buffers as they are, in order; `charged` bytes are given back once they are out."""
        transport, connections = self._transport, self._connections
        if transport is None or self._phase == _SHUT:
            connections.budget.release(charged)
            return
        replies = self._replies
        if charged:
            if replies.size:
                connections.budget.release(replies.release(transport))
            replies.size += charged
            connections.watched[self.session] = self
        if (signer := self.stream.signer) is not None:
            try:
                buffers = (signer.sign(b"".join(buffers)),)
            except ValueError as error:  # of another shard that is broken
                self._connections.log.error("session %d: %s", self.session, error)
                self.cut()
                return
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)
        uncharged = transport.get_write_buffer_size() - replies.size
        if uncharged > _UNCHARGED_BYTES_MAX:  # many small replies that nobody reads are memory too
            replies.size += uncharged
            connections.budget.take(uncharged)
            connections.watched[self.session] = self

    def answer(self, reply: bytes) -> None:
        """Write a small reply."""
        self.send((reply,), 0)

    def sign(self, keys: FrameKeys) -> None:
        """Take only signed frames of a device from now on, and sign what is sent to it."""
        if self._phase < _CLOSING:
            self.stream.sign(keys)

    def check_unsent(self, now: float) -> bool:
        """Give back what was sent; return whether some of it is still here, or the end is near.

        While the budget is used up, a peer that takes none of its replies is cut: others wait for
        the memory that it holds.
        """
        connections, replies = self._connections, self._replies
        if self._transport is None:
            return False
        connections.budget.release(replies.release(self._transport))
        if replies.is_late(now):
            self.cut()
        if replies.is_stalled(now) and connections.queue.held:
            text = "session %d holds memory that others wait for: cut"
            connections.log.warning(text, self.session)
            self.cut()
        return replies.size > 0 or replies.deadline > 0

    def sweep(self, limits: ConnectionLimits, now: float) -> None:
        """Let a peer go that dribbles a frame, or a device that says nothing any more."""
        if self.gone:
            self.cut()
        elif (
            self._full
            or self._connections.queue.held
            or self._phase == _QUEUED
            or self.is_throttled
            or not self._is_admitted
        ):
            self._since = now  # it is not read from: what is missing may be in the socket
        elif not self.stream.pending or self._rest:
            if self.stream.is_device and now - self._since > limits.idle_seconds:
                self.hang_up(f"no frame for {limits.idle_seconds:g} s: ping to stay")
        elif now - self._since > limits.frame_seconds:
            self._connections.log.warning("session %d closed: a frame took too long", self.session)
            self.cut()

    def follow_decision(self, frame: Incoming) -> None:
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

    def hang_up(self, reason: str) -> None:
        """Close once everything sent is out, or the time for that is up."""
        if self._phase == _SHUT:
            self.cut()
        if self._transport is None or self._phase >= _CLOSING:
            return
        self._phase = _CLOSING
        self._connections.log.info("session %d closed: %s", self.session, reason)
        self._transport.close()
        self._end_within(_GRACE_SECONDS)

    def serve_part(self) -> int:
        """Serve what is in line, as much of it as a part has; return how many bytes that was."""
        if self.is_throttled:
            return 0
        data, self._rest = self._rest, b""
        if self._transport is not None and self._phase < _CLOSING and data:
            self._take(data, self._connections.time())
            self.update()
        return len(data) - len(self._rest)

    def throttle(self, hold: bool) -> None:
        """Do not read from the peer until it may use more."""
        self.is_throttled = hold
        if not hold:
            self.serve()
        self.update()

    # -- inside -------------------------------------------------------------------------------

    def _take(self, data: bytes, now: float) -> None:
        stream, came = self.stream, len(data)
        if not stream.pending:
            self._since = now
        data, self._rest = first_part(stream, data)
        try:
            frames = stream.receive(data)
        except RemoteProtocolError as error:
            self._connections.queue.put(ev.LetGo(self.session, str(error)))
            return
        if not self._greeted and not self._comes_in(frames, came):
            return
        if frames:
            self._since = now
            if self._frame is not None:
                self._end_frame()
        if stream.pending or self._rest:
            if not self._count(stream):
                return
        elif self._connections.queue.held:
            self.update()
        if self.may_link:
            self.may_link = False
            self.update()
        if frames:
            self._waiting = (*self._waiting, *frames) if self._waiting else frames
            self.serve()
        if self._rest:
            self.update()

    def _comes_in(self, frames: Frames, came: int) -> bool:
        """A stranger brought so many bytes: return whether they are served now."""
        connections = self._connections
        if frames and connections.handshakes.is_slowed(self) and connections.slow(self, frames[0]):
            if self._phase == _QUEUED and connections.handshakes.brought(self, came):
                self._waiting = frames
                self.update()
            return False
        return self._meets(frames, came)

    def _meets(self, frames: Frames, came: int) -> bool:
        """A stranger brought so many bytes: return whether they are served."""
        greeted = self._connections.handshakes.takes_hello(self, frames, came)
        self._greeted = self._greeted or greeted is True
        return greeted is not None

    def _lose(self, error: Refused) -> None:
        """Forget the frame under way, tell the peer why, and close.

        To close at once what holds unread bytes is to reset it, and the peer would hear of nothing.
        So only this direction is closed, and the other one once the peer has had time to read.
        """
        transport, unfinished = self._transport, self.stream.unfinished
        self._end_frame()
        self.stream, self._waiting, self._rest = Connection(), (), b""
        if transport is None or transport.is_closing() or self._phase >= _CLOSING:
            return
        self._phase = _CLOSING
        self._connections.log.info("session %d closed: %s", self.session, error)
        transport.pause_reading()
        if unfinished is None or not transport.can_write_eof():
            self.cut()
            return
        reply = Refusal(error.code, str(error), error.detail)
        transport.writelines(encode_reply(reply, *unfinished))
        transport.write_eof()
        self._phase = _SHUT
        self._end_within(_LAST_WORD_SECONDS)

    def _end_within(self, seconds: float) -> None:
        self._replies.deadline = self._connections.time() + seconds
        self._connections.watched[self.session] = self

    @property
    def _is_admitted(self) -> bool:
        """Whether the frame under way may be read, if there is one."""
        return self._phase < _CLOSING and (self._frame is None or self._frame.is_read)

    def _count(self, stream: Connection) -> bool:
        """Tell how much has come and is not served; False if the peer is let go for it."""
        frame, claimed = self._frame, stream.claimed
        if not self._greeted and not self._connections.handshakes.may_claim(self, claimed):
            return False
        if frame is None:
            frame = self._frame = Incoming(self.session, ANONYMOUS, "")
        if claimed > FIRST_BYTES and not frame.address:
            frame.address = self.address
        self._connections.arrived(frame, stream.pending + len(self._rest), claimed)
        if self._connections.queue.held:
            self.update()
        return True

    def _end_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            self._connections.ended(frame)


class Connections(Generic[T]):
    """All connections of a shard: accepts them, reads from them, and delivers replies.

    What its host is told by transports may put events into the queue, and frames into the backlog.
    """

    def __init__(
        self,
        queue: EventQueue,
        budget: Budget,
        limits: ConnectionLimits,
        network: Network[T],
        remote_peer: Callable[[int], Receiver | None],
        time: Callable[[], float],
        first_session: int,
        log: Log,
    ) -> None:
        """Tell `queue` what peers say. `remote_peer` finds the peer of another shard by session.
        `time` gives seconds since whenever, and never falls. Sessions are numbered from
        `first_session` on, which is drawn: they are unique over restarts, for a session's id
        outlives it as a grant's consumer.
        """
        self.queue = queue
        self.budget = budget
        self.network = network
        self.time = time
        self.log = log
        self._remote_peer = remote_peer
        self._sessions = count(first_session)
        strangers: Strangers[ClientConnection[T]] = Strangers(budget.limit // BUDGET_PART, log)
        self.accept_queue: AcceptQueue[ClientConnection[T]] = AcceptQueue(limits, time(), strangers)
        #: What connections do before their hello.
        self.handshakes: Handshakes[ClientConnection[T]] = Handshakes(queue, strangers, time)
        self._sweep_at = 0.0
        #: Those that are open, by session.
        self.open_now: dict[int, ClientConnection[T]] = {}
        #: Those that are looked at with every tick.
        self.watched: dict[int, ClientConnection[T]] = {}
        #: Frames that have come and are not in the queue.
        self.backlog = Backlog(queue)
        #: Which frames are read that are not whole yet.
        self.reservations = Reservations(budget.limit, time())
        #: What each effect that concerns clients asks for.
        self.actions: dict[type, Callable[[Any], None]] = {
            ef.Send: self._send,
            ef.Answers: self._answer,
            ef.Hangup: self._hang_up,
            ef.SignFrames: self._sign,
            ef.HoldReads: self._hold,
            ef.HoldSession: self._throttle,
            ef.AssignNamespace: self._assign,
        }

    # -- its host calls -----------------------------------------------------------------------

    def connection(self) -> ClientConnection[T]:
        """Return a new connection."""
        return ClientConnection(self, next(self._sessions))

    def new_session(self) -> int:
        """Return a number that no session ever had."""
        return next(self._sessions)

    def hold_clients(self) -> None:
        """Let nobody in until `admit_clients`, but other nodes: the shard is not there yet."""
        self.accept_queue.closed = True

    def admit_clients(self) -> None:
        """Let those in who wait, as fast as the limits allow."""
        self.accept_queue.closed = False

    @property
    def at_rest(self) -> bool:
        """Whether nobody waits for `check_connections`."""
        return not (self.watched or self.reservations.is_due or self.accept_queue.has_waiting)

    def check_connections(self) -> None:
        """Check connections with unsent bytes, those that may be accepted, and silent ones."""
        now = self.time()
        watched = self.watched
        for one in list({**watched, **self.open_now}.values() if self.queue.held
                        else watched.values()):  # fmt: skip
            if not one.check_unsent(now):
                watched.pop(one.session, None)
        if self.reservations.is_due:
            self._decide_frames()
        for one in self.accept_queue.entering(now):
            if one.session in self.open_now:
                self._let_in(one)
                one.update()
        self.accept_queue.strangers.cut_late(now)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            for one in list(self.open_now.values()):
                one.sweep(self.accept_queue.limits, now)

    def end_sessions(self, reason: str) -> None:
        """Let the shard end all sessions."""
        for session in self.open_now:
            self.queue.put(ev.LetGo(session, reason))

    def hang_up(self, reason: str) -> None:
        """Close all, once everything sent is out."""
        for one in list(self.open_now.values()):
            one.hang_up(reason)

    def cut(self) -> None:
        """Close all at once."""
        for one in list(self.open_now.values()):
            one.cut()

    # -- connections call ---------------------------------------------------------------------

    def open(self, one: ClientConnection[T]) -> bool:
        """Let a connection in, or let it wait, or refuse it; return whether it is read from. Of a
        shard that broke or has ended nobody is let in.
        """
        if self.queue.is_closed:
            one.cut()
            return False
        accepting = self.accept_queue
        most = accepting.limits.connections_max
        found = self.network.found
        one.may_link = accepting.closed or (bool(found) and one.address in found)
        if len(self.open_now) >= most and not one.may_link:
            one.hang_up(f"{most:,} connections are open")
            return False
        self.open_now[one.session] = one
        enters = accepting.may_enter(one, self.time())
        if enters:
            self._let_in(one)
        if self.queue.held or not enters:
            one.update()
            return one.may_link
        return True

    def slow(self, one: ClientConnection[T], frame: ClientFrame | DeviceRequest) -> bool:
        """The first frame of a connection is there, and logins failed at its address: let it wait,
        turn it away, or let it go on. Return whether it does not go on.
        """
        if not self.handshakes.must_wait(one, frame):
            return False
        now = self.time()
        seconds = self.accept_queue.failures.seconds(self._origin(one), now)
        if seconds is None:
            self.handshakes.turn_away(one, frame)
        else:  # none if all was forgotten meanwhile
            one.wait()
            self.accept_queue.let_wait(one, now + seconds)
        return True

    def _let_in(self, one: ClientConnection[T]) -> None:
        """Serve a connection, or read its first frame at least: that may be a ticket's."""
        is_slow = False
        if not one.may_link and not one.has_waited:
            is_slow = self.accept_queue.failures.wait(self._origin(one), self.time()) > 0
        self.handshakes.enter(one, is_slow)
        one.enter()

    def forget(self, one: ClientConnection[T]) -> None:
        """A connection is gone, or no client's."""
        self.handshakes.forget(one)
        self.backlog.forget(one.session)
        if self.open_now.pop(one.session, None) is not None:
            self.queue.put(ev.Closed(one.session))

    def arrived(self, frame: Incoming, came: int, size: int) -> None:
        """Of a frame of `size` bytes, which is not whole, there are `came` now."""
        self.reservations.arrived(frame, came, size)
        if self.reservations.is_due:
            self._decide_frames()

    def ended(self, frame: Incoming) -> None:
        """A frame is whole, or its connection is over."""
        self.reservations.ended(frame)
        if self.reservations.is_due:
            self._decide_frames()

    def _decide_frames(self) -> None:
        for frame in self.reservations.advance(self.time()):
            if (one := self.open_now.get(frame.connection)) is not None:
                one.follow_decision(frame)

    def _origin(self, one: ClientConnection[T]) -> str:
        """Return whose failures a connection waits for; it is not asked while there are none."""
        return origin_of(one.address) if len(self.accept_queue.failures) else ""

    # -- effects ------------------------------------------------------------------------------

    def _send(self, effect: ef.Send) -> None:
        receiver = self.open_now.get(effect.session) or self._remote_peer(effect.session)
        if receiver is not None:
            receiver.send(effect.buffers, effect.charged)
        else:
            self.budget.release(effect.charged)

    def _answer(self, effect: ef.Answers) -> None:
        open_now, remote_peer = self.open_now, self._remote_peer
        for session, reply in effect.replies.items():
            if (one := open_now.get(session)) is not None:
                one.send((reply,), 0)
            elif (other := remote_peer(session)) is not None:
                other.answer(reply)

    def _hang_up(self, effect: ef.Hangup) -> None:
        one = self.open_now.get(effect.session)
        if one is not None and effect.failed:
            self.accept_queue.failures.failed(origin_of(one.address), self.time())
        receiver = one or self._remote_peer(effect.session)
        if receiver is not None:
            receiver.hang_up(effect.reason)

    def _sign(self, effect: ef.SignFrames) -> None:
        if (one := self.open_now.get(effect.session)) is not None:
            one.sign(effect.keys)

    def _throttle(self, effect: ef.HoldSession) -> None:
        if (one := self.open_now.get(effect.session)) is not None:
            one.throttle(effect.hold)

    def _assign(self, effect: ef.AssignNamespace) -> None:
        if effect.session in self.open_now:
            self.backlog.assign(effect.session, effect.namespace)

    def _hold(self, effect: ef.HoldReads) -> None:
        self.queue.held = effect.hold
        self.log.warning("byte budget: reading is %s", "held" if effect.hold else "resumed")
        for one in list(self.open_now.values()):
            one.update()
