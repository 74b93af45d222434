"""TLS as a transport: between one of a loop, or of the device batches, and any protocol.

One layer serves both kinds of transport, and both ends of a connection, because a connection may go
from one kind to the other once its first plaintext has said what it is.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Protocol

from weir.errors import RemoteProtocolError
from weir.tls.engine import Buffer, Maker, TlsEngine
from weir.tls.peers import PeerCertificate
from weir.tls.records import RECORD_BYTES

#: Buffers are joined up to so many bytes: each costs a record and a call else.
_JOINED_BYTES_MAX = 1 << 18

#: How far a connection has come: it shakes hands, has done so and said nothing yet, is being given
#: another transport, is open, or over.
_SHAKING, _SHAKEN, _MOVING, _OPEN, _OVER = range(5)
#: What becomes of a handshake in this turn of the loop: it may ask, it waits, or it goes on.
_ASKS, _WAITS, _GOES_ON = range(3)


class TlsHost(Protocol):
    """Decides about the TLS connections of a process."""

    def may_step(self, one: TlsTransport) -> bool:
        """Return whether a handshake may go on now; if not, `step` is called when it may."""

    def stepped(self, one: TlsTransport, came: int, seconds: float) -> None:
        """A handshake went on for so long, with so many bytes of the peer."""

    def kept(self, change: int) -> None:
        """So many bytes more, or fewer, are in memory for connections."""

    def shaken(self, one: TlsTransport) -> None:
        """A handshake is done: `peer` has the peer's identity. This may abort the connection."""

    def broke(self, one: TlsTransport, why: Exception) -> None:
        """A connection is about to end because of what came, or did not come."""

    def ended(self, one: TlsTransport) -> None:
        """A connection is over."""

    def in_words(self, error: ssl.SSLError) -> Exception:
        """Return the error in words that say what to do."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of a protocol, and the protocol of the transport below it."""

    __slots__ = ("_begins", "_charged", "_closing", "_engine", "_held", "_high", "_host", "_lower",
                 "_phase", "_plain", "_reads", "_turn", "_upper", "_why")  # fmt: skip

    def __init__(
        self, host: TlsHost, make: Maker, upper: asyncio.Protocol,
        lower: asyncio.Transport | None = None,
        begins: Callable[[TlsTransport, bytes], bool] | None = None,
    ) -> None:  # fmt: skip
        """Serve `upper` with what `make` makes when the handshake begins: TLS costs memory.

        With `lower`, `upper` has that transport already, and is to be told of this one. `begins` is
        given the first plaintext; it returns whether `upper` is to have that now, and not once this
        has `moved`.
        """
        # Its base would have a dictionary of its own for `get_extra_info`: for each of thousands.
        self._host = host
        self._engine = TlsEngine(make)
        self._begins = begins
        self._upper = upper
        self._lower = lower
        self._phase = _SHAKING
        self._turn = _ASKS
        self._closing = False
        #: What came while it waits for its turn; data for the protocol above while it moves.
        self._held = self._plain = b""
        #: Whether the protocol above reads.
        self._reads = True
        self._charged = 0
        #: Above so many unsent bytes the protocol above pauses.
        self._high: int | None = None
        self._why: Exception | None = None

    @property
    def peer(self) -> PeerCertificate | None:
        """What the other side's certificate says; None without one, or before."""
        return self._engine.peer

    # -- its host calls -----------------------------------------------------------------------

    def step(self) -> None:
        """Go on with a handshake that waited."""
        if self._phase != _SHAKING or self._turn != _WAITS:
            return
        self._turn = _GOES_ON
        held, self._held = self._held, b""
        self._take(held)
        self._turn = _ASKS
        self._watch()

    def moved(self, transport: asyncio.Transport) -> None:
        """Go on over another transport: the connection is the same."""
        self._lower = transport
        self._phase = _OPEN if self._phase == _MOVING else self._phase
        if self._phase != _OVER:
            transport.set_write_buffer_limits(high=self._high)

    def update(self) -> None:
        """Read, or not, as it is to be."""
        update = getattr(self._upper, "update", None)
        if update is not None:
            update()

    # -- the transport below calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, at the side that dials."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._lower = transport  # type: ignore[assignment]  # uvloop's is one without saying so
        self._shake(0)

    def data_received(self, data: bytes) -> None:
        """Hand on what is in it, all of it at once; nothing while another transport is made."""
        # A request or a reply is one record: it goes a short way, for somebody waits for it.
        if self._phase == _OPEN and not (self._closing or self._plain or self._held):
            try:
                plain = self._engine.read_alone(data)
            except ssl.SSLError as error:
                self._fail(error)
                return
            if plain:
                self._upper.data_received(plain)
            else:
                self._take(data if plain is None else b"")
            return
        if self._plain:
            plain, self._plain = self._plain, b""
            self._account()
            self._upper.data_received(plain)
        if data and self._phase != _OVER:
            if self._turn == _WAITS or self._phase == _MOVING:
                self._held += data
                self._account()
            else:
                held, self._held = self._held, b""
                self._take(held + data if held else data)

    def eof_received(self) -> bool | None:
        """The other side ends; a protocol whose frames have lengths needs no word of it."""
        if self._phase == _SHAKING:
            self._why = ConnectionResetError(
                "hung up in the TLS handshake: it may take no TLS, or be no broker"
            )
            self._host.broke(self, self._why)
        return None

    def pause_writing(self) -> None:
        """The peer does not take what it is sent."""
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        """The peer took it."""
        self._upper.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over."""
        self._phase = _OVER
        self._held = self._plain = b""
        self._account()
        self._begins = None
        self._host.ended(self)
        self._upper.connection_lost(self._why or error)

    # -- a protocol calls ---------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Encrypt bytes, and send them. Before the handshake there is nobody to say anything to."""
        if self._closing or self._phase in (_SHAKING, _OVER) or not (size := len(data)):
            return
        if size > RECORD_BYTES:
            self._send((data,))
            return
        assert self._lower is not None
        try:
            record = self._engine.encrypt_one(data)
        except ssl.SSLError as error:
            self._break(self._host.in_words(error))
            return
        self._lower.write(record)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Encrypt buffers, and send them as one."""
        if self._closing or self._phase in (_SHAKING, _OVER):
            return
        buffers = tuple(list_of_data)
        if sum(map(len, buffers)) <= _JOINED_BYTES_MAX:
            self.write(b"".join(buffers))
        else:
            self._send(buffers)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes, encrypted, are not sent."""
        return 0 if self._lower is None else self._lower.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have the protocol pause above `high` unsent bytes."""
        self._high = high
        if self._lower is not None:
            self._lower.set_write_buffer_limits(high=high, low=low)

    def pause_reading(self) -> None:
        """Hand on no more bytes."""
        self._reads = False
        self._watch()

    def resume_reading(self) -> None:
        """Hand bytes on again."""
        self._reads = True
        self._watch()

    def is_reading(self) -> bool:
        """Return whether bytes are handed on."""
        return self._reads

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Serve another protocol from now on."""
        assert isinstance(protocol, asyncio.Protocol)
        self._upper = protocol

    def get_protocol(self) -> asyncio.Protocol:
        """Return the protocol above TLS."""
        return self._upper

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `peer`, what the other side's certificate says, `tls_version`, `alpn`, or what the
        transport below knows.
        """
        if name == "peer":
            return self.peer or default
        if name == "tls_version":
            return self._engine.version or default
        if name == "alpn":
            return self._engine.alpn or default
        return default if self._lower is None else self._lower.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        lower = self._lower
        return self._closing or self._phase == _OVER or lower is None or lower.is_closing()

    def can_write_eof(self) -> bool:
        """Return whether one direction can be closed alone: TLS says that it ends, then TCP."""
        return self._lower is not None and self._lower.can_write_eof()

    def write_eof(self) -> None:
        """Close this direction once all is sent."""
        if not self._closing and self._lower is not None:
            self._say_end()
            self._lower.write_eof()

    def close(self) -> None:
        """Close once all is sent."""
        if not self._closing:
            self._closing = True
            if self._lower is not None:
                self._say_end()
                self._lower.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._lower is not None:
            self._lower.abort()

    # -- inside -------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Take what came, record by record, and hand on what is in all of them."""
        plain: list[bytes] = []
        try:
            self._decrypt(data, plain)
        except ssl.SSLError as error:
            self._fail(error)
        except RemoteProtocolError as error:
            self._break(error)
        if plain and self._phase != _OVER:
            self._hand_on(plain[0] if len(plain) == 1 else b"".join(plain))
        self._account()

    def _decrypt(self, data: bytes, plain: list[bytes]) -> None:
        engine = self._engine
        if self._turn == _GOES_ON and self._shake(0):  # by what there was when it began to wait
            self._read(plain)
        if self._phase == _OPEN and not data:  # a record was fed, and was for TLS alone
            self._read(plain)
        view, at = memoryview(data), 0
        while at < len(data) and not self._closing:
            piece = view[at : at + RECORD_BYTES]
            whole = engine.feed(piece)
            at += len(piece)
            if self._phase != _SHAKING:
                self._read(plain, whole)
            elif self._shake(len(piece)):
                self._read(plain)
            elif self._turn == _WAITS:
                self._held += data[at:]
                return

    def _read(self, plain: list[bytes], *most: int) -> None:
        self._engine.read(plain, *most)
        self._flush()  # a key update is answered
        if self._engine.has_ended:
            self.close()

    def _hand_on(self, data: bytes) -> None:
        if self._phase == _SHAKEN:
            begins, self._begins = self._begins, None
            if begins is not None and not begins(self, data):
                self._phase, self._plain = _MOVING, data
                return
            self._phase = _OPEN
        self._upper.data_received(data)

    def _shake(self, came: int) -> bool:
        """Go on with the handshake, if it is its turn; return whether it is done."""
        if self._turn != _GOES_ON and not self._host.may_step(self):
            self._turn = _WAITS
            self._watch()
            return False
        began = monotonic()
        try:
            if not self._engine.shake():
                return False
        finally:
            self._flush()
            self._host.stepped(self, came, monotonic() - began)
        self._phase = _SHAKEN
        self._host.shaken(self)
        return not self._closing

    def _send(self, buffers: Iterable[Buffer]) -> None:
        lower = self._lower
        assert lower is not None
        try:
            pieces = self._engine.encrypt(buffers)
        except ssl.SSLError as error:
            self._break(self._host.in_words(error))
            return
        if len(pieces) == 1:
            lower.write(pieces[0])
        elif pieces:
            lower.writelines(pieces)

    def _flush(self) -> None:
        if self._lower is not None and (data := self._engine.unsent()):
            self._lower.write(data)

    def _say_end(self) -> None:
        if self._phase in (_SHAKEN, _MOVING, _OPEN):
            self._engine.end()
            self._flush()

    def _fail(self, error: ssl.SSLError) -> None:
        self._flush()  # the alert, which tells the other side
        self._break(self._host.in_words(error))

    def _break(self, why: Exception) -> None:
        if self._why is None:
            self._why = why
            self._host.broke(self, why)
        self._phase = _OVER
        self._closing = True
        lower = self._lower
        if lower is None:
            return
        if lower.get_write_buffer_size():
            lower.abort()  # the other side reads nothing
        else:
            lower.close()

    def _watch(self) -> None:
        lower = self._lower
        if lower is None or self._phase in (_MOVING, _OVER) or lower.is_closing():
            return
        if self._reads and self._turn != _WAITS:
            lower.resume_reading()
        else:
            lower.pause_reading()

    def _account(self) -> None:
        """Tell how much is in memory that the protocol above has not got."""
        kept = 0
        if self._phase != _OVER:
            kept = self._engine.kept + len(self._held) + len(self._plain)
        if kept != self._charged:
            change, self._charged = kept - self._charged, kept
            self._host.kept(change)
