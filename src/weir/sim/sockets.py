"""The process's end of a link, as a transport: what came waits until it is read."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from weir.codec.fields import Buffer
from weir.host.connections import ClientConnection
from weir.model.limits import KIB
from weir.sim.network import Link

if TYPE_CHECKING:
    from weir.sim.process import Process

#: Above this much unsent a client is full, until a quarter of it is left.
_FULL_BYTES = 4 * KIB


class Socket:
    """A connection that a process serves."""

    def __init__(
        self, process: Process, link: Link, connection: ClientConnection[Socket], site: str
    ) -> None:
        """Read nothing before `accept`. `site` is where the peer is."""
        self.site = site
        self.is_full = False
        self.link = link
        self._process = process
        self._connection = connection
        self._came: deque[bytes] = deque()
        self._is_accepted = self._closing = self._over = False
        self._reads = True

    # -- its process calls --------------------------------------------------------------------

    def accept(self) -> None:
        """Begin, and read what is there: who connects has mostly said something by then."""
        self._is_accepted = True
        self._connection.open(self)
        self.read()

    def came(self, data: bytes) -> None:
        """Bytes have come, which are there to be read."""
        self._came.append(data)

    def lost(self) -> None:
        """The connection is gone, with what was not read."""
        self._over = True

    def read(self) -> None:
        """Hand on what may be read."""
        if not self._is_accepted:
            return
        while self._came and self._reads and not self._closing:
            self._connection.receive(self._came.popleft())
        if self._over:
            self._is_accepted = False
            self._connection.close()

    def drain(self) -> bool:
        """Let a full client go on once it has taken enough; return whether it has."""
        if self.get_write_buffer_size() > _FULL_BYTES // 4:
            return False
        self.is_full = False
        self._connection.resume_writing()
        return True

    # -- a transport --------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send bytes."""
        if self._closing:
            return
        self._process.world.note("send", self._connection.session, zlib.crc32(data))
        self.link.to_client(bytes(data))
        if not self.is_full and self.get_write_buffer_size() > _FULL_BYTES:
            self.is_full = True
            self._process.full.append(self)
            self._connection.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send buffers as one."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are under way to the client."""
        return self.link.replies_unsent

    def pause_reading(self) -> None:
        """Hand on no more bytes."""
        self._reads = False
        self.link.hold(True)

    def resume_reading(self) -> None:
        """Hand bytes on again."""
        self.link.hold(False)
        if not self._reads:
            self._reads = True
            if self._came:
                self._process.read_soon(self)

    def can_write_eof(self) -> bool:
        """Links close both ways at once."""
        return False

    def write_eof(self) -> None:
        """Nobody asks for this."""
        raise AssertionError("links close both ways at once")

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Close once all is sent."""
        self._closing = True
        self.link.finish()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self.link.cut()


class Network:
    """What a simulated process knows of its network: the links of other nodes are elsewhere."""

    def __init__(self) -> None:
        """Know no other node."""
        self.found: Container[str] = frozenset()

    def address(self, transport: Socket) -> str:
        """Return where a peer is."""
        return transport.site

    def is_gone(self, transport: Socket) -> bool:
        """Return whether a peer has hung up."""
        return not transport.link.open

    def accept_link(self, transport: Socket, data: bytes) -> None:
        """Refuse who begins in the link dialect: no other node does."""
        transport.abort()
