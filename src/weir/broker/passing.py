"""What this shard passes on to the other shards of its node: it lets in, only the owner confirms.

A peer that asks for a group of another shard gets a virtual session there (`weir.wire.trunk`). Its
requests go on whole, and the replies come back as they are to be sent. The requests that are under
way are known here, so that each is answered even if the other shard is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weir.broker.admission import ANONYMOUS, Budget
from weir.broker.effects import Hangup, Pass, Send
from weir.broker.lanes import SMALL, Lanes
from weir.broker.layout import Layout
from weir.broker.outbox import TO_DEVICE, Caller, Outbox
from weir.broker.sessions import SHARD, Session
from weir.codec.fields import Buffer, total
from weir.errors import Overloaded, Refused, Unavailable
from weir.model.limits import RETRY_AFTER_MS
from weir.wire import messages as m
from weir.wire import trunk
from weir.wire.client import decode_reply, encode_request
from weir.wire.device import DevicePublishes, DeviceRequest, count_confirms
from weir.wire.frame import CLIENT_VERSION, ClientFrame, take_client_frame
from weir.wire.messages import Opcode
from weir.wire.trunk import OWN_SESSION, Kind, TrunkFrame

#: What may be asked again if there is no room for the answer: nothing changes by it.
_READS = frozenset({Opcode.FETCH, Opcode.FETCH_CHUNKS})


class _Trunk:
    """An open trunk: which sessions the other shard knows, and what it was passed of each."""

    __slots__ = ("known", "pending")

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.pending: dict[int, dict[Caller, None]] = {}

    def asks(self, caller: Caller) -> None:
        self.pending.setdefault(caller.session, {})[caller] = None

    def answered(self, caller: Caller) -> bool:
        callers = self.pending.get(caller.session, {})
        if caller not in callers:
            return False
        del callers[caller]
        if not callers:
            del self.pending[caller.session]
        return True


class Passing:
    """The asking ends of this shard's trunks."""

    __slots__ = ("_budget", "_layout", "_outbox", "_own", "_sessions", "_trunks", "lanes",
                 "shard")  # fmt: skip

    def __init__(
        self, layout: Layout, shard: int, sessions: dict[int, Session], outbox: Outbox,
        budget: Budget,
    ) -> None:  # fmt: skip
        """Be `shard` of `layout`; `sessions` are this shard's, by number. No trunk is open yet."""
        self.shard = shard
        self._layout = layout
        self._outbox = outbox
        self._budget = budget
        self._sessions = sessions
        #: What is on its way.
        self.lanes = Lanes(budget, layout.shards - 1)
        #: By shard, those that are open.
        self._trunks: dict[int, _Trunk] = {}
        self._own: Callable[[ClientFrame], None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether a request that was passed on has no answer yet."""
        return any(one.pending for one in self._trunks.values())

    def shard_of(self, group: int) -> int:
        """Return the shard that serves a group."""
        return self._layout.shard_of(group)

    @property
    def registry_shard(self) -> int:
        """The shard that leads the registry."""
        return self._layout.registry_shard

    def opened(self, shard: int) -> None:
        """The trunk to a shard is open."""
        self._trunks[shard] = _Trunk()

    def closed(self, shard: int) -> None:
        """The trunk to a shard broke: refuse what it had, and let its devices connect again."""
        broken = self._trunks.pop(shard, _Trunk())
        for callers in broken.pending.values():
            for caller in callers:
                self._outbox.refuse(caller, _gone(shard))
        for session in self._sessions.values():
            if session.seat is not None and self.shard_of(session.seat.group) == shard:
                self._outbox.put(Hangup(session.id, str(_gone(shard))))

    def left(self, session: Session) -> None:
        """A peer of this shard is gone."""
        for shard, one in self._trunks.items():
            if session.id in one.known:
                one.known.remove(session.id)
                one.pending.pop(session.id, None)
                self._put(shard, trunk.encode(Kind.CLOSED, session.id))

    # -- asking ------------------------------------------------------------------------------

    def request(self, session: Session, caller: Caller, frame: ClientFrame, shard: int) -> None:
        """Pass a client's request on. Raises `Unavailable`, or `Overloaded`."""
        to = self._introduce(session.id, session.principal, shard)
        charged = len(frame.body)
        self.lanes.take(shard, charged)
        to.asks(caller)
        self._put(shard, trunk.encode_client(session.id, frame), charged)

    def device(self, session: Session, request: DeviceRequest) -> None:
        """Pass a device's hello or publishes on to where its seat is.

        Raises `Unavailable`, or `Overloaded`.
        """
        seat = session.seat
        assert seat is not None
        shard = self.shard_of(seat.group)
        self._introduce(session.id, session.principal, shard)
        buffers = trunk.encode_device(session.id, request)
        charged = total(buffers)
        self.lanes.take(shard, charged)
        if isinstance(request, DevicePublishes):
            seat.in_flight += len(request.sns)
        self._put(shard, buffers, charged)

    def ask(self, caller: Caller, request: m.Request, shard: int) -> None:
        """Ask another shard for one of this shard's devices; `Outbox.kept` gets the reply.

        Raises `Unavailable`.
        """
        session = self._sessions[caller.session]
        self._introduce(session.id, session.principal, shard).asks(caller)
        header, *rest = encode_request(request, caller.correlation)
        self._put(shard, trunk.encode(Kind.CLIENT, session.id, header, *rest))

    def ask_as_shard(self, shard: int, frame: ClientFrame) -> None:
        """Ask another shard for this shard itself; whoever `listen`s gets the reply."""
        self._introduce(OWN_SESSION, f"{SHARD}{self.shard}", shard)
        self._put(shard, trunk.encode_client(OWN_SESSION, frame))

    def listen(self, own: Callable[[ClientFrame], None]) -> None:
        """Hand replies to this shard itself to `own`."""
        self._own = own

    # -- answers -----------------------------------------------------------------------------

    def received(self, shard: int, frames: Sequence[TrunkFrame]) -> None:
        """Hand on what came back."""
        for kind, number, body in frames:
            if kind == Kind.HANGUP:
                self._outbox.put(Hangup(number, bytes(body).decode()))
            elif number == OWN_SESSION:
                self._to_own(body)
            elif (session := self._sessions.get(number)) is not None:
                self._to_peer(shard, session, body)

    def _to_own(self, body: memoryview) -> None:
        assert self._own is not None
        self._own(take_client_frame(body))

    def _to_peer(self, shard: int, session: Session, body: memoryview) -> None:
        to = self._trunks[shard]
        if body[0] == CLIENT_VERSION:
            frame = take_client_frame(body)
            device = Caller(session.id, TO_DEVICE, frame.correlation)
            if to.answered(device):
                self._outbox.reply(device, decode_reply(frame))
                return
            caller = Caller(session.id, frame.opcode, frame.correlation)
            to.answered(caller)
            if not self._budget.has_room(len(body)) and not self._takes(caller, len(body)):
                return
            self._outbox.answered(session.id)
        elif session.seat is not None:
            session.seat.in_flight -= count_confirms(body)
        charged = len(body)
        self._budget.take(charged)
        self._outbox.put(Send(session.id, (body,), charged))

    def _takes(self, caller: Caller, size: int) -> bool:
        """Return whether a reply is handed on though there is no room for it; if not, that is said
        to the peer. What it does not read must not pile up here.
        """
        if size <= SMALL or caller.opcode not in (*_READS, Opcode.PULL):
            return True
        error = f"no room for {size:,} bytes from another shard of this node: try again shortly"
        if caller.opcode == Opcode.PULL:  # what it was granted goes back as it goes
            self._outbox.answered(caller.session)
            self._outbox.put(Hangup(caller.session, error))
        else:
            self._outbox.refuse(caller, Overloaded(error, RETRY_AFTER_MS))
        return False

    def _introduce(self, session: int, principal: str, shard: int) -> _Trunk:
        one = self._trunks.get(shard)
        if one is None:
            raise _gone(shard)
        if session not in one.known:
            one.known.add(session)
            name = (principal or ANONYMOUS).encode()
            self._put(shard, trunk.encode(Kind.OPENED, session, name))
        return one

    def _put(self, shard: int, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        self._outbox.put(Pass(shard, buffers, charged))


def _gone(shard: int) -> Refused:
    return Unavailable(f"shard {shard} of this node is starting again: try again shortly")
