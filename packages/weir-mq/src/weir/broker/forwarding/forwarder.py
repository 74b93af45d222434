"""Finds the shard and node that answer for a group, and forwards requests there: this shard
authorizes, and only the leader of a group confirms.

A peer that asks for a group of another shard, of this node or of the leader's, gets a virtual
session there (`weir.protocol.trunk`). Its requests go on whole, and the replies come back as they
are to be sent. The requests that are under way are known here, so that each is answered even if the
other shard is gone. Shards go by their places: see `weir.model.ids.place_of`.

Shards that are short of memory stop serving each other. Were all that one holds meant for another
that holds as well, neither would ever go on: so what is forwarded gets less of the budget than what
must be in use for reading to go on again. The rest always comes back by this shard alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weir.broker.api.effects import EndTrunk, Hangup, Pass, Send
from weir.broker.api.events import LinkClosed, LinkOpened
from weir.broker.api.settings import Layout
from weir.broker.metadata.catalog import Catalog
from weir.broker.replica.requests import out_of_reach
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import TO_DEVICE, Caller, Outbox
from weir.broker.runtime.session import ANONYMOUS, Session
from weir.codec import Buffer, total
from weir.errors import NotLeader, Overloaded, Refused, RemoteProtocolError, Unavailable
from weir.model.ids import (
    ADDRESS,
    REGISTRY_GROUP,
    Address,
    node_of,
    place_node,
    place_of,
    place_shard,
)
from weir.model.limits import FORMAT_LEVEL, FORMAT_LEVEL_ACCESS, KIB, RETRY_AFTER_MS
from weir.protocol import trunk
from weir.protocol.client import messages as m
from weir.protocol.client.codec import decode_reply, encode_request
from weir.protocol.client.declaration import opcode_of
from weir.protocol.device import DevicePublishes, DeviceRequest
from weir.protocol.frame import CLIENT_VERSION, ClientFrame, Flags
from weir.protocol.trunk import (
    OWN_SESSION,
    Arrival,
    Introduction,
    Kind,
    TrunkFrame,
    count_confirms,
    one_client_frame,
)

#: A request up to this size goes on where a larger one does not: acks give memory back.
SMALL = 4 * KIB
#: The correlation of a request of this shard itself whose reply nobody waits for.
NO_REPLY = 1 << 62
#: No opcode: replies that nobody else listens for.
_ANY = -1
#: Devices that come at once go on by themselves where they are larger than this together.
_DEVICE_BATCH_BYTES_MAX = 256 * KIB
_FOLLOW, _PULL = opcode_of(m.Follow), opcode_of(m.Pull)
#: What may be asked again if there is no room for the answer: nothing changes by it.
_READS = frozenset({opcode_of(m.Fetch), opcode_of(m.FetchChunks)})
_WITH_MESSAGES = _READS | {_PULL}


class Leaders(Protocol):
    """The groups that lie on a shard."""

    def leader_of(self, group: int, /) -> int:
        """Return the voter that leads a group as far as this shard knows; 0 if it does not."""


class Routes:
    """Places to send to: those of leaders as the groups of this shard know them, else guesses.

    A group lies in the same log on all nodes. Its replica here knows its leader; where there is
    none, or where another shard of this node has it, its preferred leader is the best guess, or
    the first of its voters that is linked to.
    """

    __slots__ = ("_catalog", "_founded", "_groups", "_layout", "_levels", "_node", "_shards",
                 "_up", "shard")  # fmt: skip

    def __init__(
        self,
        layout: Layout,
        node: int,
        shard: int,
        catalog: Catalog,
        groups: Leaders,
        founded: int = 1,
    ) -> None:
        """Be `shard` of `node`, in a set that so many nodes `founded`; `groups` lie here."""
        self.shard = shard
        self._layout = layout
        self._node = node
        self._catalog = catalog
        self._groups = groups
        self._founded = founded
        #: By node, how many shards it has, as it said itself.
        self._shards: dict[int, int] = {}
        #: By other node, the highest format level that its release supports, as it said itself.
        self._levels: dict[int, int] = {}
        #: The shards of other nodes that can be sent to.
        self._up: dict[int, None] = {}

    @property
    def level(self) -> int:
        """The format level that is written."""
        return self._catalog.level

    def supports(self, place: int, level: int) -> bool:
        """Whether the release of the node of a place supports a format level.

        That is what decides where nothing is stored: the copy of the registry may not have heard
        yet of the level that is written.
        """
        node = place_node(place)
        return (self._levels.get(node, self.level) if node else FORMAT_LEVEL) >= level

    @property
    def several(self) -> bool:
        """Whether the set has other nodes than this one."""
        return self._founded > 1 or len(self._catalog.nodes.all()) > 1

    @property
    def met(self) -> bool:
        """Whether this node knows the nodes of the set that it was founded in."""
        return self._founded <= 1 or bool(self._catalog.nodes.all())

    def nodes(self) -> tuple[tuple[int, str, int], ...]:
        """Return the nodes of the set as (node, host, port); () if there is but this one."""
        nodes = self._catalog.nodes.all()
        return tuple((one.id, one.host, one.port) for one in nodes) if len(nodes) > 1 else ()

    def link(self, event: LinkOpened | LinkClosed) -> None:
        """A node that can be sent to says how many shards it has."""
        if isinstance(event, LinkOpened):
            self._shards[place_node(event.place)] = event.shards
            self._levels[place_node(event.place)] = event.level
            self._up[event.place] = None
        else:
            self._up.pop(event.place, None)

    def toward(self, group: int, foreign: bool = False) -> int:
        """Return the place to ask about a group: this shard's number if it is to answer itself.

        What came from a node (`foreign`) goes to no other one, so that nothing goes round in
        circles while nodes disagree: raises `NotLeader`.
        """
        voter = self._groups.leader_of(group)
        if node_of(voter) == self._node:
            return self.shard
        owner = self._layout.shard_of(group)
        if owner != self.shard:
            return owner
        node = self._likely(group, voter)
        if node in (0, self._node):
            return self.shard
        if foreign:
            raise NotLeader(f"node {node} leads group {group}: ask it", node)
        return self.place(node, group)

    def holder(self, group: int) -> int:
        """Return the shard of this node that has a group's log."""
        return self._layout.shard_of(group)

    def leader(self, group: int) -> int:
        """Return the node that leads a group, or may lead it if it has no replica here; 0: nobody
        is known to.
        """
        return self._likely(group, self._groups.leader_of(group))

    def replicas(self, group: int) -> list[int]:
        """Return the shards of other nodes that have a replica of a group, and may lead it."""
        nodes = map(node_of, self._catalog.voters(group))
        return [self.place(node, group) for node in nodes if node != self._node]

    def _likely(self, group: int, voter: int) -> int:
        """Return the node of a group's leader, or a likely one if none is known."""
        if voter:
            return node_of(voter)
        nodes = [node_of(voter) for voter in self._catalog.voters(group)]
        if self._node in nodes or not nodes:
            return 0
        # The preferred leader may be down: then any other voter knows the leader.
        reached = (node for node in nodes if self.place(node, group) in self._up)
        return next(reached, nodes[0])

    def place(self, node: int, group: int) -> int:
        """Return the shard of another node that has a group's log."""
        return place_of(node, self._layout.log_of(group) % self.shards_of(node))

    def from_here(self, place: int) -> int:
        """Return a shard of any node as the trunks of this shard know it."""
        return place_shard(place) if place_node(place) == self._node else place

    @property
    def registry(self) -> int:
        """Where the registry is led: this shard's number if here, or nobody is known to lead."""
        return self.toward(REGISTRY_GROUP)

    def address(self, group: int) -> Address:
        """Return where a group is led, or most likely will be; of a lone node, without its id."""
        at = self._layout.place(group)
        if not self.several:
            return at
        voters = self._catalog.voters(group)
        likely = node_of(voters[0]) if voters else self._node
        node = self.leader(group) or likely
        if node == self._node:
            return at._replace(node=node)
        return Address(at.log % self.shards_of(node), at.log, group, node)

    def shards_of(self, node: int) -> int:
        """Return how many shards a node runs, as far as is known."""
        known = self._catalog.nodes.get(node)
        return max(self._shards.get(node) or (known.shards if known else 1), 1)


