"""Connections between nodes until both sides know who the other is; then a lane takes them over."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from weir.errors import RemoteProtocolError
from weir.host.ports import Transport
from weir.host.shard_connections import LocalShard, ShardConnection
from weir.model.limits import LINK_HELLO_SECONDS
from weir.protocol.link import Greeting, LinkAnswer, LinkHello, decode_answer, encode_greeting

_UNHEARD = "hung up before it identified itself"


class Certified(NamedTuple):
    """The node whose certificate the other side has shown, and its BrokerSet; node 0: of none."""

    node: int
    brokerset: int = 0


#: Instead of a node: the connection is not by TLS, and is to be.
NO_TLS = Certified(-1)
#: Of a connection whose other side has no certificate of a node.
NO_NODE = Certified(0)
_LATE = f"no answer within {LINK_HELLO_SECONDS:g} s"


class Dialer(Protocol):
    """Makes connections to other nodes."""

    def dial(self, host: str, port: int, tries: int, dialled: DialedConnection) -> None:
        """Connect, and tell `dialled` that it is `connected` or has `failed`, after this returns.
        The addresses that a host has are tried in turn: this is attempt `tries`.
        """


class DialingLink(Protocol):
    """The link that a connection is for."""

    def answered(
        self, dialled: DialedConnection, connection: ShardConnection, answer: LinkAnswer
    ) -> None:
        """The other side has answered."""

    def failed(self, dialled: DialedConnection, why: str) -> None:
        """It has not."""


class LinkServer(Protocol):
    """The links of a shard that others link to."""

    def greeted(self, caller: AcceptedConnection, body: memoryview) -> None:
        """Somebody said hello."""

    def unheard(self, caller: AcceptedConnection, why: str) -> None:
        """Somebody went without a hello."""


class DialedConnection:
    """A connection that this side dials, until the other one has answered its hello."""

    def __init__(
        self, link: DialingLink, local: LocalShard, hello: LinkHello, host: str, port: int
    ) -> None:
        """Say `hello` to the dialled node; `link` gets the outcome within seconds."""
        self.hello = hello
        self.host = host
        self.where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        #: Whether its link knows what came of it, or does not care any more.
        self.is_over = False
        self._link = link
        self._connection: ShardConnection | None = None
        self._stream = Greeting()
        self._wait_no_more = local.later(LINK_HELLO_SECONDS, self._expire)

    # -- the dialer calls ---------------------------------------------------------------------

    def connected(self, transport: Transport) -> ShardConnection:
        """The connection is there: say hello."""
        connection = self._connection = ShardConnection(transport, self)
        if self.is_over:
            transport.abort()
        else:
            transport.write(encode_greeting(self.hello))
        return connection

    def failed(self, why: str) -> None:
        """There is no connection."""
        if not self.is_over:
            self.cut()
            self._link.failed(self, why)

    # -- its transport says -------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take the answer."""
        if self.is_over or self._connection is None:
            return
        try:
            body = self._stream.receive(data)
            answer = None if body is None else decode_answer(body)
        except RemoteProtocolError as error:
            self.failed(str(error))
            return
        if answer is not None:
            self._end()
            self._link.answered(self, self._connection, answer)

    def pause_writing(self) -> None:
        """A hello is short."""

    def resume_writing(self) -> None:
        """A hello is short."""

    def lost(self, why: str) -> None:
        """It was refused without a word, or the other side is gone."""
        self.failed(why or _UNHEARD)

    # -- its link calls -----------------------------------------------------------------------

    def cut(self) -> None:
        """Close at once, or as soon as it is there."""
        self._end()
        if self._connection is not None:
            self._connection.transport.abort()

    def _end(self) -> None:
        self.is_over = True
        self._wait_no_more()  # else its timer keeps all of it for seconds

    def _expire(self) -> None:
        self.failed(_LATE)


class AcceptedConnection:
    """A connection that another node dialled, until it has identified itself."""

    def __init__(
        self, links: LinkServer, local: LocalShard, transport: Transport, address: str,
        certified: Certified | None = None,
    ) -> None:  # fmt: skip
        """Wait for its hello, for seconds. `certified` is the node whose certificate it has shown:
        `NO_NODE` of none, `NO_TLS` where it should have shown one, None where it need not.
        """
        self.certified = certified
        self.connection = ShardConnection(transport, self)
        self.address = address
        self._links = links
        self.is_over = False
        self._stream = Greeting()
        self._wait_no_more = local.later(LINK_HELLO_SECONDS, self._expire)

    def refuse(self, answer: LinkAnswer) -> None:
        """Say why there is no link, and close."""
        transport = self.connection.transport
        if not transport.is_closing():
            transport.write(encode_greeting(answer))
            transport.close()

    def cut(self) -> None:
        """Close at once."""
        self._end()
        self.connection.transport.abort()

    # -- its transport says -------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take the hello."""
        if self.is_over:
            return
        try:
            body = self._stream.receive(data)
        except RemoteProtocolError as error:
            self._fail(str(error))
            return
        if body is not None:
            self._end()
            self._links.greeted(self, body)

    def pause_writing(self) -> None:
        """An answer is short."""

    def resume_writing(self) -> None:
        """An answer is short."""

    def lost(self, why: str) -> None:
        """The other side is gone."""
        self._fail(why or _UNHEARD)

    def _end(self) -> None:
        self.is_over = True
        self._wait_no_more()  # else its timer keeps all of it for seconds

    def _expire(self) -> None:
        self._fail("it took too long")

    def _fail(self, why: str) -> None:
        if not self.is_over:
            self.cut()
            self._links.unheard(self, why)
