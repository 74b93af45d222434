"""One accepted connection: bytes between the socket and the dialect (`weir.wire`)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from weir.codec.fields import Buffer
from weir.errors import RemoteProtocolError
from weir.model.limits import MIB
from weir.wire.connection import Connection

if TYPE_CHECKING:
    from weir.server.driver import Driver

log = logging.getLogger(__name__)

#: Above this much unsent, no more requests are read from the peer: it does not take its replies.
_UNSENT_BYTES_MAX = 16 * MIB


class Peer(asyncio.Protocol):
    """Reads frames and hands them to the driver in order; writes what the driver sends."""

    __slots__ = ("_charged", "_connection", "_driver", "_full", "_held", "_transport", "session")

    def __init__(self, driver: Driver, session: int) -> None:
        """Belong to a driver, which knows this peer by `session`."""
        self._driver = driver
        self.session = session
        self._connection = Connection()
        self._charged = 0
        self._transport: asyncio.Transport | None = None
        self._full = False
        self._held = False

    # -- asyncio calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the driver, or hang up if it has enough connections."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._driver.opened(self)

    def data_received(self, data: bytes) -> None:
        """Cut frames; a peer that breaks its dialect is dropped."""
        connection = self._connection
        try:
            frames = connection.receive(data)
        except RemoteProtocolError as error:
            self.hang_up(str(error))
            return
        grown = connection.pending - self._charged
        self._charged += grown
        self._driver.received(self.session, frames, grown)

    def pause_writing(self) -> None:
        """The peer does not take its replies: take no more requests from it."""
        self._full = True
        self._update()

    def resume_writing(self) -> None:
        """The peer took its replies."""
        self._full = False
        self._update()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the driver."""
        self._transport = None
        self._driver.closed(self, self._charged)

    # -- the driver calls ---------------------------------------------------------------------

    def send(self, buffers: tuple[Buffer, ...]) -> None:
        """Write buffers as they are, in order."""
        if self._transport is None:
            return
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def hold(self, held: bool) -> None:
        """Stop or resume reading for the sake of the byte budget."""
        self._held = held
        self._update()

    def hang_up(self, reason: str) -> None:
        """Close once everything sent is out."""
        if self._transport is not None:
            log.info("session %d closed: %s", self.session, reason)
            self._transport.close()

    def _update(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        act: Callable[[], None] = (
            self._transport.pause_reading
            if self._full or self._held
            else self._transport.resume_reading
        )
        act()
