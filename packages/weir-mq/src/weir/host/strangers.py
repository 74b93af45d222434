"""Peers that have not identified themselves: limits of their bytes and time, each and together.

Until then a connection holds nothing of a user's, and closing it does no harm. A handshake
of TLS has a time limit of its own, which begins when its first step is done, not while it waits for
its turn behind thousands of others. It costs as much as hundreds of messages: when all devices of a
city come back at once, those that are in go first, so a turn of the loop does a few handshakes, and
the others wait in line.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from weir.access.failures import origin_of
from weir.broker.api import events as ev
from weir.codec import Buffer
from weir.errors import Overloaded, Refused, Unauthorized
from weir.host.ports import Log
from weir.host.shard_loop import EventQueue
from weir.model.ids import is_loopback
from weir.model.limits import RETRY_AFTER_MS, STRANGER_BYTES_MAX, STRANGER_SECONDS
from weir.protocol.client.access import Login
from weir.protocol.client.codec import decode_request, encode_reply
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.messages import Hello, Refusal
from weir.protocol.device import DeviceHello, DeviceRequest, encode_welcome
from weir.protocol.frame import ClientFrame
from weir.protocol.link import LINK_VERSION

#: All strangers together hold at most this part of a shard's budget.
BUDGET_PART = 8
#: What handshakes take of one turn, in seconds; the last one may end later.
TURN_SECONDS = 0.002

H = TypeVar("H")


class Peer(Protocol):
    """A peer that connected."""

    session: int

    @property
    def address(self) -> str:
        """The address of the peer; empty if it has none."""

    def cut(self) -> None:
        """Close at once."""


class Connected(Peer, Protocol):
    """A connection of a shard, before its hello."""

    @property
    def is_open(self) -> bool:
        """Whether it was let in, and is not being closed."""

    @property
    def is_known(self) -> bool:
        """Whether it is among the open connections of its shard."""

    def send(self, buffers: tuple[Buffer, ...], charged: int) -> None:
        """Write buffers in order; `charged` bytes of the budget come back once they are out."""

    def hang_up(self, reason: str) -> None:
        """Close once everything sent is out."""


Frames = Sequence[ClientFrame | DeviceRequest]

_HELLO, _LOGIN = opcode_of(Hello), opcode_of(Login)
_LINK = bytes([LINK_VERSION])

D = TypeVar("D", bound=Connected)
C = TypeVar("C", bound=Peer)


class Strangers(Generic[C]):
    """Peers that have said no hello yet, and what came from them."""

    __slots__ = (
        "_came", "_log", "_since", "encrypted", "limit", "refusals", "slowed", "unopened", "used",
    )  # fmt: skip

    def __init__(self, limit: int, log: Log) -> None:
        """Let all of them hold at most `limit` bytes."""
        self.limit = limit
        self._log = log
        #: By which code some are to be refused once they say hello, and why.
        self.refusals: dict[C, tuple[int, str]] = {}
        #: Those of which the shard is to hear when their handshake is done.
        self.unopened: set[C] = set()
        #: Those from addresses that are slowed down, until their first frame says whether they
        #: wait. The shard has not heard of them.
        self.slowed: set[C] = set()
        #: Those that came by TLS.
        self.encrypted: set[C] = set()
        self.used = 0
        #: How much came from each, who was silent longest first.
        self._came: OrderedDict[C, int] = OrderedDict()
        #: Since when, in seconds, each is in a handshake; who began first comes first.
        self._since: dict[C, float] = {}

    def __len__(self) -> int:
        return len(self._came)

    def brought(self, one: C, size: int) -> bool:
        """So many bytes came from one; return whether it may bring more.

        If all hold too much, those are cut that were silent longest.
        """
        if not size:
            return True
        came = self._came.get(one, 0) + size
        self._came[one] = came
        self._came.move_to_end(one)
        self.used += size
        while self.used > self.limit and len(self._came) > 1:
            other = next(iter(self._came))
            self.left(other)
            self._log.warning("session %d closed: strangers hold too much", other.session)
            other.cut()
        return came <= STRANGER_BYTES_MAX

    def shakes(self, one: C, now: float) -> None:
        """Count the time of a handshake from `now` on, in seconds, unless it is counted already."""
        self._since.setdefault(one, now)

    def waits(self, one: C) -> None:
        """Its handshake waits for its turn: that is no fault of its own."""
        self._since.pop(one, None)

    def shaken(self, one: C) -> None:
        """Its handshake is done: what it brought for that is gone, and it has yet to say hello."""
        self._since.pop(one, None)
        self.used -= self._came.pop(one, 0)

    def left(self, one: C) -> None:
        """It has said hello, or is gone."""
        self.shaken(one)
        self.refusals.pop(one, None)
        self.unopened.discard(one)
        self.slowed.discard(one)
        self.encrypted.discard(one)

    def may_log_in(self, one: C, frame: object) -> bool:
        """Return whether a peer begins to log in, and nobody on the way to it can read along."""
        if not isinstance(frame, ClientFrame) or frame.opcode != _LOGIN:
            return False
        return one in self.encrypted or is_loopback(one.address)

    def shows_ticket(self, one: C, frame: object) -> bool:
        """Return whether a peer begins to log in with a ticket, be it good or not."""
        if not isinstance(frame, ClientFrame) or not self.may_log_in(one, frame):
            return False
        try:
            request = decode_request(frame)
        except Refused:
            return False
        return isinstance(request, Login) and bool(request.ticket)

    def cut_late(self, now: float) -> None:
        """Cut those whose handshakes, or first frames if they are `slowed`, take too long by
        `now`.
        """
        late = []
        for one, since in self._since.items():
            if now - since <= STRANGER_SECONDS:
                break
            late.append(one)
        for one in late:
            what = "first frame" if one in self.slowed else "TLS handshake"
            self.left(one)
            self._log.info("session %d closed: its %s took too long", one.session, what)
            one.cut()


class Handshakes(Generic[D]):
    """All connections of a shard that have not said hello, and the certificates that were shown.

    It is one object for all of them: a connection that is served pays nothing for what it did
    before its hello.
    """

    __slots__ = ("_certified", "_queue", "_strangers", "_time")

    def __init__(
        self, queue: EventQueue, strangers: Strangers[D], time: Callable[[], float]
    ) -> None:
        """Tell `queue` of new peers; `strangers` limits their bytes. `time` is in seconds."""
        self._queue = queue
        self._strangers = strangers
        self._time = time
        #: The users and the devices whose certificates were shown, until their connections end.
        self._certified: dict[D, ev.Certified] = {}

    # -- TLS calls, while it shakes hands -----------------------------------------------------

    def begin(self, one: D) -> None:
        """Hide a connection from the shard until its handshake is done: it may have to wait for
        its turn.
        """
        strangers = self._strangers
        if one in strangers.slowed:
            strangers.waits(one)
        elif one.is_open:
            self._queue.retract(one.session)
            strangers.unopened.add(one)

    def await_turn(self, one: D) -> None:
        """Do not count the time of a handshake while others are before it."""
        self._strangers.waits(one)

    def stepped(self, one: D, size: int, now: float) -> bool:
        """A handshake went on with so many bytes at `now`, in seconds; return whether it may go
        on.
        """
        self._strangers.shakes(one, now)
        return self._strangers.brought(one, size)

    def done(
        self, one: D, refusal: str, user: str = "", device: tuple[int, int] | None = None,
        code: int = Unauthorized.code,
    ) -> None:  # fmt: skip
        """The handshake is done, by a `user` or a `device`; a `refusal` is told, see `refuse`."""
        strangers = self._strangers
        if user or device is not None:
            self._certified[one] = ev.Certified(one.session, user, device)
        strangers.shaken(one)
        strangers.encrypted.add(one)
        if one in strangers.unopened:
            strangers.unopened.discard(one)
            self._queue.put(ev.Opened(one.session, address=one.address))
        elif one in strangers.slowed:
            strangers.shakes(one, self._time())
        self.refuse(one, refusal, code)

    def refuse(self, one: D, reason: str, code: int = Unauthorized.code) -> None:
        """Answer the first frame with why, or a device with the `code`, and close; empty: serve."""
        if reason and one.is_known:
            self._strangers.refusals[one] = code, reason

    # -- connections call ---------------------------------------------------------------------

    def enter(self, one: D, is_slow: bool) -> None:
        """A connection is let in: tell the shard, but of one from an address that is slowed down
        only once its first frame has come.
        """
        if is_slow:
            self._strangers.slowed.add(one)
            self._strangers.shakes(one, self._time())
        else:
            self._queue.put(ev.Opened(one.session, address=one.address))

    def is_slowed(self, one: D) -> bool:
        """Return whether the first frame of a connection is to say whether it waits."""
        return one in self._strangers.slowed

    def must_wait(self, one: D, frame: ClientFrame | DeviceRequest) -> bool:
        """The first frame of a slowed connection is there: return whether it waits. If not, the
        shard is told of it: it has a certificate, or shows a ticket.
        """
        strangers = self._strangers
        strangers.slowed.discard(one)
        strangers.waits(one)
        is_known = one in self._certified or one in strangers.refusals
        if not is_known and not strangers.shows_ticket(one, frame):
            return True
        self._queue.put(ev.Opened(one.session, address=one.address))
        return False

    def turn_away(self, one: D, frame: ClientFrame | DeviceRequest) -> None:
        """Close a connection, and tell it that too many wait at its address already."""
        reason = "too many logins from this address failed: try again later"
        if isinstance(frame, ClientFrame):
            refusal = Refusal(Overloaded.code, reason, RETRY_AFTER_MS)
            one.send(encode_reply(refusal, frame.opcode, frame.correlation), 0)
        one.hang_up(reason)

    def brought(self, one: D, size: int) -> bool:
        """Count bytes that a waiting stranger sent. False if they are too many: it was closed."""
        if self._strangers.brought(one, size):
            return True
        self._exceeds(one, f"over {STRANGER_BYTES_MAX:,} bytes before hello")
        return False

    def takes_hello(self, one: D, frames: Frames, came: int) -> bool | None:
        """A stranger brought so many bytes, and these frames: return whether it has said hello.
        None if it is refused, or brought too much: then nothing of it is served.
        """
        strangers = self._strangers
        if frames:
            if one in strangers.refusals:
                _refuse(one, frames[0], *strangers.refusals[one])
                return None
            self.introduce(one, frames[0])
            if _is_hello(frames[0]):
                strangers.left(one)
                return True
        if not strangers.brought(one, came):
            self._exceeds(one, f"over {STRANGER_BYTES_MAX:,} bytes before hello")
            return None
        return False

    def may_claim(self, one: D, size: int) -> bool:
        """Return whether a stranger may send a frame of so many bytes; if not, it is let go."""
        if size <= STRANGER_BYTES_MAX:
            return True
        self._exceeds(one, f"a frame of {size:,} bytes before hello")
        return False

    def introduce(self, one: D, frame: ClientFrame | DeviceRequest) -> None:
        """Tell the shard, first of all, whose certificate was shown, and if a login is private."""
        if (certified := self._certified.get(one)) is not None:
            self._queue.put(certified)
        if self._strangers.may_log_in(one, frame):
            self._queue.put(ev.Secured(one.session, origin_of(one.address)))

    def forget(self, one: D) -> None:
        """A connection is gone, or no client's."""
        self._strangers.left(one)
        self._certified.pop(one, None)

    # -- inside -------------------------------------------------------------------------------

    def _exceeds(self, one: D, reason: str) -> None:
        self._queue.put(ev.LetGo(one.session, reason))