def called(place: int) -> str:
    """Return what a user calls a shard, by its place."""
    node = place_node(place)
    return f"shard {place_shard(place)} of {f'node {node}' if node else 'this node'}"


class Lanes:
    """The bytes on their way to each other shard; all are charged to the budget as well."""

    __slots__ = ("_all", "_budget", "_most", "_small_most", "_unsent", "ways")

    def __init__(self, budget: Budget) -> None:
        """Share a part of `budget` out among the ways that are open."""
        #: How many there are.
        self.ways = 0
        self._budget = budget
        self._unsent: dict[int, int] = {}
        self._all = 0
        self._most = budget.limit // 4
        #: Below the half of the budget at which reading is resumed, see `Budget`.
        self._small_most = budget.limit // 8 * 3

    def take(self, shard: int, size: int) -> None:
        """Charge `size` bytes that are to go to `shard`, or raise `Overloaded`.

        One that is larger than a whole share goes alone.
        """
        unsent, share = self._unsent.get(shard, 0), self._most // max(self.ways, 1)
        if size <= SMALL:
            fits = self._all + size <= self._small_most
        else:
            fits = self._all <= self._most and (not unsent or unsent + size <= share)
        if not fits:
            raise Overloaded(
                f"{unsent:,} bytes wait for {called(shard)} to take them: try again shortly",
                RETRY_AFTER_MS,
            )
        if size <= SMALL:
            self._budget.take(size)
        else:
            self._budget.charge(size)
        self._unsent[shard] = unsent + size
        self._all += size

    def sent(self, shard: int, size: int) -> None:
        """Give back what has left this process, or was dropped."""
        if size:
            self._budget.release(size)
            self._unsent[shard] -= size
            self._all -= size


