"""What this shard passes on to the other shards of its node: it lets in, only the owner confirms.

A peer that asks for a group of another shard gets a virtual session there (`weir.wire.trunk`). Its
requests go on whole, and the replies come back as they are to be sent. The requests that are under
way are known here, so that each is answered even if the other shard is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weir.broker.admission import ANONYMOUS, Budget
from weir.broker.effects import Hangup, Pass, Send
from weir.broker.layout import Layout
from weir.broker.outbox import TO_DEVICE, Caller, Outbox
from weir.broker.sessions import SHARD, Session
from weir.codec.fields import Buffer, total
from weir.errors import Refused, Unavailable
from weir.model.limits import KIB
from weir.wire import messages as m
from weir.wire import trunk
from weir.wire.client import decode_reply, encode_request
from weir.wire.device import DevicePublishes, DeviceRequest, count_confirms
from weir.wire.frame import CLIENT_VERSION, ClientFrame, take_client_frame
from weir.wire.trunk import OWN_SESSION, Kind, TrunkFrame

#: A request up to this size always passes: acks must, whatever the budget says.
_SMALL = 4 * KIB


class Passing:
    """The asking ends of this shard's trunks."""

    __slots__ = ("_budget", "_known", "_layout", "_outbox", "_own", "_pending", "_sessions",
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
        #: By shard whose trunk is open, which sessions it knows, and which requests it was passed.
        self._known: dict[int, set[int]] = {}
        self._pending: dict[int, dict[Caller, None]] = {}
        self._own: Callable[[ClientFrame], None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether a request that was passed on has no answer yet."""
        return any(self._pending.values())

    def shard_of(self, group: int) -> int:
        """Return the shard that serves a group."""
        return self._layout.shard_of(group)

    @property
    def registry_shard(self) -> int:
        """The shard that leads the registry."""
        return self._layout.registry_shard

    def opened(self, shard: int) -> None:
        """The trunk to a shard is open."""
        self._known[shard] = set()
        self._pending[shard] = {}

    def closed(self, shard: int) -> None:
        """The trunk to a shard broke: refuse what it had, and let its devices connect again."""
        self._known.pop(shard, None)
        for caller in self._pending.pop(shard, {}):
            self._outbox.refuse(caller, _gone(shard))
        for session in self._sessions.values():
            if session.seat is not None and self.shard_of(session.seat.group) == shard:
                self._outbox.put(Hangup(session.id, str(_gone(shard))))

    def left(self, session: Session) -> None:
        """A peer of this shard is gone."""
        for shard, known in self._known.items():
            if session.id in known:
                known.remove(session.id)
                self._put(shard, trunk.encode(Kind.CLOSED, session.id))
                gone = [c for c in self._pending[shard] if c.session == session.id]
                for caller in gone:
                    del self._pending[shard][caller]

    # -- asking ------------------------------------------------------------------------------

    def request(self, session: Session, caller: Caller, frame: ClientFrame, shard: int) -> None:
        """Pass a client's request on. Raises `Unavailable`, or `Overloaded`."""
        self._introduce(session.id, session.principal, shard)
        charged = len(frame.body)
        if charged > _SMALL:
            self._budget.charge(charged)
        else:
            self._budget.take(charged)
        self._pending[shard][caller] = None
        self._put(shard, trunk.encode_client(session.id, frame), charged)

    def device(self, session: Session, request: DeviceRequest) -> None:
        """Pass a device's hello or publishes on to where its seat is. Raises `Unavailable`."""
        seat = session.seat
        assert seat is not None
        shard = self.shard_of(seat.group)
        self._introduce(session.id, session.principal, shard)
        buffers = trunk.encode_device(session.id, request)
        if isinstance(request, DevicePublishes):
            seat.in_flight += len(request.sns)
        charged = total(buffers)
        self._budget.take(charged)
        self._put(shard, buffers, charged)

    def ask(self, caller: Caller, request: m.Request, shard: int) -> None:
        """Ask another shard for one of this shard's devices; `Outbox.kept` gets the reply.

        Raises `Unavailable`.
        """
        session = self._sessions[caller.session]
        self._introduce(session.id, session.principal, shard)
        self._pending[shard][caller] = None
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
        if body[0] == CLIENT_VERSION:
            frame = take_client_frame(body)
            device = Caller(session.id, TO_DEVICE, frame.correlation)
            if device in self._pending[shard]:
                del self._pending[shard][device]
                self._outbox.reply(device, decode_reply(frame))
                return
            caller = Caller(session.id, frame.opcode, frame.correlation)
            self._pending[shard].pop(caller, None)
            self._outbox.answered(session.id)
        elif session.seat is not None:
            session.seat.in_flight -= count_confirms(body)
        charged = len(body)
        self._budget.take(charged)
        self._outbox.put(Send(session.id, (body,), charged))

    def _introduce(self, session: int, principal: str, shard: int) -> None:
        known = self._known.get(shard)
        if known is None:
            raise _gone(shard)
        if session not in known:
            known.add(session)
            name = (principal or ANONYMOUS).encode()
            self._put(shard, trunk.encode(Kind.OPENED, session, name))

    def _put(self, shard: int, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        self._outbox.put(Pass(shard, buffers, charged))


def _gone(shard: int) -> Refused:
    return Unavailable(f"shard {shard} of this node is starting again: try again shortly")