class HandshakeTurns(Generic[H]):
    """Handshakes that continue in this turn, and those that wait, in order."""

    __slots__ = ("_spent", "_waiting")

    def __init__(self) -> None:
        """Begin a first turn."""
        self._spent = 0.0
        self._waiting: deque[H] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def may_step(self, one: H) -> bool:
        """Return whether one may go on now; if not, it waits for `next`."""
        if self._waiting or self._spent >= TURN_SECONDS:
            self._waiting.append(one)
            return False
        return True

    def stepped(self, seconds: float) -> None:
        """Charge the turn for a step."""
        self._spent += seconds

    def begin(self) -> None:
        """Begin another turn."""
        self._spent = 0.0

    def next(self) -> H | None:
        """Return who goes on now, and is to be charged for it; None if this turn is over."""
        if not self._waiting or self._spent >= TURN_SECONDS:
            return None
        return self._waiting.popleft()


def is_link(data: bytes) -> bool:
    """Return whether a connection that begins with `data` is another node's."""
    return data[:1] == _LINK


def _is_hello(frame: ClientFrame | DeviceRequest) -> bool:
    """Return whether a frame is a client's or a device's hello."""
    if isinstance(frame, ClientFrame):
        return frame.opcode == _HELLO
    return isinstance(frame, DeviceHello)


def _refuse(one: Connected, frame: ClientFrame | DeviceRequest, code: int, reason: str) -> None:
    if isinstance(frame, ClientFrame):
        refusal = Refusal(Unauthorized.code, reason, 0)
        one.send(encode_reply(refusal, frame.opcode, frame.correlation), 0)
    elif isinstance(frame, DeviceHello):
        one.send((encode_welcome(frame.sn, code, 0),), 0)
    one.hang_up(reason)