class _Trunk:
    """An open trunk: which sessions the other shard knows, and what it was passed of each."""

    __slots__ = ("known", "pending")

    def __init__(self) -> None:
        self.known: set[int] = set()
        #: By session what it asked, with the opcode that the reply has.
        self.pending: dict[int, dict[Caller, int]] = {}

    def asks(self, caller: Caller, opcode: int) -> None:
        self.pending.setdefault(caller.session, {})[caller] = opcode

    def opcode_of(self, caller: Caller) -> int | None:
        """Return the opcode of what was asked; None if nothing was."""
        return self.pending.get(caller.session, {}).get(caller)

    def answered(self, caller: Caller) -> None:
        callers = self.pending.get(caller.session, {})
        if callers.pop(caller, None) is not None and not callers:
            del self.pending[caller.session]


class Listener(Protocol):
    """Sends requests of this shard itself to other shards."""

    def answered(self, frame: ClientFrame, /) -> None:
        """Another shard replies."""


class Forwarder:
    """The asking ends of this shard's trunks."""

    __slots__ = ("_budget", "_outbox", "_own", "_sessions", "_trunks", "lanes", "principal",
                 "routes", "shard")  # fmt: skip

    def __init__(
        self, routes: Routes, principal: str, sessions: dict[int, Session], outbox: Outbox,
        budget: Budget,
    ) -> None:  # fmt: skip
        """Ask where `routes` lead, as `principal` for this shard itself; `sessions` are its peers',
        by number. No trunk is open yet.
        """
        self.routes = routes
        self.shard = routes.shard
        self.principal = principal
        self._outbox = outbox
        self._budget = budget
        self._sessions = sessions
        #: What is on its way.
        self.lanes = Lanes(budget)
        #: By place, those that are open.
        self._trunks: dict[int, _Trunk] = {}
        #: By opcode, the listeners for replies to requests of this shard itself.
        self._own: dict[int, Listener] = {}

    @property
    def waiting(self) -> bool:
        """Whether a request that was passed on has no answer yet."""
        return any(one.pending for one in self._trunks.values())

    def reaches(self, shard: int) -> bool:
        """Return whether the trunk to a shard is open."""
        return shard in self._trunks

    def opened(self, shard: int) -> None:
        """The trunk to a shard is open."""
        self._trunks[shard] = _Trunk()
        self.lanes.ways = len(self._trunks)

    def closed(self, shard: int) -> None:
        """The trunk to a shard broke: refuse what it had, and let its devices connect again."""
        broken = self._trunks.pop(shard, _Trunk())
        self.lanes.ways = len(self._trunks)
        for callers in broken.pending.values():
            for caller in callers:
                self._outbox.refuse(caller, _lost(shard))
        for session in self._sessions.values():
            if session.device is not None and session.device_place == shard:
                self._outbox.put(Hangup(session.id, str(_lost(shard))))

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
        to = self._introduce(session, shard)
        charged = len(frame.body)
        self.lanes.take(shard, charged)
        to.asks(caller, caller.opcode)
        self._put(shard, trunk.encode_client(session.id, frame), charged)

    def device(self, session: Session, request: DeviceRequest) -> None:
        """Pass a device's hello or publishes on to where it is seated.

        Raises `Unavailable`, or `Overloaded`.
        """
        device, shard = session.device, session.device_place
        assert device is not None
        self._introduce(session, shard)
        buffers = trunk.encode_device(session.id, request)
        charged = total(buffers)
        self.lanes.take(shard, charged)
        if isinstance(request, DevicePublishes):
            device.in_flight += len(request.sns)
        else:
            device.awaits_welcome = True
        self._put(shard, buffers, charged)

    def device_batch(self, arrivals: Sequence[Arrival], principal: str, shard: int) -> bool:
        """Pass devices that came at once on to another shard of this node, as one; False, and
        nothing is done, if that cannot be. Raises `Overloaded`.
        """
        one = self._trunks.get(shard)
        if one is None or place_node(shard):
            return False
        buffers = trunk.encode_arrivals(principal, arrivals)
        charged = total(buffers)
        if charged > _DEVICE_BATCH_BYTES_MAX:
            return False
        self.lanes.take(shard, charged)
        one.known.update([arrival.session for arrival in arrivals])
        self._put(shard, buffers, charged)
        return True

    def ask(self, caller: Caller, request: m.Request, shard: int) -> None:
        """Ask another shard for one of this shard's devices; `Outbox.kept` gets the reply.

        Raises `Unavailable`.
        """
        session = self._sessions[caller.session]
        opcode = request.declaration.opcode
        self._introduce(session, shard).asks(caller, opcode)
        header, *rest = encode_request(request, caller.correlation)
        self._put(shard, trunk.encode(Kind.CLIENT, session.id, header, *rest))

    def ask_own(self, shard: int, request: m.Request, correlation: int = 0) -> None:
        """Ask another shard for this shard itself; its listener (`listen`) gets the reply.

        Raises `Unavailable` or `NotLeader`, as all that asks, if it cannot be reached.
        """
        self._open(OWN_SESSION, self.principal, shard)
        frame = encode_request(request, correlation)
        self._put(shard, trunk.encode(Kind.CLIENT, OWN_SESSION, *frame))

    def listen(self, listener: Listener, *kinds: type[m.Request]) -> None:
        """Hand replies to this shard itself to `listener`: those to requests of these kinds, or all
        that nobody else listens for.
        """
        for opcode in map(opcode_of, kinds) if kinds else (_ANY,):
            self._own[opcode] = listener

    # -- answers -----------------------------------------------------------------------------

    def received(self, shard: int, frames: Sequence[TrunkFrame]) -> None:
        """Hand on what came back. What makes no sense ends the trunk, and nothing of it counts."""
        for kind, number, body in frames:
            try:
                if kind == Kind.ANSWERS:
                    self._to_devices(body)
                elif kind == Kind.HANGUP:
                    self._outbox.put(Hangup(number, bytes(body).decode()))
                elif number == OWN_SESSION:
                    self._to_own(shard, body)
                elif (session := self._sessions.get(number)) is not None:
                    self._to_peer(shard, session, body)
            except RemoteProtocolError as error:
                self._outbox.counts.bad_frames += 1
                self._outbox.put(EndTrunk(shard, str(error)))
                return

    def _to_devices(self, answers: Sequence[tuple[int, bytes]]) -> None:
        found: dict[int, bytes] = {}
        for number, reply in answers:
            session = self._sessions.get(number)
            if session is None or session.device is None:
                continue
            session.device.in_flight -= count_confirms(reply)
            session.device.awaits_welcome = False
            reply = found.pop(number, b"") + reply
            if len(reply) <= SMALL:
                found[number] = reply
                continue
            self._budget.take(len(reply))
            self._outbox.put(Send(number, (reply,), len(reply)))
        self._outbox.answer(found)

    def _to_own(self, shard: int, body: memoryview) -> None:
        frame = one_client_frame(body)
        if frame.opcode == _FOLLOW and place_node(shard):
            raise RemoteProtocolError("another node sends the registry, which nobody asked it for")
        own = self._own.get(frame.opcode) or self._own[_ANY]
        own.answered(frame)

    def _to_peer(self, shard: int, session: Session, body: memoryview) -> None:
        to = self._trunks[shard]
        if not body:
            raise RemoteProtocolError("a reply without a byte")
        if body[0] == CLIENT_VERSION:
            frame = one_client_frame(body)
            device = Caller(session.id, TO_DEVICE, frame.correlation)
            if (asked := to.opcode_of(device)) is not None:
                if asked != frame.opcode:
                    raise RemoteProtocolError(f"opcode {frame.opcode} answers opcode {asked}")
                reply = decode_reply(frame)
                to.answered(device)
                self._outbox.reply(device, reply)
                return
            caller = Caller(session.id, frame.opcode, frame.correlation)
            to.answered(caller)
            if self._outbox.counts_given and frame.opcode in _WITH_MESSAGES:
                group = _group_of(frame)
                self._outbox.given.append((session.id, group, len(body)))
            if not self._budget.has_room(len(body)) and not self._takes(caller, len(body)):
                return
            self._outbox.answered(session.id)
            self._outbox.settled(caller)
        elif session.device is not None:
            session.device.in_flight -= count_confirms(body)
            session.device.awaits_welcome = False
        # A device's small replies are free, as they are where its own shard gives them.
        charged = len(body) if len(body) > SMALL or body[0] == CLIENT_VERSION else 0
        self._budget.take(charged)
        self._outbox.put(Send(session.id, (body,), charged))

    def _takes(self, caller: Caller, size: int) -> bool:
        """Return whether a reply is handed on though there is no room for it; if not, that is said
        to the peer. What it does not read must not pile up here.
        """
        if size <= SMALL or not (caller.opcode in _READS or caller.opcode == _PULL):
            return True
        error = f"no room for {size:,} bytes from another shard: try again shortly"
        if caller.opcode == _PULL:  # what it was granted goes back as it goes
            self._outbox.answered(caller.session)
            self._outbox.settled(caller)
            self._outbox.put(Hangup(caller.session, error))
        else:
            self._outbox.refuse(caller, Overloaded(error, RETRY_AFTER_MS))
        return False

    def _introduce(self, session: Session, shard: int) -> _Trunk:
        """Return the trunk to a shard, which knows of the session then."""
        introduction = None
        if self.routes.supports(shard, FORMAT_LEVEL_ACCESS):
            introduction = Introduction(session.address, session.admitted_at, session.token)
        return self._open(session.id, session.principal or ANONYMOUS, shard, introduction)

    def _open(
        self, session: int, principal: str, shard: int, introduction: Introduction | None = None
    ) -> _Trunk:
        one = self._trunks.get(shard)
        if one is None:
            raise _gone(shard)
        if session not in one.known:
            one.known.add(session)
            self._put(shard, trunk.encode_opened(session, principal, introduction))
        return one

    def _put(self, shard: int, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        self._outbox.put(Pass(shard, buffers, charged))


def _group_of(reply: ClientFrame) -> int:
    """Return the group that a reply with messages is about; 0 for a refusal."""
    if len(reply.body) < ADDRESS.size or reply.flags != Flags.RESPONSE:
        return 0
    group: int = ADDRESS.unpack_from(reply.body)[3]
    return group


def _gone(shard: int) -> Refused:
    if node := place_node(shard):
        return out_of_reach(node)
    return _lost(shard)


def _lost(shard: int) -> Refused:
    if node := place_node(shard):
        return Unavailable(f"node {node} is not reached any more: try again shortly")
    return Unavailable(f"shard {shard} of this node is starting again: try again shortly")
