"""TLS on the port of all dialects: a connection that begins with a handshake gets a layer between.

`TlsAcceptor` has the broker's certificate, which may change while it serves, and decides whose
handshake takes its next step in a turn of the loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from weir.errors import Disconnected, NotAuthenticated, Unauthorized
from weir.host.connections import ClientConnection, Connections
from weir.host.greeting import NO_NODE, NO_TLS, Certified
from weir.host.strangers import HandshakeTurns
from weir.protocol.link import LINK_VERSION
from weir.server.network.socket_transport import PlainTransport
from weir.tls.files import ALPN, ServerTls
from weir.tls.identity import Identity, Role
from weir.tls.peers import PeerCertificate
from weir.tls.transport import TlsTransport
from weir.tls.words import in_words

log = logging.getLogger(__name__)

Plaintext = Literal["allow", "loopback", "refuse"]
#: Whether nodes are linked by TLS: never, where both can, always.
LinksTls = Literal["off", "prefer", "require"]
#: Failures of strangers are told so often at most, in seconds; the figures count all.
_TELL_SECONDS = 1.0
#: Nodes are of one release, or the one before: none needs an older version.
_LINK_VERSION = "TLSv1.3"


class TlsPolicy(NamedTuple):
    """Which peers may connect without TLS: clients from some addresses, and nodes; and whether
    those nodes must be named until the core says it (`weir.broker.api.effects.GuardLinks`).
    """

    plaintext: Plaintext = "allow"
    links: LinksTls = "off"
    named_only: bool = False


class TlsCounts:
    """What happened, for the figures."""

    __slots__ = ("failed", "handshakes", "refused", "seconds")

    def __init__(self) -> None:
        """Begin at zero."""
        #: Handshakes that were done, and that failed; peers that were refused for what they are.
        self.handshakes = self.failed = self.refused = 0
        #: Processor time of handshakes.
        self.seconds = 0.0


_LAX = TlsPolicy()


class TlsAcceptor:
    """The TLS connections of a shard: all that came, and the certificate for those to come."""

    def __init__(
        self,
        connections: Connections[asyncio.Transport],
        policy: TlsPolicy = _LAX,
    ) -> None:
        """Serve `connections`; `policy` says which peers may connect without TLS."""
        self.links = policy.links
        self.serving: ServerTls | None = None
        #: Why newer files are not served.
        self.problem = ""
        self.counts = TlsCounts()
        self._connections = connections
        self._handshakes = connections.handshakes
        self._plaintext = policy.plaintext
        self._loop = asyncio.get_running_loop()
        self._turns: HandshakeTurns[TlsTransport] = HandshakeTurns()
        self._is_due = False
        #: Those whose other side has shown a certificate.
        self._certified: dict[TlsTransport, None] = {}
        self._told_at = 0.0

    @property
    def waiting(self) -> int:
        """How many handshakes wait for their turn."""
        return self._turns.waiting

    def serve(self, serving: ServerTls) -> None:
        """Serve new handshakes with this from now on, and end sessions that it revokes."""
        before, self.serving = self.serving, serving
        if before is not None and serving.revoked - before.revoked:
            self.end_sessions()

    def end_sessions(self) -> None:
        """Hang up on those whose certificate has ended, or is revoked."""
        now = time.time()
        for one in list(self._certified):
            peer = one.peer
            assert peer is not None  # else it would not be among these
            if peer.ends <= now:
                _end(one, f"the certificate of {peer.identity} has expired")
            elif self.serving is not None and peer.serial in self.serving.revoked:
                _end(one, f"the certificate of {peer.identity} is revoked")

    def accept(
        self, lower: asyncio.Transport, peer: asyncio.Protocol,
        begins: Callable[[TlsTransport, bytes], bool],
    ) -> TlsTransport | None:  # fmt: skip
        """Put TLS between a transport and its protocol. `begins` takes the first plaintext: see
        `TlsTransport`. None without a certificate.
        """
        serving = self.serving
        if serving is None:
            self._tell(lower, "this node has no certificate: set tls.certificate, key and trust")
            return None
        make = partial(_make, serving.context)
        one = TlsTransport(self, make, peer, lower, begins)
        cast(Any, peer).moved(one)
        self._handshakes.begin(_connection(one))
        return one

    def check_plaintext(self, lower: PlainTransport, data: bytes) -> None:
        """Refuse a peer whose first bytes are no TLS, unless the policy allows it."""
        if self._plaintext == "allow" or data[0] == LINK_VERSION:
            return
        if self._plaintext == "loopback":
            address = lower.get_extra_info("peername")
            if address is None or is_loopback(str(address[0])):
                return
        self.counts.refused += 1
        self._handshakes.refuse(
            cast(Any, lower.protocol).connection,
            "this broker takes TLS only: connect to weirs:// with the CA of its set (ca=...), as "
            "in weirs://broker:6800?ca=ca.pem",
        )

    # -- links call ---------------------------------------------------------------------------

    def node_of(self, transport: asyncio.Transport) -> Certified | None:
        """Return whose certificate the other side of a connection has shown, if it is a node of
        this system: see `AcceptedConnection`.
        """
        version = transport.get_extra_info("tls_version")
        if version is None:
            return NO_TLS if self.links == "require" else None
        peer, serving = transport.get_extra_info("peer"), self.serving
        if peer is None or serving is None or version != _LINK_VERSION:
            return NO_NODE
        return self._node(peer, serving)

    def check_node(self, one: TlsTransport, node: int) -> None:
        """Raise `Disconnected` unless who was dialled has the certificate of that node."""
        peer, serving = one.peer, self.serving
        found = self._node(peer, serving) if peer is not None and serving is not None else NO_NODE
        if found.node != node or one.get_extra_info("alpn") != ALPN:
            whose = "nobody" if peer is None else peer.identity
            raise Disconnected(
                f"its certificate is of {whose}, and node {node} of this set was dialled: give "
                "each node its own (`weir cert issue node`), and correct the address"
            )

    def _node(self, peer: PeerCertificate, serving: ServerTls) -> Certified:
        who, own = peer.identity, serving.own.identity
        if who is None or own is None or peer.serial in serving.revoked:
            return NO_NODE
        return Certified(who.node, who.set) if who.node and who.system == own.system else NO_NODE

    # -- TLS transports call ------------------------------------------------------------------

    def may_step(self, one: TlsTransport) -> bool:
        """Return whether a handshake may go on now; if not, it does in a later turn."""
        if not self._turns.may_step(one):
            self._handshakes.await_turn(_connection(one))
            self._next_turn()
            return False
        return True

    def stepped(self, one: TlsTransport, came: int, seconds: float) -> None:
        """Charge this turn, and the stranger."""
        self._turns.stepped(seconds)
        self.counts.seconds += seconds
        self._next_turn()
        if not self._handshakes.stepped(_connection(one), came, self._connections.time()):
            one.abort()

    def kept(self, change: int) -> None:
        """Charge the shard's budget."""
        if change > 0:
            self._connections.budget.take(change)
        else:
            self._connections.budget.release(-change)

    def shaken(self, one: TlsTransport) -> None:
        """Check the peer's identity: a refusal is sent in the peer's own dialect."""
        self.counts.handshakes += 1
        refusal = self._refusal(one)
        if refusal:
            self.counts.refused += 1
        if one.peer is not None:
            self._certified[one] = None
        who = self._identity(one)
        user = "/".join(who.names) if who is not None and who.role is Role.USER else ""
        device = None
        if who is not None and who.role is Role.DEVICE:
            hub, generation = who.names
            device = int(hub), int(generation)
        # A device is told no more of its certificate than a wrong proof tells.
        code = Unauthorized.code if one.peer is None else NotAuthenticated.code
        self._handshakes.done(_connection(one), refusal, user, device, code)

    def broke(self, one: TlsTransport, why: Exception) -> None:
        """Count it, and tell of it now and then."""
        self._tell(one, why)

    def ended(self, one: TlsTransport) -> None:
        """Forget it."""
        self._certified.pop(one, None)

    def in_words(self, error: ssl.SSLError) -> Exception:
        """Return what went wrong."""
        return ConnectionAbortedError(in_words(error, "the peer"))

    # -- inside -------------------------------------------------------------------------------

    def _identity(self, one: TlsTransport) -> Identity | None:
        """Return whose certificate the other side has shown, if that is of this system: users and
        devices belong to no set.
        """
        peer, serving = one.peer, self.serving
        who = None if peer is None else peer.identity
        own = None if serving is None else serving.own.identity
        if who is None or own is None or who.system != own.system or who.set:
            return None
        return who

    def _refusal(self, one: TlsTransport) -> str:
        if one.get_extra_info("alpn") != ALPN:
            return f"TLS did not agree on the protocol {ALPN!r}: offer it by ALPN"
        peer, serving = one.peer, self.serving
        if peer is None or serving is None:
            return ""
        if peer.serial in serving.revoked:
            return "the certificate of this client is revoked: get another one"
        own = serving.own.identity
        if peer.identity is not None and own is not None and peer.identity.system != own.system:
            return (
                f"the certificate is of {peer.identity}, and this broker belongs to system "
                f"{own.system:x}"
            )
        return ""

    def _tell(self, one: asyncio.Transport, why: object) -> None:
        self.counts.failed += 1
        now = self._loop.time()
        if now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            address = str((one.get_extra_info("peername") or ("",))[0])
            fields = {"peer": address, "failed": self.counts.failed}
            log.info("a TLS connection from %s ended: %s", address, why, extra={"fields": fields})

    def _next_turn(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Go on with handshakes that wait, as far as a turn has time for them."""
        self._is_due = False
        turns = self._turns
        turns.begin()
        while (one := turns.next()) is not None:
            try:
                one.step()
            except Exception as error:
                what = {"message": "a peer's protocol failed", "exception": error, "transport": one}
                self._loop.call_exception_handler(what)
                one.abort()
        if turns.waiting:
            self._next_turn()


def _make(
    context: ssl.SSLContext, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> ssl.SSLObject:
    return context.wrap_bio(incoming, outgoing, server_side=True)


def _end(one: TlsTransport, reason: str) -> None:
    connection = getattr(one.get_protocol(), "connection", None)
    if connection is not None:
        connection.hang_up(reason)
    else:  # a link, which comes again with what is valid now
        log.warning("a link of another node was ended: %s", reason)
        one.abort()


def _connection(one: TlsTransport) -> ClientConnection[asyncio.Transport]:
    """Return the connection that a handshake is of: until it is done, nobody else has it."""
    return cast(ClientConnection[asyncio.Transport], cast(Any, one.get_protocol()).connection)


def is_loopback(address: str) -> bool:
    """Return whether an address is of this machine alone."""
    try:
        return not address or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
